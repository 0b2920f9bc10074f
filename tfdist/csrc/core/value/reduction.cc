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

// What is stored as it is summed; `buffer` has room for it.
template <typename Format>
const typename Format::Sum* Operand(const typename Format::Stored* stored, int64_t count,
                                    typename Format::Sum* buffer) {
  if constexpr (kIsNarrow<Format>) {
    FloatSpan<Format>::Widen(stored, count, 1, buffer);
  } else if constexpr (std::is_same<Format, BoolFormat>::value) {
    for (int64_t i = 0; i < count; ++i) buffer[i] = stored[i] != 0 ? 1 : 0;
  } else {
    return stored;
  }
  return buffer;
}

template <typename Format>
void Store(const typename Format::Sum* sums, int64_t count, typename Format::Stored* stored) {
  if constexpr (kIsNarrow<Format>) {
    FloatSpan<Format>::Narrow(sums, count, 1, stored);
  } else {
    std::memcpy(stored, sums, static_cast<size_t>(count) * sizeof(*stored));
  }
}

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

template <typename Format, typename Operator>
void ReduceChunks(const Scale& scale, const std::vector<const void*>& parts, int64_t count,
                  void* output) {
  using Stored = typename Format::Stored;
  using Sum = typename Format::Sum;
  alignas(64) Sum sums[kSumElements];
  alignas(64) Sum buffer[kSumElements];
  for (int64_t begin = 0; begin < count; begin += kSumElements) {
    const int64_t chunk = std::min(kSumElements, count - begin);
    const auto operand = [&](size_t p, Sum* room) {
      return Operand<Format>(static_cast<const Stored*>(parts[p]) + begin, chunk, room);
    };
    const Sum* so_far = operand(0, sums);
    for (size_t p = 1; p < parts.size(); ++p) {
      Combine<Operator>(so_far, operand(p, buffer), chunk, sums);
      so_far = sums;
    }
    if (so_far != sums) std::memcpy(sums, so_far, static_cast<size_t>(chunk) * sizeof(Sum));
    ApplyScale(scale, chunk, sums);
    Store<Format>(sums, chunk, static_cast<Stored*>(output) + begin);
  }
}

template <typename Format>
void Sum(const Scale& scale, const std::vector<const void*>& parts, int64_t count, void* output) {
  if constexpr (std::is_same<typename Format::Sum, float>::value) {
    FloatSpan<Format>::Sum(parts, count, static_cast<float>(scale.divisor),
                           static_cast<float>(scale.multiplier),
                           static_cast<typename Format::Stored*>(output));
  } else {
    ReduceChunks<Format, Add>(scale, parts, count, output);
  }
}

// A quotient by a power of two is a product, to the bit.
Scale WithoutNeedlessDivision(const Scale& scale) {
  int exponent = 0;
  if (std::frexp(scale.divisor, &exponent) != 0.5) return scale;
  return {1, scale.multiplier / scale.divisor};
}

template <typename Format>
void ReduceFormat(const ReduceSpec& spec, const std::vector<const void*>& parts, int64_t count,
                  void* output) {
  const Scale scale = WithoutNeedlessDivision(spec.scale);
  switch (spec.reduction) {
    case Reduction::kSum:
    case Reduction::kAverage:
    case Reduction::kAdasum:  // adasum.h has its arithmetic
      return Sum<Format>(scale, parts, count, output);
    case Reduction::kMin:
      return ReduceChunks<Format, Min>(scale, parts, count, output);
    case Reduction::kMax:
      return ReduceChunks<Format, Max>(scale, parts, count, output);
    case Reduction::kProduct:
      return ReduceChunks<Format, Multiply>(scale, parts, count, output);
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
  VisitFormat(spec.dtype, [&](auto format) {
    using Format = decltype(format);
    const bool is_bool = std::is_same<Format, BoolFormat>::value;
    ReduceFormat<Format>(is_bool ? BoolSpec(spec) : spec, parts, count, output);
  });
}

}  // namespace tfdist
