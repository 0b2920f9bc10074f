// Lets calls pass one at a time, in the order in which they were announced. A call that comes later
// than it was announced, from whatever thread, keeps its place, and those behind it wait. Thread
// safe; fair, as a mutex need not be.
#ifndef TFDIST_CORE_AGREE_TURNSTILE_H_
#define TFDIST_CORE_AGREE_TURNSTILE_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "core/value/export.h"

namespace tfdist {

class TFDIST_API Turnstile {
 public:
  // The place behind all that were announced. Exactly one Enter and Leave must follow for each.
  int64_t Announce();

  // Waits until all places before `place` have been left.
  void Enter(int64_t place);
  void Leave();

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  int64_t announced_ = 0;
  int64_t current_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_TURNSTILE_H_
