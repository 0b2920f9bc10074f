// From one element type to another, scaled. Moves nothing between ranks. Thread safe: no state.
#ifndef TFDIST_CORE_VALUE_CAST_H_
#define TFDIST_CORE_VALUE_CAST_H_

#include <cstdint>

#include "core/value/dtype.h"
#include "core/value/float_span.h"

namespace tfdist {

// target = cast(source * scale) in one pass. `from` is `to`, or one of them has 16 bits and the
// other is floating too. Scaled in float32, or in float64 where one is float64, and rounded once to
// `to`; float64 goes to 16 bits by way of float32. Other than floating types have scale 1. Spans do
// not overlap. `stores` counts where 16 bits become float32; elsewhere it changed nothing
// measurable.
void CastScaled(DType from, const void* source, int64_t count, double scale, DType to, void* target,
                Stores stores = Stores::kCached);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_CAST_H_
