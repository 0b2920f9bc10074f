// How far the clock of a rank is from that of rank 0, asked by messages there and back. Sets no
// clock.
//
// Owns the memory that messages arrive in: it must outlive a wait that has expired, because a late
// one may still be written there. For one thread.
#ifndef TFDIST_CORE_AGREE_CLOCK_OFFSET_H_
#define TFDIST_CORE_AGREE_CLOCK_OFFSET_H_

#include <cstdint>
#include <functional>

#include "core/value/status.h"
#include "core/watch/steady_clock.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"

namespace tfdist {

// By the calendar, at the zero of this machine's steady clock.
int64_t UnixNsAtZero();

class ClockProbe {
 public:
  using Clock = std::function<int64_t()>;  // nanoseconds

  // All ranks call it. `steady` is read here and, for the others, at rank 0; `unix_at_zero` is what
  // rank 0 adds.
  Status Measure(Communicator* communicator, Wait* wait, const Clock& steady, int64_t unix_at_zero,
                 ClockOffset* offset);

 private:
  Status Answer(Communicator* communicator, int peer, Wait* wait, const Clock& steady);
  Status Ask(Communicator* communicator, Wait* wait, const Clock& steady, ClockOffset* offset);

  struct Reading {
    int64_t steady_ns;
    int64_t unix_at_zero_ns;
  };
  Reading reading_ = {};
  char question_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_CLOCK_OFFSET_H_
