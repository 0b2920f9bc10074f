// Registers TfdistTopology.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

REGISTER_OP("TfdistTopology")
    .Output("value: int32")
    .Attr("what: {'rank', 'size', 'local_rank', 'local_size'}")
    .Attr("process_set: int = 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("A number of this process in the job, read when the op runs.");

}  // namespace tfdist
