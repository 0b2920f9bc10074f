// What a reduction computes and how it is computed on one rank: the arithmetic of allreduce.
// Moves no data between ranks.
//
// Sums of float16 and bfloat16 accumulate in float32 and are rounded once; every other type
// accumulates in itself, integers modulo 2^bits. Parts are always taken in rank order, so every
// rank that reduces the same parts gets the same bits. Thread safe: no state.
#ifndef TFDIST_CORE_VALUE_REDUCTION_H_
#define TFDIST_CORE_VALUE_REDUCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/value/dtype.h"
#include "core/value/export.h"

namespace tfdist {

enum class Reduction { kSum, kAverage, kMin, kMax, kProduct, kAdasum };

// "sum", "average", ...
const char* NameOf(Reduction reduction);

// False where no reduction has this name.
TFDIST_API bool FindReduction(const std::string& name, Reduction* found);

// Whether there is one of this number; another build may have written one that this build lacks.
bool IsKnown(Reduction reduction);

// The accumulator is divided and then multiplied before it is rounded; floating types only.
// Division is apart because x / 3 is exact where x * (1 / 3) is not.
struct Scale {
  double divisor = 1;
  double multiplier = 1;
};

// The least power of two that is not less than `size`. A narrow sum of that many ranks, divided by
// it, loses no bits of normal numbers and overflows no sooner than the average.
double PowerOfTwoFor(int size);

struct ReduceSpec {
  DType dtype = DType::kFloat32;
  Reduction reduction = Reduction::kSum;  // kAverage sums: its division is in `scale`; no kAdasum
  Scale scale;
};

// output[i] = scale(parts[0][i] op parts[1][i] op ...), i < count elements. `output` may be one of
// the parts. NaN wins in min and max. Bools: sum and max are "or", min and product are "and".
void Reduce(const ReduceSpec& spec, const std::vector<const void*>& parts, int64_t count,
            void* output);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_REDUCTION_H_
