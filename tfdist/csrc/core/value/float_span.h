// Spans of float32 and of the two 16-bit formats, float16 (IEEE binary16) and bfloat16: conversions
// and sums. Not a number class: the 16-bit values are carried as their bits.
//
// Rounds to nearest, ties to even; keeps infinities, signed zeros and subnormals; a NaN stays a NaN
// and becomes quiet. The spans use F16C and AVX2 where the processor has them and give the same
// bits as the single-value functions everywhere. Thread safe: no state.
#ifndef TFDIST_CORE_VALUE_FLOAT_SPAN_H_
#define TFDIST_CORE_VALUE_FLOAT_SPAN_H_

#include <cstdint>
#include <vector>

namespace tfdist {

// Results go through the caches, or past them: for more than a cache holds, where a line would be
// fetched from memory only to be overwritten.
enum class Stores { kCached, kStreamed };

uint16_t FloatToHalf(float value);
float HalfToFloat(uint16_t bits);
uint16_t FloatToBfloat16(float value);
float Bfloat16ToFloat(uint16_t bits);

// Each element times `scale`, in float32. Source and target must not overlap.
void FloatToHalf(const float* source, int64_t count, float scale, uint16_t* target);
void HalfToFloat(const uint16_t* source, int64_t count, float scale, float* target,
                 Stores stores = Stores::kCached);
void FloatToBfloat16(const float* source, int64_t count, float scale, uint16_t* target);
void Bfloat16ToFloat(const uint16_t* source, int64_t count, float scale, float* target,
                     Stores stores = Stores::kCached);

// target[i] = the sum of element i of all parts in float32, divided by `divisor`, then times
// `multiplier`, then rounded. There is a part; `target` may be one of them.
void SumFloat(const std::vector<const void*>& parts, int64_t count, float divisor, float multiplier,
              float* target);
void SumHalf(const std::vector<const void*>& parts, int64_t count, float divisor, float multiplier,
             uint16_t* target);
void SumBfloat16(const std::vector<const void*>& parts, int64_t count, float divisor,
                 float multiplier, uint16_t* target);

// True when the spans run on vector instructions of this processor.
bool SpansAreVectorized();

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_FLOAT_SPAN_H_
