#include "core/agree/host_meeting.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace tfdist {
namespace {

// Looks at memory before the thread gives way.
constexpr int kLooks = 4;

// Pauses between two looks at the peers, which cost system calls, while this rank does not sleep.
constexpr int kPausesPerCheck = 64;

}  // namespace

void HostMeeting::Show(const void* header) {
  Window::Meeting& own = window_->meeting(window_->rank());
  std::memcpy(own.headers[number_ % 2], header, Window::kHeaderBytes);
  own.shown.store(number_, std::memory_order_release);
}

Status HostMeeting::Gather(char* headers) {
  int next = 0;  // all before have come
  const auto is_here = [&] { return (next = FirstMissing(next)) == window_->size(); };
  TFDIST_RETURN_IF_ERROR(Await({false, is_here}));
  TFDIST_RETURN_IF_ERROR(CheckShown());
  for (int r = 0; r < window_->size(); ++r) {
    std::memcpy(headers + r * Window::kHeaderBytes, window_->meeting(r).headers[number_ % 2],
                Window::kHeaderBytes);
  }
  return Status::Ok();
}

void HostMeeting::Tell(const char* headers) {
  const size_t bytes = circle_.ranks().size() * Window::kHeaderBytes;
  std::memcpy(window_->all_headers(), headers, bytes);
  window_->meeting(0).told.store(number_, std::memory_order_release);
}

Status HostMeeting::Hear(char* headers) {
  const auto is_here = [&] {
    return window_->meeting(0).told.load(std::memory_order_acquire) >= number_;
  };
  TFDIST_RETURN_IF_ERROR(Await({true, is_here}));
  const size_t bytes = circle_.ranks().size() * Window::kHeaderBytes;
  std::memcpy(headers, window_->all_headers(), bytes);
  return Status::Ok();
}

// The first rank of the host, from `local_rank` on, that has not come; their number if all have.
int HostMeeting::FirstMissing(int local_rank) const {
  const auto has_come = [this](int r) {
    const uint64_t shown = window_->meeting(r).shown.load(std::memory_order_acquire);
    return (shown & ~Window::kGivenUp) >= number_;
  };
  while (local_rank < window_->size() && has_come(local_rank)) ++local_rank;
  return local_rank;
}

// By their numbers in the communicator.
std::vector<int> HostMeeting::Missing() const {
  std::vector<int> ranks;
  for (int r = FirstMissing(0); r < window_->size(); r = FirstMissing(r + 1)) {
    ranks.push_back(circle_.ranks()[r]);
  }
  return ranks;
}

Status HostMeeting::Await(const Awaited& awaited) {
  if (awaited.is_here()) return Status::Ok();
  const Topology& topology = communicator_->topology();
  wait_->Begin();
  for (int pauses = 1;; ++pauses) {
    Status status = wait_->Pause(topology, [this] { return Missing(); });
    int lost = wait_->lost();
    if (status.ok() && (wait_->slept() || pauses % kPausesPerCheck == 0)) {
      status = CheckPeers(awaited, &lost);
    }
    for (int look = 0; look < kLooks; ++look) {
      Relax();
      if (!awaited.is_here()) continue;
      wait_->Ended(topology, circle_.LeaderOf(0));
      return Status::Ok();
    }
    // What a rank has shown counts, also if it ended right after.
    if (!status.ok()) return communicator_->GiveUp(status, lost, *wait_);
  }
}

// A rank that has come and then given up is not there for what follows.
Status HostMeeting::CheckShown() const {
  std::vector<int> failed;
  for (int r = 0; r < window_->size(); ++r) {
    const uint64_t shown = window_->meeting(r).shown.load(std::memory_order_relaxed);
    if ((shown & Window::kGivenUp) != 0) failed.push_back(circle_.ranks()[r]);
  }
  if (failed.empty()) return Status::Ok();
  int lost = -1;
  Status status = communicator_->CheckPeers(failed, &lost);
  if (status.ok()) status = Lost(failed, ", which has failed.");
  return communicator_->GiveUp(status, lost, *wait_);
}

// What the transport says goes first: it names the rank that was lost, on whichever host.
Status HostMeeting::CheckPeers(const Awaited& awaited, int* lost) const {
  std::vector<int> ranks = Missing();
  const int leader = circle_.LeaderOf(0);
  if (awaited.of_leader && std::count(ranks.begin(), ranks.end(), leader) == 0) {
    ranks.insert(ranks.begin(), leader);
  }
  std::vector<int> ended;
  for (int r : window_->EndedRanks()) ended.push_back(circle_.ranks()[r]);
  std::vector<int> failed;
  for (int r : ranks) {
    if (window_->HasGivenUp(circle_.PositionOf(r))) failed.push_back(r);
  }
  TFDIST_RETURN_IF_ERROR(communicator_->CheckPeers(ranks, lost));
  if (!ended.empty()) {
    *lost = communicator_->topology().world_ranks[ended[0]];
    return Lost(ended, ", whose process has ended.");
  }
  return failed.empty() ? Status::Ok() : Lost(failed, ", which has failed.");
}

Status HostMeeting::Lost(const std::vector<int>& ranks, const std::string& what) const {
  const Topology& topology = communicator_->topology();
  return Status(StatusCode::kUnavailable, RankListWithHosts(topology, {topology.rank}) + " lost " +
                                              RankListWithHosts(topology, ranks) + what);
}

}  // namespace tfdist
