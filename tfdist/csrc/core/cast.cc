#include "core/cast.h"

#include <algorithm>
#include <cstring>

#include "core/half.h"

namespace tfdist {
namespace {

constexpr int64_t kChunkElements = 2048;  // the float32 copy in between stays in cache

template <typename From, typename To>
void Multiply(const From* __restrict__ source, int64_t count, double scale,
              To* __restrict__ target) {
  const From factor = static_cast<From>(scale);
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<To>(source[i] * factor);
}

// Elements [begin, begin + count) of `source`, scaled, as float32.
void LoadScaled(DType from, const void* source, int64_t begin, int64_t count, double scale,
                float* target) {
  if (from == DType::kFloat64) {
    return Multiply(static_cast<const double*>(source) + begin, count, scale, target);
  }
  if (from == DType::kFloat32) {
    return Multiply(static_cast<const float*>(source) + begin, count, scale, target);
  }
  const uint16_t* bits = static_cast<const uint16_t*>(source) + begin;
  if (from == DType::kFloat16) {
    HalfToFloat(bits, count, target);
  } else {
    Bfloat16ToFloat(bits, count, target);
  }
  const float factor = static_cast<float>(scale);
  for (int64_t i = 0; i < count; ++i) target[i] *= factor;
}

void StoreFloats(const float* source, int64_t begin, int64_t count, DType to, void* target) {
  if (to == DType::kFloat16) {
    FloatToHalf(source, count, static_cast<uint16_t*>(target) + begin);
  } else {
    FloatToBfloat16(source, count, static_cast<uint16_t*>(target) + begin);
  }
}

// From a 16-bit wire to a wide tensor: scaled in the tensor's type, so that no range is lost.
template <typename To>
void Widen(DType from, const void* source, int64_t count, double scale, To* target) {
  alignas(64) float chunk[kChunkElements];
  for (int64_t begin = 0; begin < count; begin += kChunkElements) {
    const int64_t elements = std::min(kChunkElements, count - begin);
    LoadScaled(from, source, begin, elements, 1.0, chunk);
    const To factor = static_cast<To>(scale);
    for (int64_t i = 0; i < elements; ++i) target[begin + i] = static_cast<To>(chunk[i]) * factor;
  }
}

void Narrow(DType from, const void* source, int64_t count, double scale, DType to, void* target) {
  alignas(64) float chunk[kChunkElements];
  for (int64_t begin = 0; begin < count; begin += kChunkElements) {
    const int64_t elements = std::min(kChunkElements, count - begin);
    LoadScaled(from, source, begin, elements, scale, chunk);
    StoreFloats(chunk, begin, elements, to, target);
  }
}

}  // namespace

void CastScaled(DType from, const void* source, int64_t count, double scale, DType to,
                void* target) {
  if (from == to && scale == 1) {
    if (count > 0) std::memcpy(target, source, static_cast<size_t>(count * SizeOf(from)));
  } else if (to == DType::kFloat64 && from == DType::kFloat64) {
    Multiply(static_cast<const double*>(source), count, scale, static_cast<double*>(target));
  } else if (to == DType::kFloat64) {
    Widen(from, source, count, scale, static_cast<double*>(target));
  } else if (to == DType::kFloat32 && from == DType::kFloat32) {
    Multiply(static_cast<const float*>(source), count, scale, static_cast<float*>(target));
  } else if (to == DType::kFloat32) {
    Widen(from, source, count, scale, static_cast<float*>(target));
  } else {
    Narrow(from, source, count, scale, to, target);
  }
}

}  // namespace tfdist
