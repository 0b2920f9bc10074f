// The element types that collectives carry, with their sizes and names. Knows no framework.
#ifndef TFDIST_CORE_VALUE_DTYPE_H_
#define TFDIST_CORE_VALUE_DTYPE_H_

#include <cstdint>
#include <string>

namespace tfdist {

enum class DType : int8_t {
  kBool,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};

// Whether it is in the table; another build may have written one that this build lacks.
bool IsKnown(DType dtype);

// False where no type has this name.
bool FindDType(const std::string& name, DType* found);

// Bytes of one element.
int64_t SizeOf(DType dtype);

// "float32", "bool", ...
const char* NameOf(DType dtype);

// True for float16, bfloat16, float32 and float64.
bool IsFloating(DType dtype);

// True for floating types of fewer bits than float32, in which their sums accumulate.
bool IsNarrow(DType dtype);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_DTYPE_H_
