// Which tensors share a bucket.
#include <string>

#include "core/value/bucket_plan.h"
#include "expect.h"

using tfdist::DType;
using tfdist::PlanBuckets;

namespace {

constexpr DType kF = DType::kFloat32;
constexpr DType kH = DType::kFloat16;

std::string Text(const std::vector<tfdist::Bucket>& buckets) {
  std::string text;
  for (const auto& bucket : buckets) {
    text += "(";
    for (int index : bucket) text += " " + std::to_string(index);
    text += " )";
  }
  return text;
}

}  // namespace

TEST(BucketPlanOfNothingIsEmpty) { EXPECT_EQ(Text(PlanBuckets({}, {}, 100)), ""); }

TEST(BucketPlanFillsUpToTheThresholdAndNoFurther) {
  EXPECT_EQ(Text(PlanBuckets({kF, kF, kF}, {40, 60, 1}, 100)), "( 0 1 )( 2 )");
  EXPECT_EQ(Text(PlanBuckets({kF, kF, kF}, {40, 61, 39}, 100)), "( 0 )( 1 2 )");
}

TEST(BucketPlanLeavesALargeTensorAloneBeforeTheOpenBucket) {
  EXPECT_EQ(Text(PlanBuckets({kF, kF, kF}, {40, 101, 40}, 100)), "( 1 )( 0 2 )");
  EXPECT_EQ(Text(PlanBuckets({kF}, {100}, 100)), "( 0 )");
}

TEST(BucketPlanNeverMixesDtypes) {
  EXPECT_EQ(Text(PlanBuckets({kF, kH, kF, kH}, {4, 2, 4, 2}, 100)), "( 0 2 )( 1 3 )");
}

TEST(BucketPlanWithThresholdZeroSendsEveryTensorAlone) {
  EXPECT_EQ(Text(PlanBuckets({kF, kF}, {4, 4}, 0)), "( 0 )( 1 )");
}

TEST(BucketPlanTakesEmptyTensorsAlong) {
  EXPECT_EQ(Text(PlanBuckets({kF, kF, kF}, {0, 100, 0}, 100)), "( 0 1 2 )");
}
