// Spans of float32 and of the narrow formats (kIsNarrow in dtype.h): conversions and sums. Not a
// number class: narrow values are carried as their bits.
//
// Rounds to nearest, ties to even; keeps infinities, signed zeros and subnormals; a NaN stays a NaN
// and becomes quiet. The spans use F16C and AVX2 where the processor has them and give the same
// bits as the formats' functions on single values everywhere. Thread safe: no state.
#ifndef TFDIST_CORE_VALUE_FLOAT_SPAN_H_
#define TFDIST_CORE_VALUE_FLOAT_SPAN_H_

#include <cstdint>
#include <vector>

#include "core/value/dtype.h"

namespace tfdist {

// Results go through the caches, or past them: for more than a cache holds, where a line would be
// fetched from memory only to be overwritten.
enum class Stores { kCached, kStreamed };

// Of a narrow format; of float32 there is Sum only.
template <typename Format>
struct FloatSpan {
  using Stored = typename Format::Stored;

  // Each element times `scale`, in float32. Source and target must not overlap.
  static void Narrow(const float* source, int64_t count, float scale, Stored* target);
  static void Widen(const Stored* source, int64_t count, float scale, float* target,
                    Stores stores = Stores::kCached);

  // target[i] = the sum of element i of all parts in float32, divided by `divisor`, then times
  // `multiplier`, then rounded. There is a part; `target` may be one of them.
  static void Sum(const std::vector<const void*>& parts, int64_t count, float divisor,
                  float multiplier, Stored* target);
};

// True when the spans run on vector instructions of this processor.
bool SpansAreVectorized();

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_FLOAT_SPAN_H_
