// Registers TfdistGroupedAllreduce.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

REGISTER_OP("TfdistGroupedAllreduce")
    .Input("tensors: dtypes")
    .Input("prescale: double")
    .Input("postscale: double")
    .Input("weight: int64")
    .Input("order: resource")
    .Output("reduced: dtypes")
    .Attr(
        "dtypes: list({bool, uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, "
        "double}) >= 1")
    .Attr("reduction: {'sum', 'average', 'min', 'max', 'product', 'adasum'}")
    .Attr("compression: {'none', 'fp16', 'bf16'} = 'none'")
    .Attr("weighted: bool = false")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      const int tensors = context->num_outputs();
      tensorflow::shape_inference::ShapeHandle unused;
      for (int scalar = tensors; scalar < context->num_inputs(); ++scalar) {
        TF_RETURN_IF_ERROR(context->WithRank(context->input(scalar), 0, &unused));
      }
      for (int i = 0; i < tensors; ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reduces tensors elementwise over all ranks in one fused collective.

tensors: One or more tensors; dtypes and shapes must be the same on every rank.
prescale: Multiplies each tensor before the reduction; floating dtypes only unless 1.
postscale: Multiplies each result; floating dtypes only unless 1.
weight: What this rank counts for in an average, where `weighted` is true: 0 to 2^32 - 1.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
reduced: The reduction over all ranks, the same bits on every rank.
compression: Type on the wire for float32 and float64 tensors.
process_set: The number of the ranks that take part; 0 for all.
label: What errors and reports call this collective.
tensor_names: One name a tensor, for errors and reports.
)doc");

}  // namespace tfdist
