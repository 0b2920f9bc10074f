// NCCL as a shared library that is found while the program runs. Knows no communicator of its own.
//
// Loads the library that the process has already, if it has one, unless the user has chosen one:
// two copies of NCCL in a process fight for the same GPUs. It is never unloaded. Thread safe once
// loaded.
#ifndef TFDIST_NCCL_LOADED_NCCL_H_
#define TFDIST_NCCL_LOADED_NCCL_H_

#include <memory>
#include <string>
#include <vector>

#include "core/value/status.h"
#include "nccl/nccl_api.h"

namespace tfdist {

// The oldest NCCL that has all that is used: communicators that do not block, and their settings.
constexpr int kOldestNccl = 21700;

// Tries `paths` in order, after what is loaded. kUnimplemented, with what was tried and what to
// install, if there is none; kFailedPrecondition if the one found is too old.
Status LoadNccl(const std::vector<std::string>& paths, std::unique_ptr<NcclApi>* nccl);

}  // namespace tfdist

#endif  // TFDIST_NCCL_LOADED_NCCL_H_
