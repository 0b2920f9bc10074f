// Registers TfdistJoin.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

REGISTER_OP("TfdistJoin")
    .Input("order: resource")
    .Output("last: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Takes part with zeros in what the other ranks submit, until every rank has come here.

last: The rank that came last.
)doc");

}  // namespace tfdist
