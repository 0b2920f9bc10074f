// The text of Adasum's kernels, run on the processor: a thread for each of a block's, a block after
// the other. Tells what the text computes, where there is no GPU to tell it; not how a GPU rounds.
//
// test_gpu.py builds it with `gpu_test ... source` as kernels.inc.
#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "core/algorithm/adasum.h"
#include "cuda/adasum_kernels.h"
#include "expect.h"

// What CUDA declares by itself.
struct Index {
  unsigned x;
};
static thread_local Index threadIdx;
static Index blockIdx, gridDim;
static pthread_barrier_t block_barrier;
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __syncthreads() pthread_barrier_wait(&block_barrier)
static double __dadd_rn(double a, double b) { return a + b; }
static double __dmul_rn(double a, double b) { return a * b; }

#include "kernels.inc"

using tfdist::AdasumProducts;
using tfdist::DType;

static_assert(sizeof(Spans) == sizeof(tfdist::AdasumTable), "both sides have one table");

namespace {

void Launch(int blocks, const std::function<void()>& kernel) {
  gridDim.x = static_cast<unsigned>(blocks);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    pthread_barrier_init(&block_barrier, nullptr, THREADS);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < THREADS; ++i) {
      threads.emplace_back([i, &kernel] {
        threadIdx.x = i;
        kernel();
      });
    }
    for (std::thread& thread : threads) thread.join();
    pthread_barrier_destroy(&block_barrier);
  }
}

// Spans of these counts, one behind the other, from element 16 on.
Spans SpansOf(const std::vector<int64_t>& counts) {
  Spans spans = {};
  int64_t start = 16;
  for (size_t s = 0; s < counts.size(); ++s) {
    spans.starts[s] = start;
    spans.counts[s] = counts[s];
    spans.pieces[s + 1] = spans.pieces[s] + static_cast<int>((counts[s] + PIECE - 1) / PIECE);
    start += counts[s];
  }
  return spans;
}

template <typename T>
std::vector<Vector<T>> Values(int64_t count, double speed) {
  std::vector<Vector<T>> vectors(static_cast<size_t>(count / VECTOR) + 1);
  for (int64_t i = 0; i < count; ++i) {
    const double value =
        std::sin(static_cast<double>(i) * 0.7) + std::cos(static_cast<double>(i) * speed);
    vectors[static_cast<size_t>(i / VECTOR)].values[i % VECTOR] = static_cast<T>(value);
  }
  return vectors;
}

bool Near(double a, double b, const AdasumProducts& scale) {
  return std::fabs(a - b) <= 1e-12 * (scale.aa + scale.bb);
}

template <typename T>
void Check(DType type, void (*multiply)(Spans, int, const T*, const T*, double*),
           void (*combine)(Spans, int, const double*, const T*, T*)) {
  const std::vector<int64_t> counts = {0, 8, PIECE, 0, PIECE + 8, 4, 3 * PIECE - 4, 24, 0};
  const Spans spans = SpansOf(counts);
  const int number = static_cast<int>(counts.size());
  const int64_t size = spans.starts[number - 1];
  std::vector<Vector<T>> vectors = Values<T>(size, 0.31), others = Values<T>(size, 0.17);
  T* const a = vectors[0].values;
  const T* const b = others[0].values;
  for (int64_t i = 0; i < counts[5]; ++i) a[spans.starts[5] + i] = 0;  // changes nothing
  std::vector<double> partials(static_cast<size_t>(spans.pieces[number]) * 3);
  std::vector<AdasumProducts> products(counts.size()), again(counts.size());
  double* const numbers = &products[0].ab;
  Launch(spans.pieces[number], [&] { multiply(spans, number, a, b, partials.data()); });
  Launch(number, [&] { adasum_sum(spans, number, partials.data(), numbers); });
  Launch(3, [&] { multiply(spans, number, a, b, partials.data()); });
  Launch(2, [&] { adasum_sum(spans, number, partials.data(), &again[0].ab); });
  EXPECT(std::memcmp(products.data(), again.data(), products.size() * sizeof(products[0])) == 0);
  std::vector<Vector<T>> expected = vectors;
  for (size_t s = 0; s < counts.size(); ++s) {
    T* const of_a = expected[0].values + spans.starts[s];
    const T* const of_b = b + spans.starts[s];
    const AdasumProducts own = MultiplyParts(type, of_a, of_b, counts[s]);
    EXPECT(Near(products[s].ab, own.ab, own));
    EXPECT(Near(products[s].aa, own.aa, own));
    EXPECT(Near(products[s].bb, own.bb, own));
    CombineParts(type, products[s], of_b, counts[s], of_a);
  }
  Launch(4, [&] { combine(spans, number, numbers, b, a); });
  EXPECT(std::memcmp(a, expected[0].values, vectors.size() * sizeof(Vector<T>)) == 0);
}

}  // namespace

TEST(KernelsOfFloat32) {
  Check<float>(DType::kFloat32, adasum_products_float32, adasum_combine_float32);
}

TEST(KernelsOfFloat64) {
  Check<double>(DType::kFloat64, adasum_products_float64, adasum_combine_float64);
}

int main() { return expect::RunTests(""); }
