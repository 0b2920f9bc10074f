// Registers TfdistAlltoall.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/element_types.h"

namespace tfdist {

REGISTER_OP("TfdistAlltoall")
    .Input("tensor: dtype")
    .Input("splits: int64")
    .Input("order: resource")
    .Output("received: dtype")
    .Output("received_splits: int64")
    .Attr("dtype: " TFDIST_ELEMENT_TYPES)
    .Attr("equal_splits: bool")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle input, splits, output;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &input));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &splits));
      if (context->RankKnown(input)) {
        TF_RETURN_IF_ERROR(context->ReplaceDim(input, 0, context->UnknownDim(), &output));
        context->set_output(0, output);
      } else {
        context->set_output(0, context->UnknownShape());
      }
      context->set_output(1, context->Vector(context->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends some rows of the tensor to each rank.

tensor: Dimensions after the first are the same on every rank.
splits: Rows for each rank, in order; empty with `equal_splits`.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
received: The rows from all ranks, in the order of the ranks.
received_splits: How many came from each rank.
)doc");

}  // namespace tfdist
