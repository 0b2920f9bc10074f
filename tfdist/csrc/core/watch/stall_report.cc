#include "core/watch/stall_report.h"

#include <cstdio>
#include <cstring>

namespace tfdist {
namespace {

constexpr size_t kMostRanks = 16;  // that are told of one by one

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

std::string CallOf(const Activity& activity) {
  if (activity.title[0] == '\0') return "call " + std::to_string(activity.call);
  return std::string(activity.title) + " (call " + std::to_string(activity.call) + ")";
}

bool IsSameCall(const Activity& one, const Activity& other) {
  return one.call == other.call && std::strcmp(one.title, other.title) == 0;
}

std::string Since(const Activity& activity, const Stall& stall) {
  return Seconds(static_cast<double>(stall.now_ns - activity.since_ns) * 1e-9);
}

// Every call begins with a message of each rank, so much is known of those that cannot be seen.
std::string Sent(const MissingRank& missing, const Stall& stall) {
  if (stall.own.state != Activity::kInside) {
    return missing.is_here ? "has no known last collective: it shares no memory with this rank"
                           : "has no known last collective: it is on another host";
  }
  if (stall.all_came) return "has reached this collective";
  if (stall.before.call == 0) return "has not reached a collective yet";
  return "was last seen in " + CallOf(stall.before) + " " + Since(stall.before, stall) + " ago";
}

std::string Did(const MissingRank& missing, const Stall& stall) {
  const Activity& last = missing.activity;
  const Activity& own = stall.own;
  const std::string since = Since(last, stall);
  switch (last.state) {
    case Activity::kIdle:
      return "has not called a collective yet";
    case Activity::kInside:
      if (own.state != Activity::kInside) return "has been in " + CallOf(last) + " for " + since;
      if (IsSameCall(last, own)) return "has been in the same collective for " + since;
      return "is waiting in another collective: " + CallOf(last) + ", for " + since;
    case Activity::kFinished:
      if (last.on_gpu != 0) return "handed " + CallOf(last) + " to its GPU " + since + " ago";
      return "finished " + CallOf(last) + " " + since + " ago";
    case Activity::kFailed:
      return "left " + CallOf(last) + " with an error " + since + " ago";
    default:
      return Sent(missing, stall);
  }
}

std::string HowToSee(const MissingRank& missing) {
  if (missing.has_ended) return "Its process has ended: see its output";
  if (missing.process == 0) return "Its stacks: py-spy dump, on host " + missing.host;
  return "Its Python stacks: kill -USR1 " + std::to_string(missing.process) + " on host " +
         missing.host;
}

std::string Story(const Stall& stall, const std::string& end) {
  std::string text = stall.waiter + " has waited " + Seconds(stall.waited_seconds) + " in " +
                     stall.title + " for " + stall.missing + ".\n";
  for (size_t i = 0; i < stall.ranks.size() && i < kMostRanks; ++i) {
    text += "  " + LastSeen(stall.ranks[i], stall) + "\n";
  }
  if (stall.ranks.size() > kMostRanks) {
    text += "  and " + std::to_string(stall.ranks.size() - kMostRanks) + " more ranks\n";
  }
  if (stall.own.state == Activity::kInside) {
    text += "This is call " + std::to_string(stall.own.call) + ". ";
  }
  return text + end +
         " Check that those processes are still running and what they are doing, and that no rank "
         "skips a collective, for example because it has fewer steps or a branch that depends on "
         "its rank.";
}

}  // namespace

std::string LastSeen(const MissingRank& missing, const Stall& stall) {
  return "rank " + std::to_string(missing.rank) + " " + Did(missing, stall) + ". " +
         HowToSee(missing);
}

std::string StallReport(const Stall& stall) {
  return "tfdist: stalled: " + Story(stall, "It fails after " + Seconds(stall.limit_seconds) +
                                                " (TFDIST_STALL_CHECK_SHUTDOWN_TIME).");
}

std::string StallOver(const std::string& missing, const std::string& title, double waited_seconds) {
  return "tfdist: the stall is over: " + missing + " reached " + title + " after " +
         Seconds(waited_seconds) + "; the job continues.";
}

std::string StallError(const Stall& stall) {
  return Story(stall, "It has failed after " + Seconds(stall.limit_seconds) +
                          " (TFDIST_STALL_CHECK_SHUTDOWN_TIME; raise it if those ranks are only "
                          "slow).");
}

}  // namespace tfdist
