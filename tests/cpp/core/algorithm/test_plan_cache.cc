// Plans are made once, are those of PlanBuckets, and do not pile up.
#include <vector>

#include "core/algorithm/plan_cache.h"
#include "expect.h"

using tfdist::Bucket;
using tfdist::DType;
using tfdist::PlanCache;
using tfdist::SharedPlan;

namespace {

constexpr DType kF = DType::kFloat32;
constexpr DType kH = DType::kFloat16;

}  // namespace

TEST(PlanCacheMakesAPlanOnce) {
  PlanCache cache;
  const SharedPlan plan = cache.Find({kF, kF, kF}, {40, 60, 1}, 100);
  EXPECT(*plan == std::vector<Bucket>({{0, 1}, {2}}));
  EXPECT(cache.Find({kF, kF, kF}, {40, 60, 1}, 100) == plan);
  EXPECT_EQ(cache.made(), 1);
}

TEST(PlanCacheTellsApartWhateverAPlanDependsOn) {
  PlanCache cache;
  EXPECT(*cache.Find({kF, kF}, {40, 60}, 100) == std::vector<Bucket>({{0, 1}}));
  EXPECT(*cache.Find({kF, kF}, {40, 61}, 100) == std::vector<Bucket>({{0}, {1}}));
  EXPECT(*cache.Find({kF, kH}, {40, 60}, 100) == std::vector<Bucket>({{0}, {1}}));
  EXPECT(*cache.Find({kF, kF}, {40, 60}, 50) == std::vector<Bucket>({{0}, {1}}));
  EXPECT(cache.Find({}, {}, 50)->empty());
  EXPECT_EQ(cache.made(), 5);
}

TEST(PlanCacheForgetsWhenThereAreTooManyAndPlansInUseStay) {
  PlanCache cache;
  const SharedPlan first = cache.Find({kF}, {0}, 100);
  const int64_t most = PlanCache::kMostPlans;
  for (int64_t bytes = 1; bytes <= most; ++bytes) cache.Find({kF}, {bytes}, 100);
  EXPECT_EQ(cache.made(), most + 1);
  EXPECT(*first == std::vector<Bucket>({{0}}));
  cache.Find({kF}, {0}, 100);
  EXPECT_EQ(cache.made(), most + 2);
  cache.Find({kF}, {most}, 100);
  EXPECT_EQ(cache.made(), most + 2);
}
