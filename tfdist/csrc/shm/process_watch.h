// Tells which processes have ended, whoever their parent is. Starts and ends none.
//
// Holds a descriptor a process, so that a number which the system gives to another process later is
// not mistaken for it. Thread safe once all are added.
#ifndef TFDIST_SHM_PROCESS_WATCH_H_
#define TFDIST_SHM_PROCESS_WATCH_H_

#include <cstdint>
#include <vector>

#include "core/value/status.h"
#include "shm/descriptor.h"

namespace tfdist {

class ProcessWatch {
 public:
  // kInternal where the process is not to be seen from here.
  Status Add(int64_t process);

  // A place for a process that is not watched.
  void AddNone() { processes_.emplace_back(-1); }

  // Those that have ended, by the order in which they were added. Does not wait.
  std::vector<int> Ended() const;

 private:
  std::vector<Descriptor> processes_;
};

}  // namespace tfdist

#endif  // TFDIST_SHM_PROCESS_WATCH_H_
