#include "core/half.h"

#include <cstring>

#if defined(__x86_64__)
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

// The vector part of each span: returns how many leading elements it has converted.
#if defined(__x86_64__)

bool HasVectors() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

__attribute__((target("avx2,f16c"))) int64_t VectorFloatToHalf(const float* source, int64_t count,
                                                               uint16_t* target) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves =
        _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), halves);
  }
  return i;
}

__attribute__((target("avx2,f16c"))) int64_t VectorHalfToFloat(const uint16_t* source,
                                                               int64_t count, float* target) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(halves));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) int64_t VectorFloatToBfloat16(const float* source,
                                                                   int64_t count,
                                                                   uint16_t* target) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i below_tie = _mm256_set1_epi32(0x7fff);
  const __m256i magnitude_mask = _mm256_set1_epi32(0x7fffffff);
  const __m256i infinity = _mm256_set1_epi32(kInfinityBits);
  const __m256i quiet = _mm256_set1_epi32(0x40);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, one);
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(below_tie, odd)), 16);
    const __m256i is_nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude_mask), infinity);
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), is_nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), packed);
  }
  return i;
}

__attribute__((target("avx2,f16c"))) int64_t VectorBfloat16ToFloat(const uint16_t* source,
                                                                   int64_t count, float* target) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i), wide);
  }
  return i;
}

#else

bool HasVectors() { return false; }
int64_t VectorFloatToHalf(const float*, int64_t, uint16_t*) { return 0; }
int64_t VectorHalfToFloat(const uint16_t*, int64_t, float*) { return 0; }
int64_t VectorFloatToBfloat16(const float*, int64_t, uint16_t*) { return 0; }
int64_t VectorBfloat16ToFloat(const uint16_t*, int64_t, float*) { return 0; }

#endif

}  // namespace

uint16_t FloatToHalf(float value) {
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

float HalfToFloat(uint16_t bits) {
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

uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffff) > kInfinityBits) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float Bfloat16ToFloat(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }

void FloatToHalf(const float* source, int64_t count, uint16_t* target) {
  int64_t i = HasVectors() ? VectorFloatToHalf(source, count, target) : 0;
  for (; i < count; ++i) target[i] = FloatToHalf(source[i]);
}

void HalfToFloat(const uint16_t* source, int64_t count, float* target) {
  int64_t i = HasVectors() ? VectorHalfToFloat(source, count, target) : 0;
  for (; i < count; ++i) target[i] = HalfToFloat(source[i]);
}

void FloatToBfloat16(const float* source, int64_t count, uint16_t* target) {
  int64_t i = HasVectors() ? VectorFloatToBfloat16(source, count, target) : 0;
  for (; i < count; ++i) target[i] = FloatToBfloat16(source[i]);
}

void Bfloat16ToFloat(const uint16_t* source, int64_t count, float* target) {
  int64_t i = HasVectors() ? VectorBfloat16ToFloat(source, count, target) : 0;
  for (; i < count; ++i) target[i] = Bfloat16ToFloat(source[i]);
}

bool HalfIsVectorized() { return HasVectors(); }

}  // namespace tfdist
