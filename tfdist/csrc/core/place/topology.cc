#include "core/place/topology.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tfdist {

Topology MakeTopology(int rank, const std::vector<int>& host_ids, std::vector<std::string> hosts) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(host_ids.size());
  topology.host_ids = host_ids;
  topology.hosts = std::move(hosts);
  for (int r = 0; r < topology.size; ++r) topology.world_ranks.push_back(r);
  std::map<int, int> ranks_seen;  // host id -> ranks
  for (int id : host_ids) topology.local_ranks.push_back(ranks_seen[id]++);
  topology.local_rank = topology.local_ranks[rank];
  topology.local_size = ranks_seen[host_ids[rank]];
  topology.cross_size = 0;
  for (int r = 0; r < topology.size; ++r) {
    if (topology.local_ranks[r] != topology.local_rank) continue;
    if (r == rank) topology.cross_rank = topology.cross_size;
    ++topology.cross_size;
  }
  for (const auto& host : ranks_seen) {
    if (host.second != topology.local_size) topology.is_homogeneous = false;
  }
  return topology;
}

Topology SubsetTopology(const Topology& whole, const std::vector<int>& ranks) {
  std::vector<int> host_ids;
  std::vector<int> world_ranks;
  std::vector<std::string> hosts;
  int rank = 0;
  for (int r : ranks) {
    if (r < whole.rank) ++rank;
    host_ids.push_back(whole.host_ids[r]);
    hosts.push_back(whole.hosts[r]);
    world_ranks.push_back(whole.world_ranks[r]);
  }
  Topology topology = MakeTopology(rank, host_ids, std::move(hosts));
  topology.world_ranks = std::move(world_ranks);
  return topology;
}

Topology HostTopology(const Topology& whole) {
  std::vector<int> ranks;
  for (int r = 0; r < whole.size; ++r) {
    if (whole.host_ids[r] == whole.host_ids[whole.rank]) ranks.push_back(r);
  }
  return SubsetTopology(whole, ranks);
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string RankListWithHosts(const Topology& topology, const std::vector<int>& ranks) {
  constexpr size_t kMaxHosts = 8;
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in order of the first rank
  for (int rank : ranks) {
    const std::string& host = topology.hosts.at(rank);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&host](const auto& candidate) { return candidate.first == host; });
    if (group == groups.end()) group = groups.insert(groups.end(), {host, {}});
    group->second.push_back(topology.world_ranks.at(rank));
  }
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kMaxHosts; ++i) {
    if (i > 0) text += ", ";
    text += RankList(groups[i].second) + " (host " + groups[i].first + ")";
  }
  if (groups.size() > kMaxHosts) {
    text += " and ranks on " + std::to_string(groups.size() - kMaxHosts) + " more hosts";
  }
  return text;
}

}  // namespace tfdist
