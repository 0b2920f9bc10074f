#include "tf/xla/invocation.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/engine/world.h"
#include "tf/conversion.h"
#include "tf/xla/custom_call.h"

namespace tfdist {
namespace {

namespace ffi = xla::ffi;

Status FromHandler(const ffi::Error& error) {
  return Status(StatusCode::kInternal, "XLA called tfdist with unexpected arguments: " +
                                           error.message() + ". Rebuild tfdist.");
}

Status ToDType(ffi::DataType type, DType* out) {
  static constexpr std::pair<ffi::DataType, DType> kPairs[] = {
      {ffi::DataType::PRED, DType::kBool},     {ffi::DataType::U8, DType::kUint8},
      {ffi::DataType::S8, DType::kInt8},       {ffi::DataType::U16, DType::kUint16},
      {ffi::DataType::S16, DType::kInt16},     {ffi::DataType::S32, DType::kInt32},
      {ffi::DataType::S64, DType::kInt64},     {ffi::DataType::F16, DType::kFloat16},
      {ffi::DataType::BF16, DType::kBfloat16}, {ffi::DataType::F32, DType::kFloat32},
      {ffi::DataType::F64, DType::kFloat64},
  };
  if (FindDType(kPairs, type, out)) return Status::Ok();
  return Status(StatusCode::kInternal, "XLA gave a collective a tensor of its type " +
                                           std::to_string(static_cast<int>(type)) +
                                           ", which tfdist does not know.");
}

Status ToTensorView(const ffi::AnyBuffer& buffer, TensorView* out) {
  TFDIST_RETURN_IF_ERROR(ToDType(buffer.element_type(), &out->dtype));
  out->shape.assign(buffer.dimensions().begin(), buffer.dimensions().end());
  out->data = buffer.untyped_data();
  return Status::Ok();
}

}  // namespace

template <typename T>
Status Invocation::Attribute(const char* name, T* value) const {
  const auto found = attributes_.get<T>(name);
  if (!found.has_value()) return FromHandler(found.error());
  *value = *found;
  return Status::Ok();
}

Status Invocation::Number(const char* name, int64_t* value) const { return Attribute(name, value); }

Status Invocation::Factor(const char* name, double* value) const { return Attribute(name, value); }

Status Invocation::Text(const char* name, std::string* value) const {
  std::string_view view;
  TFDIST_RETURN_IF_ERROR(Attribute(name, &view));
  *value = std::string(view);
  return Status::Ok();
}

Status Invocation::TensorNames(std::vector<std::string>* names) const {
  std::string joined;
  TFDIST_RETURN_IF_ERROR(Text(kTensorNames, &joined));
  for (size_t begin = 0; begin <= joined.size();) {
    const size_t end = std::min(joined.find(kSeparator, begin), joined.size());
    names->push_back(joined.substr(begin, end - begin));
    begin = end + 1;
  }
  return Status::Ok();
}

Status Invocation::FindEngine(std::shared_ptr<Engine>* engine) const {
  int64_t process_set = 0;
  TFDIST_RETURN_IF_ERROR(Number(kProcessSet, &process_set));
  return World::Find(static_cast<int>(process_set), engine);
}

Status Invocation::Operand(size_t index, TensorView* view) const {
  const auto buffer = operands_.get<ffi::AnyBuffer>(index);
  return buffer.has_value() ? ToTensorView(*buffer, view) : FromHandler(buffer.error());
}

Status Invocation::Result(size_t index, TensorView* view) const {
  auto buffer = results_.get<ffi::AnyBuffer>(index);
  return buffer.has_value() ? ToTensorView(**buffer, view) : FromHandler(buffer.error());
}

Status Invocation::Tensors(std::vector<TensorView>* inputs,
                           std::vector<TensorView>* outputs) const {
  const size_t tensors = results() - 1;
  inputs->resize(tensors);
  outputs->resize(tensors);
  for (size_t i = 0; i < tensors; ++i) {
    TFDIST_RETURN_IF_ERROR(Operand(i, &(*inputs)[i]));
    TFDIST_RETURN_IF_ERROR(Result(i, &(*outputs)[i]));
  }
  return Status::Ok();
}

Status ReadOptions(const Invocation& invocation, AllreduceOptions* options) {
  std::string reduction, compression;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &options->name));
  TFDIST_RETURN_IF_ERROR(invocation.TensorNames(&options->tensor_names));
  TFDIST_RETURN_IF_ERROR(invocation.Text(kReduction, &reduction));
  TFDIST_RETURN_IF_ERROR(invocation.Text(kCompression, &compression));
  TFDIST_RETURN_IF_ERROR(ToReduction(reduction, &options->reduction));
  return ToCompression(compression, &options->compression);
}

Status ReadOptions(const Invocation& invocation, GatherOptions* options) {
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &options->name));
  return invocation.TensorNames(&options->tensor_names);
}

Status ReadOptions(const Invocation& invocation, BroadcastOptions* options) {
  int64_t root = 0;
  TFDIST_RETURN_IF_ERROR(invocation.Text(kLabel, &options->name));
  TFDIST_RETURN_IF_ERROR(invocation.TensorNames(&options->tensor_names));
  TFDIST_RETURN_IF_ERROR(invocation.Number(kRootRank, &root));
  options->root = static_cast<int>(root);
  return Status::Ok();
}

ffi::Error ToXla(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), status.message());
}

}  // namespace tfdist
