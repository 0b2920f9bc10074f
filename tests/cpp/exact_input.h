// Inputs of reductions whose results are known exactly, in every dtype and for up to 5 ranks.
#ifndef TESTS_CPP_EXACT_INPUT_H_
#define TESTS_CPP_EXACT_INPUT_H_

#include <algorithm>
#include <cstdint>

#include "core/value/compression.h"
#include "core/value/dtype.h"
#include "core/value/reduction.h"

constexpr tfdist::Reduction kExactReductions[] = {tfdist::Reduction::kSum, tfdist::Reduction::kMin,
                                                  tfdist::Reduction::kMax,
                                                  tfdist::Reduction::kProduct};

constexpr tfdist::DType kFloatingDTypes[] = {tfdist::DType::kFloat16, tfdist::DType::kBfloat16,
                                             tfdist::DType::kFloat32, tfdist::DType::kFloat64};

// Calls `check` with each floating type, compression and factor.
template <typename Check>
void ForEachScale(const Check& check) {
  for (double post : {0.25, 8.0}) {
    for (tfdist::DType dtype : kFloatingDTypes) {
      for (tfdist::Compression compression :
           {tfdist::Compression::kNone, tfdist::Compression::kFp16, tfdist::Compression::kBf16}) {
        check(dtype, compression, post);
      }
    }
  }
}

// Differs by rank and by place; small enough that int8 sums and products of 5 ranks fit.
inline double ExactInput(tfdist::Reduction reduction, int rank, int64_t i) {
  if (reduction == tfdist::Reduction::kProduct) return static_cast<double>(1 + (i + rank) % 2);
  return static_cast<double>((i * 7 + rank * 5) % 11);
}

inline double CombineExactly(tfdist::DType dtype, tfdist::Reduction reduction, double a, double b) {
  switch (reduction) {
    case tfdist::Reduction::kMin:
      return std::min(a, b);
    case tfdist::Reduction::kMax:
      return std::max(a, b);
    case tfdist::Reduction::kProduct:
      return a * b;
    default:
      return dtype == tfdist::DType::kBool ? std::max(a, b) : a + b;
  }
}

// The reduction of the inputs of ranks 0 to size - 1.
inline double ExactResult(tfdist::DType dtype, tfdist::Reduction reduction, int size, int64_t i) {
  double result = 0;
  for (int rank = 0; rank < size; ++rank) {
    double value = ExactInput(reduction, rank, i);
    if (dtype == tfdist::DType::kBool) value = value != 0;
    result = rank == 0 ? value : CombineExactly(dtype, reduction, result, value);
  }
  return result;
}

// The average over the ranks is i % 9 + 1, exact although 1 / 3 and 1 / 5 are not.
inline double AverageInput(int rank, int size, int64_t i) {
  return static_cast<double>(i % 9 + 1) + rank - (size - 1) / 2.0;
}
inline double ExactAverage(int64_t i) { return static_cast<double>(i % 9 + 1); }

#endif  // TESTS_CPP_EXACT_INPUT_H_
