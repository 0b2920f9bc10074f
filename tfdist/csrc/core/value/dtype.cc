#include "core/value/dtype.h"

namespace tfdist {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
    case DType::kInt8:
      return 1;
    case DType::kUint16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kFloat64:
      return 8;
  }
  return 0;
}

const char* NameOf(DType dtype) {
  static constexpr const char* kNames[] = {"bool",     "uint8",   "int8",   "uint16",
                                           "int16",    "int32",   "int64",  "float16",
                                           "bfloat16", "float32", "float64"};
  const int index = static_cast<int>(dtype);
  const bool known = index >= 0 && index <= static_cast<int>(DType::kFloat64);
  return known ? kNames[index] : "unknown";
}

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

bool IsNarrow(DType dtype) { return IsFloating(dtype) && SizeOf(dtype) < SizeOf(DType::kFloat32); }

}  // namespace tfdist
