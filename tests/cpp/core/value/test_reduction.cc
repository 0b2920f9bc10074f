// The arithmetic on one rank: NaN, overflow, logic on bools.
#include <cmath>
#include <limits>

#include "core/value/reduction.h"
#include "expect.h"

using tfdist::DType;
using tfdist::Reduce;
using tfdist::Reduction;

namespace {

template <typename T>
T ReduceTwo(DType dtype, Reduction reduction, T a, T b) {
  T result{};
  Reduce({dtype, reduction, {}}, {&a, &b}, 1, &result);
  return result;
}

}  // namespace

TEST(ReductionNanWinsInMinAndMaxFromEitherSide) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    EXPECT(std::isnan(ReduceTwo(DType::kFloat32, reduction, nan, 1.0f)));
    EXPECT(std::isnan(ReduceTwo(DType::kFloat32, reduction, 1.0f, nan)));
  }
}

TEST(ReductionIntegersWrapAround) {
  EXPECT_EQ(ReduceTwo<int32_t>(DType::kInt32, Reduction::kSum, 2147483647, 1), -2147483647 - 1);
  EXPECT_EQ(ReduceTwo<int64_t>(DType::kInt64, Reduction::kProduct, int64_t{1} << 62, 4), 0);
  EXPECT_EQ(ReduceTwo<uint16_t>(DType::kUint16, Reduction::kProduct, 65535, 65535), 1);
  EXPECT_EQ(ReduceTwo<int8_t>(DType::kInt8, Reduction::kSum, 127, 1), -128);
}

TEST(ReductionIntegersKeepAllTheirBits) {
  const int64_t large = (int64_t{1} << 53) + 1;  // not a double
  EXPECT_EQ(ReduceTwo<int64_t>(DType::kInt64, Reduction::kSum, large, 1), large + 1);
  EXPECT_EQ(ReduceTwo<int64_t>(DType::kInt64, Reduction::kMax, large, large - 1), large);
  EXPECT_EQ(ReduceTwo<int32_t>(DType::kInt32, Reduction::kMin, -5, 3), -5);
}

TEST(ReductionAnyByteButZeroIsTrue) {
  EXPECT_EQ(ReduceTwo<uint8_t>(DType::kBool, Reduction::kSum, 2, 0), 1);
  EXPECT_EQ(ReduceTwo<uint8_t>(DType::kBool, Reduction::kProduct, 2, 4), 1);
  EXPECT_EQ(ReduceTwo<uint8_t>(DType::kBool, Reduction::kMin, 2, 0), 0);
  EXPECT_EQ(ReduceTwo<uint8_t>(DType::kBool, Reduction::kMax, 0, 0), 0);
}

TEST(ReductionWritesOverAnyOfItsParts) {
  for (size_t target = 0; target < 3; ++target) {
    std::vector<std::vector<float>> parts(3, std::vector<float>(5000));
    for (size_t p = 0; p < 3; ++p) {
      for (size_t i = 0; i < 5000; ++i) parts[p][i] = static_cast<float>(i * (p + 1));
    }
    Reduce({DType::kFloat32, Reduction::kSum, {2.0, 4.0}},
           {parts[0].data(), parts[1].data(), parts[2].data()}, 5000, parts[target].data());
    for (size_t i = 0; i < 5000; ++i) EXPECT_EQ(parts[target][i], static_cast<float>(i * 12));
  }
}

TEST(ReductionFindsThePowerOfTwoForANumberOfRanks) {
  const double expected[] = {1, 2, 4, 4, 8, 8, 8, 8, 16};
  for (int size = 1; size <= 9; ++size) EXPECT_EQ(tfdist::PowerOfTwoFor(size), expected[size - 1]);
  EXPECT_EQ(tfdist::PowerOfTwoFor(1025), 2048.0);
}
