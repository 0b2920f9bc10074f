#include "core/value/float_span.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tfdist {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uintptr_t kVectorBytes = 32;

// Magnitudes below 2^-14, where the last place of a half is worth 2^-24.
uint16_t RoundToSubnormalHalf(uint32_t magnitude) {
  if (magnitude < 0x33000000) return 0;  // below 2^-25: less than half of the smallest subnormal
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t half = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t tie = 1u << (shift - 1);
  const bool up = rest > tie || (rest == tie && (half & 1) != 0);
  return static_cast<uint16_t>(half + (up ? 1 : 0));
}

using FloatFormat = NativeFormat<float>;

template <typename Format>
float ToFloat(typename Format::Stored stored) {
  if constexpr (kIsNarrow<Format>) return Format::ToFloat(stored);
  return stored;
}

template <typename Format>
typename Format::Stored FromFloat(float value) {
  if constexpr (kIsNarrow<Format>) return Format::FromFloat(value);
  return value;
}

// The vector part of each span: returns how many leading elements it has converted.
#if defined(__x86_64__)

#define TFDIST_VECTOR __attribute__((target("avx2,f16c")))

constexpr int kLanes = 8;

bool HasVectors() {
  // By its bit: older compilers do not know "f16c" by name.
  unsigned unused = 0;
  unsigned features = 0;
  static const bool has = __builtin_cpu_supports("avx2") &&
                          __get_cpuid(1, &unused, &unused, &features, &unused) != 0 &&
                          (features & bit_F16C) != 0;
  return has;
}

template <typename Format>
struct Vectors;

template <>
struct Vectors<FloatFormat> {
  TFDIST_VECTOR static __m256 Load(const float* source) { return _mm256_loadu_ps(source); }
  TFDIST_VECTOR static void Store(__m256 values, float* target) {
    _mm256_storeu_ps(target, values);
  }
};

template <>
struct Vectors<HalfFormat> {
  TFDIST_VECTOR static __m256 Load(const uint16_t* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  TFDIST_VECTOR static void Store(__m256 values, uint16_t* target) {
    const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), halves);
  }
};

template <>
struct Vectors<Bfloat16Format> {
  TFDIST_VECTOR static __m256 Load(const uint16_t* source) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  TFDIST_VECTOR static void Store(__m256 values, uint16_t* target) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd);
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kInfinityBits));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), packed);
  }
};

template <typename Format>
TFDIST_VECTOR int64_t VectorNarrow(const float* source, int64_t count, float scale,
                                   typename Format::Stored* target) {
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vectors<Format>::Store(_mm256_mul_ps(_mm256_loadu_ps(source + i), factor), target + i);
  }
  return i;
}

// `target` lies at a multiple of kVectorBytes where the results are streamed.
template <typename Format, Stores stores>
TFDIST_VECTOR int64_t VectorWiden(const typename Format::Stored* source, int64_t count, float scale,
                                  float* target) {
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 values = _mm256_mul_ps(Vectors<Format>::Load(source + i), factor);
    if constexpr (stores == Stores::kStreamed) {
      _mm256_stream_ps(target + i, values);
    } else {
      _mm256_storeu_ps(target + i, values);
    }
  }
  if constexpr (stores == Stores::kStreamed) _mm_sfence();  // before another thread is told
  return i;
}

