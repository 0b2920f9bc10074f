// Adds the time between its construction and destruction to a total. Knows nothing of collectives.
//
// The total is atomic, so that another thread may read it at any moment.
#ifndef TFDIST_CORE_STOPWATCH_H_
#define TFDIST_CORE_STOPWATCH_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tfdist {

class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<int64_t>* total_ns) : total_ns_(total_ns) {}
  ~Stopwatch() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    *total_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<int64_t>* const total_ns_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tfdist

#endif  // TFDIST_CORE_STOPWATCH_H_
