// The element types that collectives carry, with their sizes and names. Knows no framework.
#ifndef TFDIST_CORE_VALUE_DTYPE_H_
#define TFDIST_CORE_VALUE_DTYPE_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "core/value/export.h"

namespace tfdist {

// How elements are stored, and the type that they are summed and scaled in. The types without one
// in C++ are carried as their bits, and converted by core/value/float_span.cc.
template <typename T>
struct NativeFormat {
  using Stored = T;
  using Sum = T;
};

struct BoolFormat {  // any byte but 0 is true; results are 0 or 1
  using Stored = uint8_t;
  using Sum = uint8_t;
};

struct HalfFormat {  // IEEE binary16
  using Stored = uint16_t;
  using Sum = float;
  static Stored FromFloat(float value);
  static float ToFloat(Stored bits);
};

struct Bfloat16Format {
  using Stored = uint16_t;
  using Sum = float;
  static Stored FromFloat(float value);
  static float ToFloat(Stored bits);
};

// True for floating types of fewer bits than float32, in which their sums accumulate.
template <typename Format>
constexpr bool kIsNarrow = std::is_floating_point<typename Format::Sum>::value &&
                           sizeof(typename Format::Stored) < sizeof(typename Format::Sum);

// All types. Ranks compare the number, so a new one comes last.
#define TFDIST_DTYPES(ROW)                       \
  ROW(kBool, "bool", BoolFormat)                 \
  ROW(kUint8, "uint8", NativeFormat<uint8_t>)    \
  ROW(kInt8, "int8", NativeFormat<int8_t>)       \
  ROW(kUint16, "uint16", NativeFormat<uint16_t>) \
  ROW(kInt16, "int16", NativeFormat<int16_t>)    \
  ROW(kInt32, "int32", NativeFormat<int32_t>)    \
  ROW(kInt64, "int64", NativeFormat<int64_t>)    \
  ROW(kFloat16, "float16", HalfFormat)           \
  ROW(kBfloat16, "bfloat16", Bfloat16Format)     \
  ROW(kFloat32, "float32", NativeFormat<float>)  \
  ROW(kFloat64, "float64", NativeFormat<double>)

enum class DType : int8_t {
#define TFDIST_DTYPE(id, name, Format) id,
  TFDIST_DTYPES(TFDIST_DTYPE)
#undef TFDIST_DTYPE
};

// Calls `visit` with the format of the type.
template <typename Visit>
void VisitFormat(DType dtype, const Visit& visit) {
  switch (dtype) {
#define TFDIST_DTYPE(id, name, Format) \
  case DType::id:                      \
    return visit(Format());
    TFDIST_DTYPES(TFDIST_DTYPE)
#undef TFDIST_DTYPE
  }
}

// Whether it is in the table; another build may have written one that this build lacks.
bool IsKnown(DType dtype);

// False where no type has this name.
bool FindDType(const std::string& name, DType* found);

// Bytes of one element.
TFDIST_API int64_t SizeOf(DType dtype);

// "float32", "bool", ...
const char* NameOf(DType dtype);

// True for float16, bfloat16, float32 and float64.
bool IsFloating(DType dtype);

// Whether kIsNarrow is true of its format.
bool IsNarrow(DType dtype);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_DTYPE_H_
