#include "core/value/cast.h"

#include <algorithm>
#include <cstring>

namespace tfdist {
namespace {

constexpr int64_t kCastElements = 2048;  // the float32 copy in between stays in cache

template <typename From, typename To>
void Multiply(const From* __restrict__ source, int64_t count, double scale,
              To* __restrict__ target) {
  const From factor = static_cast<From>(scale);
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<To>(source[i] * factor);
}

void Narrow(const float* source, int64_t count, double scale, DType to, void* target) {
  VisitFormat(to, [&](auto format) {
    using Format = decltype(format);
    if constexpr (kIsNarrow<Format>) {
      FloatSpan<Format>::Narrow(source, count, static_cast<float>(scale),
                                static_cast<typename Format::Stored*>(target));
    }
  });
}

void Widen(DType from, const void* source, int64_t count, double scale, float* target,
           Stores stores = Stores::kCached) {
  VisitFormat(from, [&](auto format) {
    using Format = decltype(format);
    if constexpr (kIsNarrow<Format>) {
      FloatSpan<Format>::Widen(static_cast<const typename Format::Stored*>(source), count,
                               static_cast<float>(scale), target, stores);
    }
  });
}

// Between two types of which none is float32.
void CastByFloat(DType from, const void* source, int64_t count, double scale, DType to,
                 void* target) {
  alignas(64) float chunk[kCastElements];
  for (int64_t begin = 0; begin < count; begin += kCastElements) {
    const int64_t elements = std::min(kCastElements, count - begin);
    const void* const part = static_cast<const char*>(source) + begin * SizeOf(from);
    void* const result = static_cast<char*>(target) + begin * SizeOf(to);
    if (from == DType::kFloat64) {  // scaled before its range gets smaller
      Multiply(static_cast<const double*>(part), elements, scale, chunk);
      Narrow(chunk, elements, 1, to, result);
    } else if (to == DType::kFloat64) {  // and after it has got larger
      Widen(from, part, elements, 1, chunk);
      double* const wide = static_cast<double*>(result);
      for (int64_t i = 0; i < elements; ++i) wide[i] = chunk[i] * scale;
    } else {
      Widen(from, part, elements, scale, chunk);
      Narrow(chunk, elements, 1, to, result);
    }
  }
}

}  // namespace

void CastScaled(DType from, const void* source, int64_t count, double scale, DType to, void* target,
                Stores stores) {
  if (from == to && scale == 1) {
    if (count > 0) std::memcpy(target, source, static_cast<size_t>(count * SizeOf(from)));
  } else if (from == DType::kFloat64 && to == DType::kFloat64) {
    Multiply(static_cast<const double*>(source), count, scale, static_cast<double*>(target));
  } else if (from == DType::kFloat32 && to == DType::kFloat32) {
    Multiply(static_cast<const float*>(source), count, scale, static_cast<float*>(target));
  } else if (from == DType::kFloat32) {
    Narrow(static_cast<const float*>(source), count, scale, to, target);
  } else if (to == DType::kFloat32) {
    Widen(from, source, count, scale, static_cast<float*>(target), stores);
  } else {
    CastByFloat(from, source, count, scale, to, target);
  }
}

}  // namespace tfdist
