// Tells the engines of this process of a fork. Starts no process.
//
// A forked process has a copy of all memory and one thread: what it did with a copy of an engine
// would go to the peers as if the rank had done it.
#ifndef TFDIST_SHM_PROCESS_FORK_H_
#define TFDIST_SHM_PROCESS_FORK_H_

#include "core/value/export.h"

namespace tfdist {

// From now on a process that is forked from this one knows that it is no rank (World::IsForked).
// Thread safe; a second call does nothing.
TFDIST_API void WatchForks();

}  // namespace tfdist

#endif  // TFDIST_SHM_PROCESS_FORK_H_
