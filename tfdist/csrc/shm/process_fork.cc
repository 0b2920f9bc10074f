#include "shm/process_fork.h"

#include <pthread.h>

#include "core/engine/world.h"

namespace tfdist {

void WatchForks() {
  static const int watched =
      pthread_atfork(World::BeforeFork, World::AfterForkInParent, World::AfterForkInChild);
  static_cast<void>(watched);  // it fails for lack of memory alone
}

}  // namespace tfdist
