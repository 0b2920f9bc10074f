// Ends waits that last too long, from one thread for the whole process. Knows nothing of data.
//
// A wait costs two stores: the thread looks at the waits only when the first of them may have come
// to its limit, so a watchdog of 60 s wakes up about once a minute.
#ifndef TFDIST_DATA_WATCHDOG_H_
#define TFDIST_DATA_WATCHDOG_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/value/export.h"
#include "core/watch/steady_condition.h"

namespace tfdist {

// What waits again and again, one wait at a time. Watched from its construction to its destruction.
class TFDIST_API Waiter {
 public:
  // `expire` runs at most once, on the watchdog's thread, while a wait has lasted `limit`. It must
  // not block and must not destroy the waiter.
  Waiter(std::chrono::nanoseconds limit, std::function<void()> expire);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void Begin(int64_t now_ns) { since_ns_.store(now_ns, std::memory_order_release); }
  void End() { since_ns_.store(0, std::memory_order_release); }

  // Whether `expire` runs or ran.
  bool expired() const { return expired_.load(std::memory_order_acquire); }

 private:
  friend class Watchdog;

  const int64_t limit_ns_;
  const std::function<void()> expire_;
  std::atomic<int64_t> since_ns_{0};  // 0: does not wait
  std::atomic<bool> expired_{false};
};

// The one thread. Started with the first waiter and never ended, as nobody waits for it.
class Watchdog {
 public:
  static Watchdog* Get();

  void Add(Waiter* waiter);
  // The waiter's `expire` is not running any more when this returns.
  void Remove(Waiter* waiter);

 private:
  void Run();
  // Expires what is due; the moment to look again.
  int64_t Look(int64_t now_ns);

  std::mutex mutex_;
  SteadyCondition changed_;
  std::vector<Waiter*> waiters_;
  bool started_ = false;
};

}  // namespace tfdist

#endif  // TFDIST_DATA_WATCHDOG_H_
