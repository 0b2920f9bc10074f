// Where the ranks of a communicator run. Pure values: finds nothing out by itself.
#ifndef TFDIST_CORE_PLACE_TOPOLOGY_H_
#define TFDIST_CORE_PLACE_TOPOLOGY_H_

#include <string>
#include <vector>

#include "core/value/export.h"

namespace tfdist {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;              // among the ranks of this host
  int local_size = 1;              // ranks on this host
  int cross_rank = 0;              // among the ranks with this local rank, one a host
  int cross_size = 1;              // hosts that have a rank with this local rank
  bool is_homogeneous = true;      // every host has the same number of ranks
  std::vector<int> local_ranks;    // by rank
  std::vector<int> host_ids;       // by rank; equal exactly where two ranks share a host
  std::vector<std::string> hosts;  // by rank, for messages; two hosts may share a name
  std::vector<int> world_ranks;    // by rank: its number among all, which messages use
};

// `host_ids[r]` is equal for two ranks exactly when they share a host.
TFDIST_API Topology MakeTopology(int rank, const std::vector<int>& host_ids,
                                 std::vector<std::string> hosts);

// The topology among some of the ranks, ascending and with `whole.rank` among them; they are
// counted anew, and keep their numbers among all in `world_ranks`.
TFDIST_API Topology SubsetTopology(const Topology& whole, const std::vector<int>& ranks);

// The topology among the ranks of this host.
Topology HostTopology(const Topology& whole);

// "rank 2", "ranks 1-2, 5": for messages. `ranks` is ascending.
std::string RankList(const std::vector<int>& ranks);

// "rank 2 (host a), ranks 3-4 (host b)", by their numbers among all; at most 8 hosts are spelled
// out.
TFDIST_API std::string RankListWithHosts(const Topology& topology, const std::vector<int>& ranks);

}  // namespace tfdist

#endif  // TFDIST_CORE_PLACE_TOPOLOGY_H_
