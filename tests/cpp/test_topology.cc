// Places of ranks on hosts, and rank lists for messages.
#include "core/topology.h"
#include "expect.h"

using tfdist::MakeTopology;
using tfdist::RankList;
using tfdist::Topology;

TEST(TopologyOfInterleavedUnevenHosts) {
  // Host 0 has ranks 0, 2, 4; host 1 has ranks 1, 3.
  const std::vector<int> ids = {0, 1, 0, 1, 0};
  const std::vector<std::string> names = {"a", "b", "a", "b", "a"};
  const Topology third = MakeTopology(3, ids, names);
  EXPECT_EQ(third.size, 5);
  EXPECT_EQ(third.local_rank, 1);
  EXPECT_EQ(third.local_size, 2);
  EXPECT_EQ(third.cross_rank, 1);
  EXPECT_EQ(third.cross_size, 2);
  EXPECT(!third.is_homogeneous);
  const Topology last = MakeTopology(4, ids, names);
  EXPECT_EQ(last.local_rank, 2);
  EXPECT_EQ(last.cross_rank, 0);
  EXPECT_EQ(last.cross_size, 1);
  EXPECT(!last.is_homogeneous);
}

TEST(TopologyOfEqualHostsIsHomogeneous) {
  const Topology topology = MakeTopology(2, {0, 0, 2, 2}, {"x", "x", "x", "x"});
  EXPECT(topology.is_homogeneous);
  EXPECT_EQ(topology.local_rank, 0);
  EXPECT_EQ(topology.cross_rank, 1);
}

TEST(RankListShortensRuns) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
}

TEST(RankListWithHostsGroupsByHost) {
  const Topology topology = MakeTopology(0, {0, 1, 1, 0}, {"a", "b", "b", "a"});
  EXPECT_EQ(RankListWithHosts(topology, {1, 2, 3}), "ranks 1-2 (host b), rank 3 (host a)");
}
