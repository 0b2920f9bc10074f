// The arithmetic of Adasum on one rank: how two gradients become one. Moves no data.
//
// Adasum (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, eq. 4) adds
// what two gradients disagree on and averages what they agree on:
//
//   Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// for each tensor by itself, and folds n gradients as a binary tree of neighbours; where a level
// has an odd number, its last one passes on unchanged. No state; thread safe.
#ifndef TFDIST_CORE_ALGORITHM_ADASUM_H_
#define TFDIST_CORE_ALGORITHM_ADASUM_H_

#include <cstdint>

#include "core/value/dtype.h"

namespace tfdist {

// The products of two gradients, or of a part of them: such parts add up.
struct AdasumProducts {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

// The type in which gradients of `dtype` are kept while they are combined: float64 for float64,
// else float32.
DType AdasumType(DType dtype);

// `a` and `b` are of an AdasumType.
AdasumProducts MultiplyParts(DType type, const void* a, const void* b, int64_t count);

// a = Adasum(a, b), given the products of the whole gradients. A gradient of zeros changes nothing.
void CombineParts(DType type, const AdasumProducts& products, const void* b, int64_t count,
                  void* a);

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_ADASUM_H_
