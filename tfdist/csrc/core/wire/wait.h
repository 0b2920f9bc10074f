// Paces one polled wait for peers and ends it at its deadline. Knows no transport.
//
// A transport calls Begin, then polls: Progress after something has arrived, Pause after a poll in
// vain. Pause spins first, then yields, then sleeps with backoff, since ranks may outnumber cores.
// It fails at its deadline, and before reports once, if no lower rank waits for the same, both
// times with the missing ranks and what they did last. What it has reported it also reports to be
// over. It also fails, with kUnavailable, when the process of a missing rank is known to have
// ended; of any rank, where the transport cannot tell who is missing. A transport that the system
// wakes when something arrives uses the parts of Pause instead: Spins, then Look, then a sleep of
// MsToNextLook at most. Lives on the stack of one collective call, which outlives it; for one
// thread.
#ifndef TFDIST_CORE_WIRE_WAIT_H_
#define TFDIST_CORE_WIRE_WAIT_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/place/activity.h"
#include "core/place/topology.h"
#include "core/value/engine_config.h"
#include "core/value/export.h"
#include "core/value/status.h"
#include "core/watch/call_trace.h"
#include "core/watch/meter.h"
#include "core/watch/stall_report.h"
#include "core/wire/roll_call.h"

namespace tfdist {

// Lets the processor rest between two looks at memory that another one writes.
#if defined(__x86_64__)
inline void Relax() { __builtin_ia32_pause(); }
#else
inline void Relax() {}
#endif

// What is missing, of a transport that cannot tell.
inline std::vector<int> Nobody() { return {}; }

class TFDIST_API Wait {
 public:
  // `describe` says what is being waited in, such as "allreduce 'grads'"; called only for messages.
  Wait(const EngineConfig& config, const Topology& topology, std::function<std::string()> describe);

  // The call that this is a wait of, as other ranks see it, the one before (Stall::before), and
  // what it costs.
  void SetCall(const Activity& call, const Activity& before, CollectiveCost* cost) {
    call_ = call;
    before_ = before;
    cost_ = cost;
  }

  // The wait is for an agreement, whose roll is called in a stall; it outlives this wait.
  void Meet(RollCall* roll) { roll_ = roll; }

  // To that call; from now on the wait is for what follows. `last` came last, by its number among
  // all, if somebody waited for it; -1: this rank did.
  void AllCame(int last);
  CollectiveCost& cost() { return *cost_; }

  // Starts the clock anew.
  void Begin();

  // Makes the next polls fast again; the deadline stays.
  void Progress();

  // Waits a moment, or fails with kDeadlineExceeded or kUnavailable. `missing` lists the ranks that
  // have not delivered, ascending, by their numbers in `topology`, which may be of a part of the
  // ranks; empty when the transport cannot tell.
  Status Pause(const Topology& topology, const std::function<std::vector<int>()>& missing);

  // Whether the last Pause has slept, so that a system call more costs nothing.
  bool slept() const { return slept_; }

  // After kUnavailable from Pause or Look: the first rank that has ended, by its number among all.
  // Else -1.
  int lost() const { return lost_; }

  // After a poll in vain: whether the next one is to follow at once.
  bool Spins() { return ++polls_ <= spins_; }

  // Fails and reports as Pause does, but does not wait.
  Status Look(const Topology& topology, const std::function<std::vector<int>()>& missing) {
    return LookAt(Clock::now(), topology, missing);
  }

  // When Look has something to do again; 1 or more.
  int MsToNextLook() const;

  // Where it is written down what the time goes to; null, as at first: nowhere.
  void Record(CallTrace* trace) { trace_ = trace; }
  CallTrace* trace() const { return trace_; }

  // After polls in vain: `rank`, by its number in `topology`, was the last one to deliver. Of an
  // agreement AllCame says it.
  void Ended(const Topology& topology, int rank);

  // "allreduce 'grads'", for the transport's own errors.
  std::string Describe() const { return describe_(); }

 private:
  using Clock = std::chrono::steady_clock;

  double WaitedSeconds(Clock::time_point now) const {
    return std::chrono::duration<double>(now - start_).count();
  }
  Status LookAt(Clock::time_point now, const Topology& topology,
                const std::function<std::vector<int>()>& missing);
  Status LookForEnded(Clock::time_point now, const Topology& topology,
                      const std::vector<int>& missing);
  void CallRoll(double waited_seconds);
  std::vector<int> Absent(const std::vector<int>& missing) const;
  std::vector<int> Pending(const std::vector<int>& missing) const;
  void EndStall();
  void Report(double waited_seconds, const Topology& topology, const std::vector<int>& missing);
  void Print(const std::string& text) const;
  Stall StallOf(double waited_seconds, const Topology& topology,
                const std::vector<int>& missing) const;

  const EngineConfig& config_;
  const Topology& topology_;
  const std::function<std::string()> describe_;
  const int spins_;
  CallTrace* trace_ = nullptr;
  Activity call_;
  Activity before_;
  bool all_came_ = false;
  CollectiveCost* cost_ = &Meter::Nowhere();
  RollCall* roll_ = nullptr;
  bool has_asked_ = false;
  bool waited_ = false;  // for the agreement, in vain once or more
  bool reported_ = false;
  std::string awaited_;  // as the report of this rank has named them; empty without one
  int polls_ = 0;
  bool slept_ = false;
  int lost_ = -1;
  Clock::time_point start_;
  Clock::time_point last_progress_;
  Clock::time_point next_look_;   // whether processes have ended
  Clock::time_point seen_ended_;  // since when one has; the epoch: none has
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_WAIT_H_
