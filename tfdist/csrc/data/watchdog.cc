#include "data/watchdog.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace tfdist {

Waiter::Waiter(std::chrono::nanoseconds limit, std::function<void()> expire)
    : limit_ns_(limit.count()), expire_(std::move(expire)) {
  Watchdog::Get()->Add(this);
}

Waiter::~Waiter() { Watchdog::Get()->Remove(this); }

Watchdog* Watchdog::Get() {
  static Watchdog* const watchdog = new Watchdog;  // its thread outlives static destructors
  return watchdog;
}

void Watchdog::Add(Waiter* waiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiters_.push_back(waiter);
  if (!started_) std::thread([this] { Run(); }).detach();
  started_ = true;
  changed_.NotifyAll();
}

void Watchdog::Remove(Waiter* waiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiters_.erase(std::remove(waiters_.begin(), waiters_.end(), waiter), waiters_.end());
}

void Watchdog::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (waiters_.empty()) {
      changed_.Wait(&lock);
      continue;
    }
    const int64_t now_ns = SteadyNs();
    const int64_t next_ns = Look(now_ns);
    changed_.WaitFor(&lock, next_ns - now_ns);
  }
}

int64_t Watchdog::Look(int64_t now_ns) {
  int64_t next_ns = INT64_MAX;
  for (Waiter* waiter : waiters_) {
    if (waiter->expired()) continue;
    const int64_t since_ns = waiter->since_ns_.load(std::memory_order_acquire);
    // A wait that begins later than now cannot be due before this.
    const int64_t due_ns = (since_ns == 0 ? now_ns : since_ns) + waiter->limit_ns_;
    if (since_ns != 0 && due_ns <= now_ns) {
      waiter->expired_.store(true, std::memory_order_release);
      waiter->expire_();
    } else {
      next_ns = std::min(next_ns, due_ns);
    }
  }
  // All have expired: the next Add wakes the thread. An hour keeps the sum below INT64_MAX.
  constexpr int64_t kHourNs = int64_t{3600} * 1000 * 1000 * 1000;
  return std::min(next_ns, now_ns + kHourNs);
}

}  // namespace tfdist
