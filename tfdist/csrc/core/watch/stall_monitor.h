// Shows the other ranks of the host what this process does, and sees what they do, for the report
// of a stall. One a process: the engines of its process sets share it. Waits for nothing. Thread
// safe.
#ifndef TFDIST_CORE_WATCH_STALL_MONITOR_H_
#define TFDIST_CORE_WATCH_STALL_MONITOR_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/place/activity.h"
#include "core/place/topology.h"
#include "core/place/window.h"
#include "core/watch/stall_report.h"

namespace tfdist {

class StallMonitor {
 public:
  // Once all ranks know each other; before, and of ranks elsewhere, nothing is to be seen. `page`
  // may be null. `host` has the ranks of the page; `processes` is by rank among all
  // (MissingRank::process).
  void Open(std::shared_ptr<Window> page, const Topology& host, std::vector<int64_t> processes);

  // A process set runs one call at a time. Enter returns what the others see of it; Leave does
  // nothing where the set is in none.
  Activity Enter(int process_set, const std::string& title, int64_t call, bool on_gpu);
  void Leave(int process_set, bool failed);

  // What can be told of `ranks`, by their numbers in `topology`.
  std::vector<MissingRank> Look(const Topology& topology, const std::vector<int>& ranks) const;

  // From now on `rank`, by its number among all, counts as ended, wherever it was.
  void NoteEnded(int rank);

  // Those of `ranks` that are known to have ended: from the page, or as noted. Quick enough for
  // every few polls.
  std::vector<int> Ended(const Topology& topology, const std::vector<int>& ranks) const;

 private:
  void Show();

  mutable std::mutex mutex_;
  std::shared_ptr<Window> page_;
  std::vector<int> places_;  // in the page, by rank among all; negative: not there
  std::vector<int64_t> processes_;
  std::vector<int> noted_;
  std::vector<std::pair<int, Activity>> inside_;  // by process set, in the order of their entering
  Activity last_;                                 // that was left
};

// Which rank speaks for all that wait for `missing` in the communicator of `topology`: the lowest
// of those that wait. Where the transport cannot tell who is missing, each speaks for itself.
bool Speaks(const Topology& topology, const std::vector<int>& missing);

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_STALL_MONITOR_H_
