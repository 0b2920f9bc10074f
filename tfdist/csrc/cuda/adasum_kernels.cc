#include "cuda/adasum_kernels.h"

namespace tfdist {
namespace {

// A block takes a piece of a gradient, finds the gradient by bisection, and its threads take
// vectors of four. Whatever the grid is, thread i of a piece adds the same elements in the same
// order, and threads are added up as a tree.
constexpr char kSource[] = R"cuda(
typedef long long int64;

struct Spans {
  int64 starts[MOST_SPANS];
  int64 counts[MOST_SPANS];
  int pieces[MOST_SPANS + 1];
};

template <typename T>
struct alignas(sizeof(T) * VECTOR) Vector {
  T values[VECTOR];
};

// The span that `piece` is of.
__device__ __forceinline__ int SpanAt(const Spans& spans, int count, int piece) {
  int low = 0;
  int high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (spans.pieces[middle] <= piece) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The elements of a piece, from the beginning of a part.
struct Range {
  int64 begin;
  int64 end;
};

__device__ __forceinline__ Range RangeOf(const Spans& spans, int span, int piece) {
  const int64 first = (piece - spans.pieces[span]) * static_cast<int64>(PIECE);
  const int64 rest = spans.counts[span] - first;
  const int64 begin = spans.starts[span] + first;
  return {begin, begin + (rest < PIECE ? rest : PIECE)};
}

// target[k] = the sum of own[k] over the threads of a block.
__device__ __forceinline__ void AddUp(const double (&own)[3], double* target) {
  __shared__ double sums[3][THREADS];
  const int thread = threadIdx.x;
  for (int k = 0; k < 3; ++k) sums[k][thread] = own[k];
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
      for (int k = 0; k < 3; ++k) sums[k][thread] += sums[k][thread + half];
    }
  }
  if (thread == 0) {
    for (int k = 0; k < 3; ++k) target[k] = sums[k][0];
  }
  __syncthreads();  // the next call writes there
}

template <typename T>
__device__ __forceinline__ void Products(const Spans& spans, int count, const T* a, const T* b,
                                         double* partials) {
  for (int piece = blockIdx.x; piece < spans.pieces[count]; piece += gridDim.x) {
    const Range range = RangeOf(spans, SpanAt(spans, count, piece), piece);
    double sums[3] = {};
    for (int64 i = range.begin + VECTOR * threadIdx.x; i < range.end; i += VECTOR * THREADS) {
      const Vector<T> x = *reinterpret_cast<const Vector<T>*>(a + i);
      const Vector<T> y = *reinterpret_cast<const Vector<T>*>(b + i);
#pragma unroll
      for (int k = 0; k < VECTOR; ++k) {
        const double of_a = x.values[k];
        const double of_b = y.values[k];
        sums[0] += of_a * of_b;
        sums[1] += of_a * of_a;
        sums[2] += of_b * of_b;
      }
    }
    AddUp(sums, partials + 3 * static_cast<int64>(piece));
  }
}

extern "C" __global__ void adasum_sum(const __grid_constant__ Spans spans, int count,
                                      const double* partials, double* products) {
  for (int span = blockIdx.x; span < count; span += gridDim.x) {
    double sums[3] = {};
    for (int piece = spans.pieces[span] + threadIdx.x; piece < spans.pieces[span + 1];
         piece += THREADS) {
      for (int k = 0; k < 3; ++k) sums[k] += partials[3 * static_cast<int64>(piece) + k];
    }
    AddUp(sums, products + 3 * span);
  }
}

__device__ __forceinline__ double Factor(double ab, double square) {
  return square == 0 ? 1 : 1 - ab / (2 * square);
}

template <typename T>
__device__ __forceinline__ void Combine(const Spans& spans, int count, const double* products,
                                        const T* b, T* a) {
  for (int piece = blockIdx.x; piece < spans.pieces[count]; piece += gridDim.x) {
    const int span = SpanAt(spans, count, piece);
    const Range range = RangeOf(spans, span, piece);
    const double* const own = products + 3 * span;
    const double of_a = Factor(own[0], own[1]);
    const double of_b = Factor(own[0], own[2]);
    for (int64 i = range.begin + VECTOR * threadIdx.x; i < range.end; i += VECTOR * THREADS) {
      Vector<T> x = *reinterpret_cast<const Vector<T>*>(a + i);
      const Vector<T> y = *reinterpret_cast<const Vector<T>*>(b + i);
#pragma unroll
      for (int k = 0; k < VECTOR; ++k) {
        // Rounded after each step, as on the processor.
        x.values[k] = static_cast<T>(
            __dadd_rn(__dmul_rn(of_a, x.values[k]), __dmul_rn(of_b, y.values[k])));
      }
      *reinterpret_cast<Vector<T>*>(a + i) = x;
    }
  }
}

#define KERNELS(name, T)                                                                     \
  extern "C" __global__ void adasum_products_##name(const __grid_constant__ Spans spans,     \
                                                    int count, const T* a, const T* b,       \
                                                    double* partials) {                      \
    Products<T>(spans, count, a, b, partials);                                               \
  }                                                                                          \
  extern "C" __global__ void adasum_combine_##name(const __grid_constant__ Spans spans,      \
                                                   int count, const double* products,        \
                                                   const T* b, T* a) {                       \
    Combine<T>(spans, count, products, b, a);                                                \
  }

KERNELS(float32, float)
KERNELS(float64, double)
)cuda";

std::string Define(const char* name, int64_t value) {
  return std::string("#define ") + name + " " + std::to_string(value) + "\n";
}

}  // namespace

std::string AdasumKernels() {
  return Define("MOST_SPANS", kMostAdasumSpans) + Define("VECTOR", kAdasumVector) +
         Define("PIECE", kAdasumPiece) + Define("THREADS", kAdasumThreads) + kSource;
}

}  // namespace tfdist
