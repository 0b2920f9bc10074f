// The CUDA C++ of Adasum's arithmetic, compiled for the device that is found (kernel_compiler.h).
// What core/algorithm/adasum.h is on the processor.
#ifndef TFDIST_CUDA_ADASUM_KERNELS_H_
#define TFDIST_CUDA_ADASUM_KERNELS_H_

#include <cstdint>
#include <string>

namespace tfdist {

// Gradients of one launch. The kernels' arguments, of which the table is the first, fit into 4 KiB.
constexpr int kMostAdasumSpans = 192;

// Starts and counts are multiples of this many elements.
constexpr int64_t kAdasumVector = 4;

// Elements whose products one block of threads adds up.
constexpr int64_t kAdasumPiece = 16384;

constexpr int kAdasumThreads = 256;

struct AdasumTable {
  int64_t starts[kMostAdasumSpans];      // from the beginning of a part
  int64_t counts[kMostAdasumSpans];      // elements; may be 0
  int32_t pieces[kMostAdasumSpans + 1];  // the first of each, and behind the last
};

// Has, where T is float32 or float64:
// - adasum_products_T(AdasumTable, int spans, a, b, partials): for each piece its a.b, a.a and b.b;
// - adasum_sum(AdasumTable, int spans, partials, products): for each span the sums over its pieces,
//   by a block each;
// - adasum_combine_T(AdasumTable, int spans, products, b, a): a = Adasum(a, b).
// Products are float64. Sums are taken in an order that depends on the table alone.
std::string AdasumKernels();

}  // namespace tfdist

#endif  // TFDIST_CUDA_ADASUM_KERNELS_H_
