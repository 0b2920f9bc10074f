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
  static constexpr std::pair<tensorflow::DataType, DType> kPairs[] = {
      {tensorflow::DT_BOOL, DType::kBool},         {tensorflow::DT_UINT8, DType::kUint8},
      {tensorflow::DT_INT8, DType::kInt8},         {tensorflow::DT_UINT16, DType::kUint16},
      {tensorflow::DT_INT16, DType::kInt16},       {tensorflow::DT_INT32, DType::kInt32},
      {tensorflow::DT_INT64, DType::kInt64},       {tensorflow::DT_HALF, DType::kFloat16},
      {tensorflow::DT_BFLOAT16, DType::kBfloat16}, {tensorflow::DT_FLOAT, DType::kFloat32},
      {tensorflow::DT_DOUBLE, DType::kFloat64},
  };
  if (FindDType(kPairs, dtype, out)) return Status::Ok();
  return Status(
      StatusCode::kInvalidArgument,
      "collectives support bool, (u)int8, (u)int16, int32, int64, float16, bfloat16, float32 and "
      "float64; received " +
          tensorflow::DataTypeString(dtype) + ". Cast the tensor first.");
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
