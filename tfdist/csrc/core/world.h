// The engine of this process: the only process-wide variable that changes. Not an engine itself.
//
// Holds a shared pointer, so that an elastic restart can replace the engine while calls on the old
// one are ending: a caller keeps its copy for one collective and never longer. Thread safe.
#ifndef TFDIST_CORE_WORLD_H_
#define TFDIST_CORE_WORLD_H_

#include <memory>

#include "core/engine.h"

namespace tfdist {

class World {
 public:
  // Null before Set and after Set(nullptr).
  static std::shared_ptr<Engine> Get();

  // Returns the engine that was there.
  static std::shared_ptr<Engine> Set(std::shared_ptr<Engine> engine);
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WORLD_H_
