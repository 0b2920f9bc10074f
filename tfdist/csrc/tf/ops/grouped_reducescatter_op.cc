// Registers TfdistGroupedReducescatter.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/element_types.h"

namespace tfdist {

REGISTER_OP("TfdistGroupedReducescatter")
    .Input("tensors: dtypes")
    .Input("prescale: double")
    .Input("postscale: double")
    .Input("order: resource")
    .Output("scattered: dtypes")
    .Attr("dtypes: list(" TFDIST_ELEMENT_TYPES ") >= 1")
    .Attr("reduction: {'sum', 'average'}")
    .Attr("compression: string = 'none'")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      const int tensors = context->num_outputs();
      tensorflow::shape_inference::ShapeHandle input, output, unused;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(tensors), 0, &unused));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(tensors + 1), 0, &unused));
      for (int i = 0; i < tensors; ++i) {
        TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(i), 1, &input));
        if (context->RankKnown(input)) {
          TF_RETURN_IF_ERROR(context->ReplaceDim(input, 0, context->UnknownDim(), &output));
          context->set_output(i, output);
        } else {
          context->set_output(i, context->UnknownShape());
        }
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reduces tensors elementwise over all ranks and leaves each rank some rows of the results.

tensors: Dtypes and shapes are the same on every rank; at least one dimension each.
prescale: Multiplies each tensor before the reduction; floating dtypes only unless 1.
postscale: Multiplies each result; floating dtypes only unless 1.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
scattered: This rank's rows; where they do not divide evenly the lower ranks have one more.
)doc");

}  // namespace tfdist
