#include "core/place/circle.h"

#include <map>

namespace tfdist {

Circle::Circle(const Topology& topology, bool by_host) {
  std::vector<std::vector<int>> groups;  // in the order of their first ranks
  std::map<int, size_t> of_host;
  size_t own = 0;
  for (int rank = 0; rank < topology.size; ++rank) {
    const int key = by_host ? topology.host_ids[rank] : rank;
    const size_t group = of_host.emplace(key, groups.size()).first->second;
    if (group == groups.size()) groups.emplace_back();
    groups[group].push_back(rank);
    if (rank == topology.rank) own = group;
  }
  positions_.resize(static_cast<size_t>(topology.size));
  distances_.resize(static_cast<size_t>(topology.size));
  for (size_t distance = 0; distance < groups.size(); ++distance) {
    for (int rank : groups[(own + distance) % groups.size()]) {
      positions_[rank] = static_cast<int>(ranks_.size());
      distances_[rank] = static_cast<int>(distance);
      ranks_.push_back(rank);
    }
    begins_.push_back(static_cast<int>(ranks_.size()));
  }
}

}  // namespace tfdist
