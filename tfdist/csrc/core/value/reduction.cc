#include "core/value/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/value/float_span.h"
#include "core/value/name_table.h"

namespace tfdist {
namespace {

// In the order of the enumeration.
struct ReductionRow {
  const char* name;
};
constexpr ReductionRow kReductionTable[] = {{"sum"}, {"average"}, {"min"},
                                            {"max"}, {"product"}, {"adasum"}};

// Accumulator and operand stay in the first-level cache together.
constexpr int64_t kSumElements = 2048;

// How a type is stored, what it is summed in, and how to get from one to the other.
template <typename T>
struct Native {
  using Stored = T;
  using Sum = T;
  static const T* Operand(const T* stored, int64_t, T*) { return stored; }
  static void Store(const T* sums, int64_t count, T* stored) {
    std::memcpy(stored, sums, static_cast<size_t>(count) * sizeof(T));
  }
};

struct Half {
  using Stored = uint16_t;
  using Sum = float;
  static const float* Operand(const uint16_t* stored, int64_t count, float* buffer) {
    HalfToFloat(stored, count, 1, buffer);
    return buffer;
  }
  static void Store(const float* sums, int64_t count, uint16_t* stored) {
    FloatToHalf(sums, count, 1, stored);
  }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static const float* Operand(const uint16_t* stored, int64_t count, float* buffer) {
    Bfloat16ToFloat(stored, count, 1, buffer);
    return buffer;
  }
  static void Store(const float* sums, int64_t count, uint16_t* stored) {
    FloatToBfloat16(sums, count, 1, stored);
  }
};

// Any byte but 0 is true; results are 0 or 1.
struct Bool {
  using Stored = uint8_t;
  using Sum = uint8_t;
  static const uint8_t* Operand(const uint8_t* stored, int64_t count, uint8_t* buffer) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = stored[i] != 0 ? 1 : 0;
    return buffer;
  }
  static void Store(const uint8_t* sums, int64_t count, uint8_t* stored) {
    std::memcpy(stored, sums, static_cast<size_t>(count));
  }
};

// Integer arithmetic wraps: unsigned and not narrower than int, where overflow is defined.
template <typename T, bool is_integer = std::is_integral<T>::value>
struct Arithmetic {
  using Type = T;
};
template <typename T>
struct Arithmetic<T, true> {
  using Type = typename std::conditional<(sizeof(T) < 4), uint32_t,
                                         typename std::make_unsigned<T>::type>::type;
};

struct Add {
  template <typename T>
  static T Apply(T a, T b) {
    using W = typename Arithmetic<T>::Type;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
};

struct Multiply {
  template <typename T>
  static T Apply(T a, T b) {
    using W = typename Arithmetic<T>::Type;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
};

// `b != b` is true for NaN alone; a NaN in `a` stays because it compares false.
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    return (b < a) | (b != b) ? b : a;
  }
};

struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return (b > a) | (b != b) ? b : a;
  }
};

// `result` may be `a` or `b`.
template <typename Operator, typename T>
void Combine(const T* a, const T* b, int64_t count, T* result) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) result[i] = Operator::Apply(a[i], b[i]);
}

template <typename T>
void ApplyScale(const Scale& scale, int64_t count, T* sums) {
  if constexpr (std::is_floating_point<T>::value) {
    const T divisor = static_cast<T>(scale.divisor);
    const T multiplier = static_cast<T>(scale.multiplier);
    if (scale.divisor != 1) {
      for (int64_t i = 0; i < count; ++i) sums[i] /= divisor;
    }
    if (scale.multiplier != 1) {
      for (int64_t i = 0; i < count; ++i) sums[i] *= multiplier;
    }
  }
}

template <typename Type, typename Operator>
void ReduceChunks(const Scale& scale, const std::vector<const void*>& parts, int64_t count,
                  void* output) {
  using Stored = typename Type::Stored;
  using Sum = typename Type::Sum;
  alignas(64) Sum sums[kSumElements];
  alignas(64) Sum buffer[kSumElements];
  for (int64_t begin = 0; begin < count; begin += kSumElements) {
    const int64_t chunk = std::min(kSumElements, count - begin);
    const auto operand = [&](size_t p, Sum* room) {
      return Type::Operand(static_cast<const Stored*>(parts[p]) + begin, chunk, room);
    };
    const Sum* so_far = operand(0, sums);
    for (size_t p = 1; p < parts.size(); ++p) {
      Combine<Operator>(so_far, operand(p, buffer), chunk, sums);
      so_far = sums;
    }
    if (so_far != sums) std::memcpy(sums, so_far, static_cast<size_t>(chunk) * sizeof(Sum));
    ApplyScale(scale, chunk, sums);
    Type::Store(sums, chunk, static_cast<Stored*>(output) + begin);
  }
}

