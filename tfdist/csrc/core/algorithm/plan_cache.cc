#include "core/algorithm/plan_cache.h"

#include <utility>

namespace tfdist {

SharedPlan PlanCache::Find(const std::vector<DType>& dtypes, const std::vector<int64_t>& bytes,
                           int64_t threshold_bytes) {
  Key key(threshold_bytes, bytes, dtypes);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  if (plans_.size() == kMostPlans) plans_.clear();
  ++made_;
  return plans_[std::move(key)] = std::make_shared<const std::vector<Bucket>>(
             PlanBuckets(dtypes, bytes, threshold_bytes));
}

}  // namespace tfdist
