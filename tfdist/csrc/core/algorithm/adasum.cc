#include "core/algorithm/adasum.h"

namespace tfdist {
namespace {

// Accumulates in float64; several sums at a time, so that the compiler may use vectors.
template <typename T>
double Dot(const T* a, const T* b, int64_t count) {
  constexpr int kLanes = 8;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double total = 0;
  for (; i < count; ++i) total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (double sum : sums) total += sum;
  return total;
}

template <typename T>
AdasumProducts Products(const T* a, const T* b, int64_t count) {
  return {Dot(a, b, count), Dot(a, a, count), Dot(b, b, count)};
}

template <typename T>
void Combine(double of_a, double of_b, const T* __restrict__ b, int64_t count, T* __restrict__ a) {
  for (int64_t i = 0; i < count; ++i) a[i] = static_cast<T>(of_a * a[i] + of_b * b[i]);
}

double Factor(double ab, double square) { return square == 0 ? 1 : 1 - ab / (2 * square); }

}  // namespace

DType AdasumType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

AdasumProducts MultiplyParts(DType type, const void* a, const void* b, int64_t count) {
  if (type == DType::kFloat64) {
    return Products(static_cast<const double*>(a), static_cast<const double*>(b), count);
  }
  return Products(static_cast<const float*>(a), static_cast<const float*>(b), count);
}

void CombineParts(DType type, const AdasumProducts& products, const void* b, int64_t count,
                  void* a) {
  const double of_a = Factor(products.ab, products.aa);
  const double of_b = Factor(products.ab, products.bb);
  if (type == DType::kFloat64) {
    return Combine(of_a, of_b, static_cast<const double*>(b), count, static_cast<double*>(a));
  }
  Combine(of_a, of_b, static_cast<const float*>(b), count, static_cast<float*>(a));
}

}  // namespace tfdist
