// Places of ranks on hosts, and rank lists for messages.
#include "core/place/topology.h"
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

TEST(TopologyOfASubsetCountsAnewAndKeepsTheNumbersAmongAll) {
  // Host a has ranks 0, 2, 4; host b has ranks 1, 3, 5.
  const Topology whole = MakeTopology(3, {0, 1, 0, 1, 0, 1}, {"a", "b", "a", "b", "a", "b"});
  const Topology subset = tfdist::SubsetTopology(whole, {0, 3, 4, 5});
  EXPECT_EQ(subset.rank, 1);
  EXPECT_EQ(subset.size, 4);
  EXPECT_EQ(subset.local_rank, 0);
  EXPECT_EQ(subset.local_size, 2);
  EXPECT_EQ(subset.cross_rank, 1);
  EXPECT_EQ(subset.cross_size, 2);
  EXPECT(subset.is_homogeneous);
  EXPECT_EQ(RankListWithHosts(subset, {0, 1, 3}), "rank 0 (host a), ranks 3, 5 (host b)");
  const Topology last = MakeTopology(5, {0, 1, 0, 1, 0, 1}, {"a", "b", "a", "b", "a", "b"});
  EXPECT_EQ(tfdist::SubsetTopology(last, {0, 3, 4, 5}).rank, 3);
  // A subset of a subset is numbered within it.
  const Topology inner = tfdist::SubsetTopology(subset, {1, 3});
  EXPECT_EQ(inner.rank, 0);
  EXPECT_EQ(inner.cross_size, 1);
  EXPECT_EQ(RankListWithHosts(inner, {0, 1}), "ranks 3, 5 (host b)");
}

TEST(RankListShortensRuns) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
}

TEST(RankListWithHostsGroupsByHost) {
  const Topology topology = MakeTopology(0, {0, 1, 1, 0}, {"a", "b", "b", "a"});
  EXPECT_EQ(RankListWithHosts(topology, {1, 2, 3}), "ranks 1-2 (host b), rank 3 (host a)");
}
