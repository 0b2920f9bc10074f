#include "tf/conversion.h"

#include <limits>

#include "tensorflow/core/framework/types.h"

namespace tfdist {

absl::Status ToTensorFlow(const Status& status) {
  if (status.ok()) return absl::Status();
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

Status FromTensorFlow(const absl::Status& status) {
  if (status.ok()) return Status::Ok();
  return Status(static_cast<StatusCode>(status.code()), std::string(status.message()));
}

Status ToDType(tensorflow::DataType dtype, DType* out) {
  switch (dtype) {
    case tensorflow::DT_BOOL:
      *out = DType::kBool;
      return Status::Ok();
    case tensorflow::DT_UINT8:
      *out = DType::kUint8;
      return Status::Ok();
    case tensorflow::DT_INT8:
      *out = DType::kInt8;
      return Status::Ok();
    case tensorflow::DT_UINT16:
      *out = DType::kUint16;
      return Status::Ok();
    case tensorflow::DT_INT16:
      *out = DType::kInt16;
      return Status::Ok();
    case tensorflow::DT_INT32:
      *out = DType::kInt32;
      return Status::Ok();
    case tensorflow::DT_INT64:
      *out = DType::kInt64;
      return Status::Ok();
    case tensorflow::DT_HALF:
      *out = DType::kFloat16;
      return Status::Ok();
    case tensorflow::DT_BFLOAT16:
      *out = DType::kBfloat16;
      return Status::Ok();
    case tensorflow::DT_FLOAT:
      *out = DType::kFloat32;
      return Status::Ok();
    case tensorflow::DT_DOUBLE:
      *out = DType::kFloat64;
      return Status::Ok();
    default:
      return Status(
          StatusCode::kInvalidArgument,
          "collectives carry bool, (u)int8, (u)int16, int32, int64, float16, bfloat16, float32 and "
          "float64; received " +
              tensorflow::DataTypeString(dtype) + ". Cast the tensor first.");
  }
}

Status ToTensorView(const tensorflow::Tensor& tensor, TensorView* out) {
  TFDIST_RETURN_IF_ERROR(ToDType(tensor.dtype(), &out->dtype));
  const tensorflow::TensorShape& shape = tensor.shape();
  out->shape.resize(shape.dims());
  for (int d = 0; d < shape.dims(); ++d) out->shape[d] = shape.dim_size(d);
  out->data = tensor.data();
  return Status::Ok();
}

Status ToReduction(const std::string& name, Reduction* out) {
  if (FindReduction(name, out)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "unknown reduction '" + name + "'");
}

Status ToCompression(const std::string& name, Compression* out) {
  if (FindCompression(name, out)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "unknown compression '" + name + "'");
}

Status ToWeight(const std::string& label, int64_t weight, uint32_t* out) {
  if (weight < 0 || weight > std::numeric_limits<uint32_t>::max()) {
    return Status(StatusCode::kInvalidArgument, "allreduce '" + label + "' received the weight " +
                                                    std::to_string(weight) +
                                                    "; expected 0 to 4294967295.");
  }
  *out = static_cast<uint32_t>(weight);
  return Status::Ok();
}

int TopologyValue(const Topology& topology, const std::string& what) {
  if (what == "rank") return topology.rank;
  if (what == "size") return topology.size;
  if (what == "local_rank") return topology.local_rank;
  return topology.local_size;
}

}  // namespace tfdist
