// Explains how the calls of the ranks differ. Pure: from descriptions to one text, equal on every
// rank because every rank has the same descriptions.
#ifndef TFDIST_CORE_MISMATCH_H_
#define TFDIST_CORE_MISMATCH_H_

#include <vector>

#include "core/call.h"
#include "core/status.h"

namespace tfdist {

// `descriptions` by rank, whose number among all ranks is in `world_ranks`. kInvalidArgument when
// every rank has the same error in its arguments, else kFailedPrecondition.
Status ExplainMismatch(const std::vector<std::vector<Field>>& descriptions,
                       const std::vector<int>& world_ranks);

}  // namespace tfdist

#endif  // TFDIST_CORE_MISMATCH_H_
