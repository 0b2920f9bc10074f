// A phase of a call, while it is alive: told to the call's trace and added to its cost. In a trace
// a phase inside another one pauses it; a cost counts both, so phases do not nest.
#ifndef TFDIST_CORE_ALGORITHM_PHASE_SCOPE_H_
#define TFDIST_CORE_ALGORITHM_PHASE_SCOPE_H_

#include <atomic>
#include <cstdint>

#include "core/watch/call_trace.h"
#include "core/watch/meter.h"
#include "core/watch/stopwatch.h"
#include "core/wire/wait.h"

namespace tfdist {

class PhaseScope {
 public:
  // Of the call that `wait` is a wait of. kWait is one for data, once all ranks have come.
  PhaseScope(Wait* wait, Phase phase)
      : trace_(wait->trace()), stopwatch_(&(wait->cost().*kCosts[static_cast<int>(phase)])) {
    if (trace_ != nullptr) paused_ = trace_->Enter(phase);
  }
  ~PhaseScope() {
    if (trace_ != nullptr) trace_->Enter(paused_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  static constexpr std::atomic<int64_t> CollectiveCost::* kCosts[kPhases] = {
      &CollectiveCost::exchange_ns, &CollectiveCost::pack_ns, &CollectiveCost::reduce_ns,
      &CollectiveCost::unpack_ns};

  CallTrace* const trace_;
  const Stopwatch stopwatch_;
  Phase paused_ = Phase::kNone;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_PHASE_SCOPE_H_
