// Adds the time between its construction and destruction to a total. Knows nothing of collectives.
//
// The total is atomic, so that another thread may read it at any moment.
#ifndef TFDIST_CORE_WATCH_STOPWATCH_H_
#define TFDIST_CORE_WATCH_STOPWATCH_H_

#include <atomic>
#include <cstdint>

#include "core/watch/steady_clock.h"

namespace tfdist {

class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<int64_t>* total_ns) : total_ns_(total_ns) {}
  ~Stopwatch() { total_ns_->fetch_add(SteadyNs() - start_ns_, std::memory_order_relaxed); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<int64_t>* const total_ns_;
  const int64_t start_ns_ = SteadyNs();
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_STOPWATCH_H_
