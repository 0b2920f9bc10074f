#include "core/wire/wait.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>
#include <utility>

#include "core/watch/stall_monitor.h"
#include "core/watch/steady_clock.h"

namespace tfdist {
namespace {

constexpr int kSpins = 200;                     // a few ten microseconds of polling
constexpr double kYieldSeconds = 0.002;         // longer than a usual gap between two ranks
constexpr double kLongestSleepSeconds = 0.001;  // bounds what sleeping adds to a late arrival

constexpr std::chrono::milliseconds kBetweenLooks(20);
// What a process has sent before its end arrives in this time. Where the transport itself tells of
// losses, it is sooner.
constexpr std::chrono::milliseconds kAfterEnd(500);

// How long before a report the other ranks are asked. They answer at their next look.
constexpr double kRollCallSeconds = 2;

// With more ranks than cores a spinning rank holds the core that the awaited one needs.
int SpinsFor(const Topology& topology) {
  static const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return topology.local_size > cores ? 0 : kSpins;
}

// Whoever may be missing where the transport cannot tell.
std::vector<int> OthersIn(const Topology& topology) {
  std::vector<int> ranks;
  for (int r = 0; r < topology.size; ++r) {
    if (r != topology.rank) ranks.push_back(r);
  }
  return ranks;
}

std::string Named(const Topology& topology, const std::vector<int>& ranks) {
  if (ranks.empty()) return "other ranks (the transport does not say which)";
  return RankListWithHosts(topology, ranks);
}

}  // namespace

Wait::Wait(const EngineConfig& config, const Topology& topology,
           std::function<std::string()> describe)
    : config_(config),
      topology_(topology),
      describe_(std::move(describe)),
      spins_(SpinsFor(topology)) {
  Begin();
}

void Wait::Begin() {
  last_progress_ = Clock::now();
  if (roll_ == nullptr || !roll_->is_later_stage()) start_ = last_progress_;
  polls_ = 0;
  next_look_ = start_ + kBetweenLooks;
  seen_ended_ = Clock::time_point();
}

void Wait::Progress() {
  polls_ = 0;
  last_progress_ = Clock::now();
  seen_ended_ = Clock::time_point();
}

Status Wait::Pause(const Topology& topology, const std::function<std::vector<int>()>& missing) {
  slept_ = false;
  if (Spins()) return Status::Ok();
  const Clock::time_point now = Clock::now();
  TFDIST_RETURN_IF_ERROR(LookAt(now, topology, missing));
  const double idle = std::chrono::duration<double>(now - last_progress_).count();
  slept_ = idle >= kYieldSeconds;
  if (!slept_) {
    std::this_thread::yield();
  } else {
    const double sleep = std::min(kLongestSleepSeconds, idle / 32);
    std::this_thread::sleep_for(std::chrono::duration<double>(sleep));
  }
  return Status::Ok();
}

Status Wait::LookAt(Clock::time_point now, const Topology& topology,
                    const std::function<std::vector<int>()>& missing) {
  const double waited = WaitedSeconds(now);
  if (roll_ != nullptr && now >= next_look_) CallRoll(waited);
  if (waited >= config_.stall_shutdown_seconds) {
    return Status(StatusCode::kDeadlineExceeded,
                  StallError(StallOf(waited, topology, Absent(missing()))));
  }
  const double warning = config_.stall_warning_seconds;
  if (!reported_ && warning > 0 && waited >= warning) Report(waited, topology, Absent(missing()));
  return now >= next_look_ ? LookForEnded(now, topology, Pending(missing())) : Status::Ok();
}

void Wait::CallRoll(double waited_seconds) {
  roll_->Listen();
  if (has_asked_ || !roll_->is_open()) return;
  const double warning = config_.stall_warning_seconds;
  const double limit = config_.stall_shutdown_seconds;
  const double due = warning > 0 ? std::min(warning, limit) : limit;
  if (waited_seconds < due - std::min(kRollCallSeconds, due / 2)) return;
  has_asked_ = true;
  roll_->Ask();
}

// Within an agreement those that have not come, else those that the transport waits for.
std::vector<int> Wait::Absent(const std::vector<int>& missing) const {
  return roll_ != nullptr && roll_->is_open() ? roll_->Absent(missing) : missing;
}

// Within an agreement those whose headers are not here, else as above.
std::vector<int> Wait::Pending(const std::vector<int>& missing) const {
  return roll_ != nullptr && roll_->is_open() ? roll_->Pending(missing) : missing;
}

int Wait::MsToNextLook() const {
  const Clock::time_point now = Clock::now();
  const double warning = config_.stall_warning_seconds;
  double due = config_.stall_shutdown_seconds;
  if (!reported_ && warning > 0) due = std::min(due, warning);
  const double seconds =
      std::min(due - WaitedSeconds(now), std::chrono::duration<double>(next_look_ - now).count());
  return std::max(1, static_cast<int>(std::ceil(seconds * 1e3)));
}

Status Wait::LookForEnded(Clock::time_point now, const Topology& topology,
                          const std::vector<int>& missing) {
  next_look_ = now + kBetweenLooks;
  if (config_.monitor == nullptr) return Status::Ok();
  const std::vector<int> ended =
      config_.monitor->Ended(topology, missing.empty() ? OthersIn(topology) : missing);
  if (ended.empty()) return Status::Ok();
  if (seen_ended_ == Clock::time_point()) seen_ended_ = now;
  if (now - seen_ended_ < kAfterEnd) return Status::Ok();
  lost_ = topology.world_ranks[ended[0]];
  return Status(StatusCode::kUnavailable, RankListWithHosts(topology_, {topology_.rank}) +
                                              " lost " + RankListWithHosts(topology, ended) +
                                              ", whose process has ended.");
}

void Wait::Report(double waited_seconds, const Topology& topology,
                  const std::vector<int>& missing) {
  reported_ = true;
  if (!Speaks(topology, missing)) return;
  awaited_ = Named(topology, missing);
  Print(StallReport(StallOf(waited_seconds, topology, missing)));
}

void Wait::Ended(const Topology& topology, int rank) {
  if (roll_ != nullptr && roll_->is_open()) {
    waited_ = true;
    return;
  }
  if (trace_ != nullptr) trace_->Awaited(topology.world_ranks[rank]);
  EndStall();
}

void Wait::AllCame(int last) {
  all_came_ = true;
  if (waited_ && last >= 0 && trace_ != nullptr) trace_->Awaited(last);
  EndStall();
}

void Wait::EndStall() {
  if (awaited_.empty()) return;
  Print(StallOver(awaited_, describe_(), WaitedSeconds(Clock::now())));
  awaited_.clear();
}

void Wait::Print(const std::string& text) const {
  if (config_.on_stall) {
    config_.on_stall(text);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

Stall Wait::StallOf(double waited_seconds, const Topology& topology,
                    const std::vector<int>& missing) const {
  Stall stall;
  stall.waiter = RankListWithHosts(topology_, {topology_.rank});
  stall.title = describe_();
  stall.missing = Named(topology, missing);
  stall.own = call_;
  stall.all_came = all_came_;
  stall.before = before_;
  stall.now_ns = SteadyNs();
  stall.waited_seconds = waited_seconds;
  stall.limit_seconds = config_.stall_shutdown_seconds;
  if (config_.monitor != nullptr) stall.ranks = config_.monitor->Look(topology, missing);
  return stall;
}

}  // namespace tfdist
