// Registers TfdistBarrier.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

REGISTER_OP("TfdistBarrier")
    .Input("order: resource")
    .Attr("process_set: int = 0")
    .Attr("label: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Waits until every rank has reached it.");

}  // namespace tfdist
