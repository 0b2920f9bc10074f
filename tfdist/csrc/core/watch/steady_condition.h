// A condition variable whose timed waits follow the steady clock. Those of std::condition_variable
// follow the wall clock where the C++ library or the C library is old: when that is set back by an
// hour, such a wait takes an hour more.
#ifndef TFDIST_CORE_WATCH_STEADY_CONDITION_H_
#define TFDIST_CORE_WATCH_STEADY_CONDITION_H_

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "core/watch/steady_clock.h"

namespace tfdist {

class SteadyCondition {
 public:
  SteadyCondition() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&condition_, &attributes);
    pthread_condattr_destroy(&attributes);
  }
  ~SteadyCondition() { pthread_cond_destroy(&condition_); }
  SteadyCondition(const SteadyCondition&) = delete;
  SteadyCondition& operator=(const SteadyCondition&) = delete;

  void NotifyAll() { pthread_cond_broadcast(&condition_); }

  // Both may return before anybody has notified.
  void Wait(std::unique_lock<std::mutex>* lock) {
    pthread_cond_wait(&condition_, lock->mutex()->native_handle());
  }
  void WaitFor(std::unique_lock<std::mutex>* lock, int64_t ns) { WaitUntil(lock, End(ns)); }

  // Whether `done` is true, at the latest when `ns` have passed.
  template <typename Done>
  bool WaitFor(std::unique_lock<std::mutex>* lock, int64_t ns, const Done& done) {
    const int64_t end = End(ns);
    while (!done()) {
      if (SteadyNs() >= end) return false;
      WaitUntil(lock, end);
    }
    return true;
  }

 private:
  static int64_t End(int64_t ns) {
    const int64_t now = SteadyNs();  // the zero of both clocks is the same
    return ns > INT64_MAX - now ? INT64_MAX : now + std::max<int64_t>(ns, 0);
  }

  void WaitUntil(std::unique_lock<std::mutex>* lock, int64_t end) {
    timespec until = {};
    until.tv_sec = static_cast<time_t>(end / 1'000'000'000);
    until.tv_nsec = static_cast<long>(end % 1'000'000'000);
    pthread_cond_timedwait(&condition_, lock->mutex()->native_handle(), &until);
  }

  pthread_cond_t condition_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_STEADY_CONDITION_H_
