// Registers TfdistAllgather.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

REGISTER_OP("TfdistAllgather")
    .Input("tensor: dtype")
    .Input("order: resource")
    .Output("gathered: dtype")
    .Attr("dtype: {bool, uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}")
    .Attr("label: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle input = context->input(0), output;
      if (!context->RankKnown(input)) {
        context->set_output(0, context->UnknownShape());
        return absl::OkStatus();
      }
      if (context->Rank(input) == 0) {
        context->set_output(0, context->Vector(context->UnknownDim()));
        return absl::OkStatus();
      }
      TF_RETURN_IF_ERROR(context->ReplaceDim(input, 0, context->UnknownDim(), &output));
      context->set_output(0, output);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Concatenates the tensors of all ranks along dimension 0, in the order of the ranks.

tensor: Dimension 0 may differ by rank, the others may not; a scalar counts as one row.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
)doc");

}  // namespace tfdist
