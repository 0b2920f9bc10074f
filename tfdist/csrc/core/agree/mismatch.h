// Explains how the calls of the ranks differ. Pure: from descriptions, or numbers of rows, to one
// text, equal on every rank because every rank has the same of them.
#ifndef TFDIST_CORE_AGREE_MISMATCH_H_
#define TFDIST_CORE_AGREE_MISMATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/value/call.h"
#include "core/value/status.h"

namespace tfdist {

// `descriptions` by rank, whose number among all ranks is in `world_ranks`. kInvalidArgument when
// every rank has the same error in its arguments, else kFailedPrecondition.
Status ExplainMismatch(const std::vector<std::vector<Field>>& descriptions,
                       const std::vector<int>& world_ranks);

// Where a call, which messages name `title`, needs equally many rows of each tensor from all ranks:
// rows[i * size + r] is what rank r gives of tensor i. kInvalidArgument unless they are alike.
Status CompareRows(const std::string& title, const Call& call, const std::vector<int64_t>& rows);

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_MISMATCH_H_
