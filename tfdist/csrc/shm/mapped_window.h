// A window in memory that the processes of a host map. Knows Linux, and no collective.
//
// The lowest rank makes the memory without a name in any file system, so /dev/shm may be of any
// size and nothing is left behind, however the processes end; the others open it through /proc.
#ifndef TFDIST_SHM_MAPPED_WINDOW_H_
#define TFDIST_SHM_MAPPED_WINDOW_H_

#include <cstdint>
#include <memory>

#include "core/place/window.h"
#include "core/value/export.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"

namespace tfdist {

// The window of this rank's host, with `bytes` of memory a rank. All ranks of the host call it and
// introduce themselves by messages through `communicator`, whose errors it returns. kInternal, with
// the reason, where this rank could not map it.
TFDIST_API Status MapWindow(int64_t bytes, Communicator* communicator, Wait* wait,
                            std::unique_ptr<Window>* window);

}  // namespace tfdist

#endif  // TFDIST_SHM_MAPPED_WINDOW_H_
