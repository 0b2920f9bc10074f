// The engines of this process: the only process-wide variable that changes. Not an engine itself.
// One is that of all ranks, the others are those of process sets.
//
// Holds a shared pointer, so that an elastic restart can replace the engine while calls on the old
// one are ending: a caller keeps its copy for one collective and never longer. Thread safe.
//
// A process that this one forks is no rank: engines are there to be asked for rank and size, and
// are neither used nor let go of.
#ifndef TFDIST_CORE_ENGINE_WORLD_H_
#define TFDIST_CORE_ENGINE_WORLD_H_

#include <memory>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/value/export.h"
#include "core/wire/communicator_factory.h"

namespace tfdist {

class TFDIST_API World {
 public:
  // For whoever watches forks: called by the thread that forks, in parent and child.
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  // Whether this process was forked from one that had an engine, if forks are watched.
  static bool IsForked();

  // Null before Set and after Set(nullptr).
  static std::shared_ptr<Engine> Get();

  // The engine of a process set, 0 for all ranks; or an error that says why there is none, as in a
  // process that was forked.
  static Status Find(int process_set, std::shared_ptr<Engine>* engine);

  // All ranks call both alike. A set gets the next number; the same ranks may not be a set twice.
  static Status AddProcessSet(const std::vector<int>& ranks, int* process_set);
  static Status RemoveProcessSet(int process_set);

  // Waits until what this rank has on the GPU in process sets has come to an end.
  static void FinishProcessSets();

  // Ends the engine of all ranks before their number changes (Engine::Part), and keeps it to be
  // asked for rank and size. Refused where there are process sets.
  static Status Part();

  // After Part: replaces it by one of these ranks, which all call it. After an error the one that
  // has ended stays, and Meet may be called again.
  static Status Meet(const Membership& membership);

  // Returns the engine that was there. Forgets all process sets.
  static std::shared_ptr<Engine> Set(std::shared_ptr<Engine> engine);
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_WORLD_H_
