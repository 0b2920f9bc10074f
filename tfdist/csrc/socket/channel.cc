#include "socket/channel.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace tfdist {
namespace {

// What a rank tells the others about its part.
struct ChannelReport {
  int32_t port;      // where it listens; 0 or less: it has failed
  char reason[508];  // of that, with a terminating zero
};

ChannelReport ReportOf(const Status& status, int port) {
  ChannelReport report = {};
  report.port = status.ok() ? port : 0;
  std::snprintf(report.reason, sizeof(report.reason), "%s", status.message().c_str());
  return report;
}

// Sends `own` to the other ranks and receives theirs, by place in spec.ranks.
Status Tell(const ChannelSpec& spec, ChannelReport* own, std::vector<ChannelReport>* all) {
  all->assign(spec.ranks.size(), *own);
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (size_t i = 0; i < spec.ranks.size(); ++i) {
    if (spec.ranks[i] == spec.over->rank()) continue;
    sends.push_back({spec.ranks[i], own, sizeof(ChannelReport)});
    receives.push_back({spec.ranks[i], &(*all)[i], sizeof(ChannelReport)});
  }
  return spec.over->Exchange(sends, receives, spec.wait);
}

// The same on all ranks.
Status FirstFailure(const ChannelSpec& spec, const std::vector<ChannelReport>& all,
                    const std::string& what) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].port > 0) continue;
    const auto& bytes = all[i].reason;
    const std::string reason(bytes, std::find(bytes, bytes + sizeof(bytes), '\0'));
    return Status(StatusCode::kUnavailable,
                  RankListWithHosts(spec.over->topology(), {spec.ranks[i]}) + " could not " + what +
                      " for channel " + std::to_string(spec.channel) + ": " + reason);
  }
  return Status::Ok();
}

// Has the connector end what this rank's Listen has started, and dial `all` unless it is empty.
Status Connect(const ChannelSpec& spec, const std::vector<ChannelReport>& all,
               std::vector<LiveDescriptor>* connections) {
  std::vector<size_t> places;
  std::vector<int> ranks;
  std::vector<int> ports;
  for (size_t i = 0; i < all.size(); ++i) {
    if (spec.ranks[i] == spec.over->rank()) continue;
    places.push_back(i);
    ranks.push_back(spec.over->topology().world_ranks[spec.ranks[i]]);
    ports.push_back(all[i].port);
  }
  std::vector<int> numbers;
  const Status connected = spec.connector->Connect(spec.channel, ranks, ports, &numbers);
  connections->resize(spec.ranks.size());
  for (size_t i = 0; i < numbers.size() && i < places.size(); ++i) {
    (*connections)[places[i]] = LiveDescriptor(numbers[i]);
  }
  return connected;
}

}  // namespace

Status OpenChannel(const ChannelSpec& spec,
                   const std::function<Status(std::vector<LiveDescriptor>)>& use) {
  std::vector<LiveDescriptor> connections(spec.ranks.size());
  if (spec.ranks.size() == 1) return use(std::move(connections));
  int port = 0;
  const Status listens = spec.connector->Listen(spec.channel, &port);
  ChannelReport own = ReportOf(listens, port);
  std::vector<ChannelReport> all;
  Status status = Tell(spec, &own, &all);
  if (status.ok()) status = FirstFailure(spec, all, "listen");
  if (!status.ok()) {
    if (listens.ok()) static_cast<void>(Connect(spec, {}, &connections));
    return status;
  }
  status = Connect(spec, all, &connections);
  if (status.ok()) status = use(std::move(connections));
  own = ReportOf(status, port);
  TFDIST_RETURN_IF_ERROR(Tell(spec, &own, &all));
  return FirstFailure(spec, all, "connect");
}

}  // namespace tfdist
