// Registers TfdistGroupedAllgather.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/element_types.h"

namespace tfdist {

REGISTER_OP("TfdistGroupedAllgather")
    .Input("tensors: dtypes")
    .Input("order: resource")
    .Output("gathered: dtypes")
    .Output("rows: int64")
    .Attr("dtypes: list(" TFDIST_ELEMENT_TYPES ") >= 1")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle output;
      const int tensors = context->num_outputs() - 1;
      for (int i = 0; i < tensors; ++i) {
        const tensorflow::shape_inference::ShapeHandle input = context->input(i);
        if (!context->RankKnown(input)) {
          context->set_output(i, context->UnknownShape());
        } else if (context->Rank(input) == 0) {
          context->set_output(i, context->Vector(context->UnknownDim()));
        } else {
          TF_RETURN_IF_ERROR(context->ReplaceDim(input, 0, context->UnknownDim(), &output));
          context->set_output(i, output);
        }
      }
      context->set_output(tensors, context->Matrix(tensors, context->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Concatenates each tensor of all ranks along dimension 0, in the order of the ranks, in one collective.

tensors: Dimension 0 may differ by rank, the others may not; a scalar counts as one row.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
rows: How many rows each rank (column) gave of each tensor (row).
)doc");

}  // namespace tfdist
