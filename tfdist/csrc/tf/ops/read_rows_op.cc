// Registers TfdistReadRows.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {

// Not stateful: a data service only takes datasets whose ops have no state.
REGISTER_OP("TfdistReadRows")
    .Input("request: string")
    .Output("columns: dtypes")
    .Attr(
        "dtypes: list({bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, "
        "float, double, string}) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      std::vector<tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
      if (static_cast<int>(shapes.size()) != context->num_outputs()) {
        return absl::InvalidArgumentError("shapes and dtypes must have the same length.");
      }
      for (int i = 0; i < context->num_outputs(); ++i) {
        tensorflow::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        context->set_output(i, shape);
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Rows of files, as the reader of this process reads them (tfdist.data_service).

request: What is to be read; its parts reach the reader one after the other, each followed by a zero byte.
columns: The values; the first dimension is that of the rows.
)doc");

}  // namespace tfdist
