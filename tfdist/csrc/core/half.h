// Conversions between float32 and the two 16-bit formats, float16 (IEEE binary16) and bfloat16.
// Not a number class: the 16-bit values are carried as their bits and never computed with.
//
// Rounds to nearest, ties to even; keeps infinities, signed zeros and subnormals; a NaN stays a NaN
// and becomes quiet. The spans use F16C and AVX2 where the processor has them and give the same
// bits as the single-value functions everywhere. Source and target of a span must not overlap.
// Thread safe: no state.
#ifndef TFDIST_CORE_HALF_H_
#define TFDIST_CORE_HALF_H_

#include <cstdint>

namespace tfdist {

uint16_t FloatToHalf(float value);
float HalfToFloat(uint16_t bits);
uint16_t FloatToBfloat16(float value);
float Bfloat16ToFloat(uint16_t bits);

void FloatToHalf(const float* source, int64_t count, uint16_t* target);
void HalfToFloat(const uint16_t* source, int64_t count, float* target);
void FloatToBfloat16(const float* source, int64_t count, uint16_t* target);
void Bfloat16ToFloat(const uint16_t* source, int64_t count, float* target);

// True when the spans run on vector instructions of this processor.
bool HalfIsVectorized();

}  // namespace tfdist

#endif  // TFDIST_CORE_HALF_H_
