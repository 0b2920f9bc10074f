#include "core/algorithm/host.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/algorithm/collective.h"
#include "core/watch/meter.h"
#include "core/watch/stall_monitor.h"
#include "core/watch/timeline.h"

namespace tfdist {
namespace {

// The ranks that have the same local rank as this one, one a host.
std::vector<int> Peers(const Topology& whole) {
  std::vector<int> ranks;
  for (int r = 0; r < whole.size; ++r) {
    if (whole.local_ranks[r] == whole.local_rank) ranks.push_back(r);
  }
  return ranks;
}

// The numbers of all ranks.
Status Gather(int64_t own, Communicator* communicator, Wait* wait, std::vector<int64_t>* all) {
  FusionBuffer scratch;
  Collective collective(communicator, wait, &scratch);
  all->resize(static_cast<size_t>(communicator->size()));
  return collective.Allgather(&own, std::vector<int64_t>(all->size(), sizeof(own)), all->data());
}

Status CheckSettings(int64_t window_bytes, Communicator* communicator, Wait* wait) {
  std::vector<int64_t> all;
  TFDIST_RETURN_IF_ERROR(Gather(window_bytes, communicator, wait, &all));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const std::vector<int>& names = communicator->topology().world_ranks;
    return Status(StatusCode::kInvalidArgument,
                  "the shared memory of a rank is " + std::to_string(all[0]) + " bytes on rank " +
                      std::to_string(names[0]) + " and " + std::to_string(all[r]) +
                      " bytes on rank " + std::to_string(names[r]) +
                      "; expected the same everywhere. Set TFDIST_SHARED_MEMORY and "
                      "TFDIST_AUTOTUNE to the same values on all ranks, or unset them.");
  }
  return Status::Ok();
}

}  // namespace

Status OpenHost(const EngineConfig& config, int channel, Communicator* communicator, Wait* wait,
                Host* host) {
  const Topology& whole = communicator->topology();
  TFDIST_RETURN_IF_ERROR(CheckSettings(config.window_bytes, communicator, wait));
  const bool all_alone = whole.is_homogeneous && whole.local_size == 1;
  if (config.window_bytes == 0 || all_alone) return Status::Ok();
  host->topology = HostTopology(whole);
  std::unique_ptr<Window> window;
  const int64_t bytes = whole.is_homogeneous ? config.window_bytes : 0;
  Status opened = communicator->OpenWindow(bytes, wait, &window);
  if (!opened.ok() && opened.code() != StatusCode::kInternal) return opened;
  std::unique_ptr<Communicator> peers;
  if (whole.is_homogeneous && whole.cross_size > 1) {
    // Whatever came of the window: the ranks of another host may have theirs.
    const Status connected = communicator->Subset(Peers(whole), channel, wait, &peers);
    if (opened.ok()) opened = connected;
  }
  std::vector<int64_t> failed;
  TFDIST_RETURN_IF_ERROR(Gather(opened.ok() ? 0 : 1, communicator, wait, &failed));
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first != failed.end()) {
    if (first - failed.begin() == whole.rank) {
      std::fprintf(
          stderr,
          "tfdist: collectives go by messages instead of shared memory, which is slower: %s\n",
          opened.message().c_str());
    }
    return Status::Ok();
  }
  if (window == nullptr) return Status::Ok();  // the transport has none
  host->peers = std::move(peers);
  host->board = std::move(window);
  if (whole.is_homogeneous) host->window = host->board;
  return Status::Ok();
}

EngineConfig Instrumented(EngineConfig config) {
  if (config.monitor == nullptr) config.monitor = std::make_shared<StallMonitor>();
  if (config.meter == nullptr) config.meter = std::make_shared<Meter>();
  if (config.timeline == nullptr) config.timeline = std::make_shared<Timeline>();
  return config;
}

Status OpenMonitor(const EngineConfig& config, const Host& host, Communicator* communicator,
                   Wait* wait) {
  const Topology& whole = communicator->topology();
  std::vector<int64_t> processes;
  TFDIST_RETURN_IF_ERROR(Gather(config.process, communicator, wait, &processes));
  config.monitor->Open(host.board, HostTopology(whole), std::move(processes));
  return Status::Ok();
}

}  // namespace tfdist
