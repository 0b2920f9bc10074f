// Registers TfdistGroupedBroadcast and its in-place form for variables, TfdistBroadcastVariables.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/ops/element_types.h"

namespace tfdist {

REGISTER_OP("TfdistGroupedBroadcast")
    .Input("tensors: dtypes")
    .Input("order: resource")
    .Output("received: dtypes")
    .Attr("dtypes: list(" TFDIST_ELEMENT_TYPES ") >= 1")
    .Attr("root_rank: int")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gives every rank the tensors of one rank.

tensors: One or more tensors; dtypes and shapes must be the same on every rank.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
received: The tensors of rank `root_rank`, its number among all ranks.
)doc");

REGISTER_OP("TfdistBroadcastVariables")
    .Input("variables: count * resource")
    .Input("order: resource")
    .Attr("count: int >= 1")
    .Attr("root_rank: int")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle unused;
      for (int i = 0; i < context->num_inputs(); ++i) {
        TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Overwrites resource variables with the values of one rank, in place.

variables: Handles of initialised variables; dtypes and shapes must be the same on every rank.
order: A resource that every collective takes, so that automatic control dependencies keep them in program order.
)doc");

}  // namespace tfdist
