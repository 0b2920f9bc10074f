// From one element type to another, scaled. Moves nothing between ranks. Thread safe: no state.
#ifndef TFDIST_CORE_CAST_H_
#define TFDIST_CORE_CAST_H_

#include <cstdint>

#include "core/dtype.h"

namespace tfdist {

// target = cast(source * scale) in one pass. Floating types are scaled in float32 (float64 when
// `from` is float64) and rounded once to `to`; float64 goes to 16 bit by way of float32. For all
// other types `from` must be `to` and `scale` 1. Spans do not overlap.
void CastScaled(DType from, const void* source, int64_t count, double scale, DType to,
                void* target);

}  // namespace tfdist

#endif  // TFDIST_CORE_CAST_H_
