// In which order a rank gathers something of every rank: in a circle of groups that begins with its
// own. A group is the ranks of a host, or a rank alone; the first of a group leads it. Pure values.
#ifndef TFDIST_CORE_PLACE_CIRCLE_H_
#define TFDIST_CORE_PLACE_CIRCLE_H_

#include <vector>

#include "core/place/topology.h"
#include "core/value/export.h"

namespace tfdist {

class TFDIST_API Circle {
 public:
  Circle() = default;
  Circle(const Topology& topology, bool by_host);

  int groups() const { return static_cast<int>(begins_.size()) - 1; }

  // The ranks by their positions: those of this rank's group, then those of the next.
  const std::vector<int>& ranks() const { return ranks_; }
  int PositionOf(int rank) const { return positions_[rank]; }

  // Groups are named by their distance from this rank's, which is 0. BeginOf(groups()) is the
  // number of ranks.
  int DistanceOf(int rank) const { return distances_[rank]; }
  int BeginOf(int distance) const { return begins_[distance]; }
  int LeaderOf(int distance) const { return ranks_[begins_[distance]]; }

 private:
  std::vector<int> ranks_;      // by position
  std::vector<int> positions_;  // by rank
  std::vector<int> distances_;  // by rank
  std::vector<int> begins_ = {0};
};

}  // namespace tfdist

#endif  // TFDIST_CORE_PLACE_CIRCLE_H_
