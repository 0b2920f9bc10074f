#include "core/watch/stall_monitor.h"

#include <algorithm>

#include "core/watch/steady_clock.h"

namespace tfdist {

void StallMonitor::Open(std::shared_ptr<Window> page, const Topology& host,
                        std::vector<int64_t> processes) {
  std::lock_guard<std::mutex> lock(mutex_);
  page_ = std::move(page);
  processes_ = std::move(processes);
  places_.assign(processes_.size(), -1);
  for (int place = 0; page_ != nullptr && place < host.size; ++place) {
    places_[host.world_ranks[place]] = place;
  }
  last_.state = Activity::kIdle;
  last_.since_ns = SteadyNs();
  Show();
}

Activity StallMonitor::Enter(int process_set, const std::string& title, int64_t call, bool on_gpu) {
  Activity activity;
  activity.state = Activity::kInside;
  activity.call = call;
  activity.since_ns = SteadyNs();
  activity.on_gpu = on_gpu ? 1 : 0;
  activity.SetTitle(title);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto ours = [process_set](const auto& entry) { return entry.first == process_set; };
  inside_.erase(std::remove_if(inside_.begin(), inside_.end(), ours), inside_.end());
  inside_.emplace_back(process_set, activity);
  Show();
  return activity;
}

void StallMonitor::Leave(int process_set, bool failed) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = inside_.begin(); entry != inside_.end(); ++entry) {
    if (entry->first != process_set) continue;
    last_ = entry->second;
    last_.state = failed ? Activity::kFailed : Activity::kFinished;
    last_.since_ns = SteadyNs();
    inside_.erase(entry);
    return Show();
  }
}

// The call that was entered last of those that it is in, else the one that it left last.
void StallMonitor::Show() {
  if (page_ == nullptr) return;
  page_->activity(page_->rank()).Publish(inside_.empty() ? last_ : inside_.back().second);
}

std::vector<MissingRank> StallMonitor::Look(const Topology& topology,
                                            const std::vector<int>& ranks) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<int> ended = page_ != nullptr ? page_->EndedRanks() : std::vector<int>();
  std::vector<MissingRank> seen;
  for (int r : ranks) {
    MissingRank missing;
    missing.rank = topology.world_ranks[r];
    missing.host = topology.hosts[r];
    missing.is_here = topology.host_ids[r] == topology.host_ids[topology.rank];
    const size_t number = static_cast<size_t>(missing.rank);
    if (number < processes_.size()) {
      missing.process = processes_[number];
      const int place = places_[number];
      if (place >= 0) missing.activity = page_->activity(place).Read();
      missing.has_ended = place >= 0 && std::count(ended.begin(), ended.end(), place) > 0;
    }
    seen.push_back(missing);
  }
  return seen;
}

void StallMonitor::NoteEnded(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  noted_.push_back(rank);
}

std::vector<int> StallMonitor::Ended(const Topology& topology,
                                     const std::vector<int>& ranks) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int> found;
  const std::vector<int> here = page_ != nullptr ? page_->EndedRanks() : std::vector<int>();
  if (here.empty() && noted_.empty()) return found;
  for (int r : ranks) {
    const int number = topology.world_ranks[r];
    const int place = static_cast<size_t>(number) < places_.size() ? places_[number] : -1;
    const bool ended = place >= 0 && std::count(here.begin(), here.end(), place) > 0;
    if (ended || std::count(noted_.begin(), noted_.end(), number) > 0) found.push_back(r);
  }
  return found;
}

bool Speaks(const Topology& topology, const std::vector<int>& missing) {
  if (missing.empty()) return true;
  for (int r = 0; r < topology.rank; ++r) {
    if (std::count(missing.begin(), missing.end(), r) == 0) return false;
  }
  return true;
}

}  // namespace tfdist