template <typename Type>
void Sum(const Scale& scale, const std::vector<const void*>& parts, int64_t count, void* output) {
  ReduceChunks<Type, Add>(scale, parts, count, output);
}

template <>
void Sum<Native<float>>(const Scale& scale, const std::vector<const void*>& parts, int64_t count,
                        void* output) {
  SumFloat(parts, count, static_cast<float>(scale.divisor), static_cast<float>(scale.multiplier),
           static_cast<float*>(output));
}

template <>
void Sum<Half>(const Scale& scale, const std::vector<const void*>& parts, int64_t count,
               void* output) {
  SumHalf(parts, count, static_cast<float>(scale.divisor), static_cast<float>(scale.multiplier),
          static_cast<uint16_t*>(output));
}

template <>
void Sum<Bfloat16>(const Scale& scale, const std::vector<const void*>& parts, int64_t count,
                   void* output) {
  SumBfloat16(parts, count, static_cast<float>(scale.divisor), static_cast<float>(scale.multiplier),
              static_cast<uint16_t*>(output));
}

// A quotient by a power of two is a product, to the bit.
Scale WithoutNeedlessDivision(const Scale& scale) {
  int exponent = 0;
  if (std::frexp(scale.divisor, &exponent) != 0.5) return scale;
  return {1, scale.multiplier / scale.divisor};
}

template <typename Type>
void ReduceType(const ReduceSpec& spec, const std::vector<const void*>& parts, int64_t count,
                void* output) {
  const Scale scale = WithoutNeedlessDivision(spec.scale);
  switch (spec.reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
    case Reduction::kAdasum:  // adasum.h has its arithmetic
      return Sum<Type>(scale, parts, count, output);
    case Reduction::kMin:
      return ReduceChunks<Type, Min>(scale, parts, count, output);
    case Reduction::kMax:
      return ReduceChunks<Type, Max>(scale, parts, count, output);
    case Reduction::kProduct:
      return ReduceChunks<Type, Multiply>(scale, parts, count, output);
  }
}

ReduceSpec BoolSpec(ReduceSpec spec) {
  if (spec.reduction != Reduction::kProduct && spec.reduction != Reduction::kMin) {
    spec.reduction = Reduction::kMax;
  }
  return spec;
}

}  // namespace

const char* NameOf(Reduction reduction) {
  return kReductionTable[static_cast<size_t>(reduction)].name;
}

bool FindReduction(const std::string& name, Reduction* found) {
  return FindRow(kReductionTable, name, found);
}

bool IsKnown(Reduction reduction) { return HasRow(kReductionTable, reduction); }

double PowerOfTwoFor(int size) {
  double power = 1;
  while (power < size) power *= 2;
  return power;
}

void Reduce(const ReduceSpec& spec, const std::vector<const void*>& parts, int64_t count,
            void* output) {
  switch (spec.dtype) {
    case DType::kBool:
      return ReduceType<Bool>(BoolSpec(spec), parts, count, output);
    case DType::kUint8:
      return ReduceType<Native<uint8_t>>(spec, parts, count, output);
    case DType::kInt8:
      return ReduceType<Native<int8_t>>(spec, parts, count, output);
    case DType::kUint16:
      return ReduceType<Native<uint16_t>>(spec, parts, count, output);
    case DType::kInt16:
      return ReduceType<Native<int16_t>>(spec, parts, count, output);
    case DType::kInt32:
      return ReduceType<Native<int32_t>>(spec, parts, count, output);
    case DType::kInt64:
      return ReduceType<Native<int64_t>>(spec, parts, count, output);
    case DType::kFloat16:
      return ReduceType<Half>(spec, parts, count, output);
    case DType::kBfloat16:
      return ReduceType<Bfloat16>(spec, parts, count, output);
    case DType::kFloat32:
      return ReduceType<Native<float>>(spec, parts, count, output);
    case DType::kFloat64:
      return ReduceType<Native<double>>(spec, parts, count, output);
  }
}

}  // namespace tfdist
