// The clock by which times are taken: it goes on evenly, and is the same in all processes of a
// host. Its zero differs by machine, and is no date.
#ifndef TFDIST_CORE_WATCH_STEADY_CLOCK_H_
#define TFDIST_CORE_WATCH_STEADY_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace tfdist {

inline int64_t SteadyNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// How the clock of a rank stands to those of rank 0.
struct ClockOffset {
  // Added to this rank's steady clock: the unix time by the clocks of rank 0. Off by half of
  // round_trip_ns at most.
  int64_t to_unix_ns = 0;
  int64_t round_trip_ns = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_STEADY_CLOCK_H_
