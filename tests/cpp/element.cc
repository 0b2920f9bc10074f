#include "element.h"

#include "core/value/float_span.h"

using tfdist::DType;

namespace {

template <typename T>
T* As(void* data) {
  return static_cast<T*>(data);
}

}  // namespace

void SetElement(DType dtype, void* data, int64_t index, double value) {
  switch (dtype) {
    case DType::kBool:
      As<uint8_t>(data)[index] = value != 0;
      break;
    case DType::kUint8:
      As<uint8_t>(data)[index] = static_cast<uint8_t>(value);
      break;
    case DType::kInt8:
      As<int8_t>(data)[index] = static_cast<int8_t>(value);
      break;
    case DType::kUint16:
      As<uint16_t>(data)[index] = static_cast<uint16_t>(value);
      break;
    case DType::kInt16:
      As<int16_t>(data)[index] = static_cast<int16_t>(value);
      break;
    case DType::kInt32:
      As<int32_t>(data)[index] = static_cast<int32_t>(value);
      break;
    case DType::kInt64:
      As<int64_t>(data)[index] = static_cast<int64_t>(value);
      break;
    case DType::kFloat16:
      As<uint16_t>(data)[index] = tfdist::HalfFormat::FromFloat(static_cast<float>(value));
      break;
    case DType::kBfloat16:
      As<uint16_t>(data)[index] = tfdist::Bfloat16Format::FromFloat(static_cast<float>(value));
      break;
    case DType::kFloat32:
      As<float>(data)[index] = static_cast<float>(value);
      break;
    case DType::kFloat64:
      As<double>(data)[index] = value;
      break;
  }
}

double GetElement(DType dtype, const void* data, int64_t index) {
  void* bytes = const_cast<void*>(data);
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
      return As<uint8_t>(bytes)[index];
    case DType::kInt8:
      return As<int8_t>(bytes)[index];
    case DType::kUint16:
      return As<uint16_t>(bytes)[index];
    case DType::kInt16:
      return As<int16_t>(bytes)[index];
    case DType::kInt32:
      return As<int32_t>(bytes)[index];
    case DType::kInt64:
      return static_cast<double>(As<int64_t>(bytes)[index]);
    case DType::kFloat16:
      return tfdist::HalfFormat::ToFloat(As<uint16_t>(bytes)[index]);
    case DType::kBfloat16:
      return tfdist::Bfloat16Format::ToFloat(As<uint16_t>(bytes)[index]);
    case DType::kFloat32:
      return As<float>(bytes)[index];
    case DType::kFloat64:
      return As<double>(bytes)[index];
  }
  return 0;
}
