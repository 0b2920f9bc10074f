// Decides which tensors travel together. Pure: no memory, no communication, no configuration.
#ifndef TFDIST_CORE_VALUE_BUCKET_PLAN_H_
#define TFDIST_CORE_VALUE_BUCKET_PLAN_H_

#include <cstdint>
#include <vector>

#include "core/value/dtype.h"

namespace tfdist {

using Bucket = std::vector<int>;  // indices of tensors, ascending

// Fills buckets of at most `threshold_bytes` with tensors of one dtype, in order; a tensor that is
// larger travels alone. Every tensor is in exactly one bucket; buckets are in the order of their
// last tensor, so that none waits for one that is complete later. The same arguments give the same
// plan, so ranks need not compare plans.
std::vector<Bucket> PlanBuckets(const std::vector<DType>& dtypes, const std::vector<int64_t>& bytes,
                                int64_t threshold_bytes);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_BUCKET_PLAN_H_