template <typename Format, typename Stored = typename Format::Stored>
TFDIST_VECTOR int64_t VectorSum(const std::vector<const void*>& parts, int64_t count, float divisor,
                                float multiplier, Stored* target) {
  const __m256 divisors = _mm256_set1_ps(divisor);
  const __m256 multipliers = _mm256_set1_ps(multiplier);
  const auto part = [&](size_t p) { return static_cast<const Stored*>(parts[p]); };
  int64_t i = 0;
  // Two vectors a turn, because finding the parts takes as long as adding one.
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    __m256 low = Vectors<Format>::Load(part(0) + i);
    __m256 high = Vectors<Format>::Load(part(0) + i + kLanes);
    for (size_t p = 1; p < parts.size(); ++p) {
      low = _mm256_add_ps(low, Vectors<Format>::Load(part(p) + i));
      high = _mm256_add_ps(high, Vectors<Format>::Load(part(p) + i + kLanes));
    }
    if (divisor != 1) {
      low = _mm256_div_ps(low, divisors);
      high = _mm256_div_ps(high, divisors);
    }
    Vectors<Format>::Store(_mm256_mul_ps(low, multipliers), target + i);
    Vectors<Format>::Store(_mm256_mul_ps(high, multipliers), target + i + kLanes);
  }
  return i;
}

#else

bool HasVectors() { return false; }

template <typename Format>
int64_t VectorNarrow(const float*, int64_t, float, typename Format::Stored*) {
  return 0;
}
template <typename Format, Stores stores>
int64_t VectorWiden(const typename Format::Stored*, int64_t, float, float*) {
  return 0;
}
template <typename Format>
int64_t VectorSum(const std::vector<const void*>&, int64_t, float, float,
                  typename Format::Stored*) {
  return 0;
}

#endif

}  // namespace

template <typename Format>
void FloatSpan<Format>::Narrow(const float* source, int64_t count, float scale, Stored* target) {
  int64_t i = HasVectors() ? VectorNarrow<Format>(source, count, scale, target) : 0;
  for (; i < count; ++i) target[i] = Format::FromFloat(source[i] * scale);
}

template <typename Format>
void FloatSpan<Format>::Widen(const Stored* source, int64_t count, float scale, float* target,
                              Stores stores) {
  const auto one = [&](int64_t i) { target[i] = Format::ToFloat(source[i]) * scale; };
  int64_t i = 0;
  if (HasVectors() && stores == Stores::kStreamed) {
    for (; i < count && reinterpret_cast<uintptr_t>(target + i) % kVectorBytes != 0; ++i) one(i);
    i += VectorWiden<Format, Stores::kStreamed>(source + i, count - i, scale, target + i);
  } else if (HasVectors()) {
    i = VectorWiden<Format, Stores::kCached>(source, count, scale, target);
  }
  for (; i < count; ++i) one(i);
}

template <typename Format>
void FloatSpan<Format>::Sum(const std::vector<const void*>& parts, int64_t count, float divisor,
                            float multiplier, Stored* target) {
  int64_t i = 0;
  if (HasVectors()) i = VectorSum<Format>(parts, count, divisor, multiplier, target);
  for (; i < count; ++i) {
    float sum = ToFloat<Format>(static_cast<const Stored*>(parts[0])[i]);
    for (size_t p = 1; p < parts.size(); ++p)
      sum += ToFloat<Format>(static_cast<const Stored*>(parts[p])[i]);
    target[i] = FromFloat<Format>(sum / divisor * multiplier);
  }
}

uint16_t HalfFormat::FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > kInfinityBits) {
    return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000) return sign | RoundToSubnormalHalf(magnitude);
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

float HalfFormat::ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {
    return FloatOf(sign | BitsOf(static_cast<float>(mantissa) * 0x1p-24f));
  }
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
    return FloatOf(sign | kInfinityBits | quiet | (mantissa << 13));
  }
  return FloatOf(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t Bfloat16Format::FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffff) > kInfinityBits) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float Bfloat16Format::ToFloat(uint16_t bits) {
  const uint32_t quiet = (bits & 0x7fff) > (kInfinityBits >> 16) ? 0x400000 : 0;
  return FloatOf(static_cast<uint32_t>(bits) << 16 | quiet);
}

template struct FloatSpan<HalfFormat>;
template struct FloatSpan<Bfloat16Format>;
template void FloatSpan<FloatFormat>::Sum(const std::vector<const void*>&, int64_t, float, float,
                                          float*);

bool SpansAreVectorized() { return HasVectors(); }

}  // namespace tfdist
