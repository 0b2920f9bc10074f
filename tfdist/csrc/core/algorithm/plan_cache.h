// The bucket plans of calls that come again and again: each is made once. It decides nothing.
//
// Shares the plans with those who have asked, and forgets all when there are too many. For one
// thread at a time.
#ifndef TFDIST_CORE_ALGORITHM_PLAN_CACHE_H_
#define TFDIST_CORE_ALGORITHM_PLAN_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/value/bucket_plan.h"

namespace tfdist {

using SharedPlan = std::shared_ptr<const std::vector<Bucket>>;

class PlanCache {
 public:
  // A step has few different calls; a loop over changing shapes has any number.
  static constexpr size_t kMostPlans = 64;

  // PlanBuckets of these arguments.
  SharedPlan Find(const std::vector<DType>& dtypes, const std::vector<int64_t>& bytes,
                  int64_t threshold_bytes);

  int64_t made() const { return made_; }

 private:
  using Key = std::tuple<int64_t, std::vector<int64_t>, std::vector<DType>>;

  std::map<Key, SharedPlan> plans_;
  int64_t made_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_PLAN_CACHE_H_
