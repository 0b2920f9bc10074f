#include "core/value/bucket_plan.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace tfdist {
namespace {

struct OpenBucket {
  size_t index;
  int64_t bytes;
};

}  // namespace

std::vector<Bucket> PlanBuckets(const std::vector<DType>& dtypes, const std::vector<int64_t>& bytes,
                                int64_t threshold_bytes) {
  std::vector<Bucket> buckets;
  std::map<DType, OpenBucket> open;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const int tensor = static_cast<int>(i);
    if (bytes[i] > threshold_bytes) {
      buckets.push_back({tensor});
      continue;
    }
    const auto found = open.find(dtypes[i]);
    if (found != open.end() && found->second.bytes + bytes[i] <= threshold_bytes) {
      buckets[found->second.index].push_back(tensor);
      found->second.bytes += bytes[i];
      continue;
    }
    open[dtypes[i]] = {buckets.size(), bytes[i]};
    buckets.push_back({tensor});
  }
  std::sort(buckets.begin(), buckets.end(),
            [](const Bucket& a, const Bucket& b) { return a.back() < b.back(); });
  return buckets;
}

}  // namespace tfdist
