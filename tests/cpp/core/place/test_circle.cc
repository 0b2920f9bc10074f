// In which order a rank gathers something of every rank.
#include <string>

#include "core/place/circle.h"
#include "expect.h"

using tfdist::Circle;
using tfdist::MakeTopology;

namespace {

Circle CircleOf(int rank, const std::vector<int>& host_ids, bool by_host) {
  const std::vector<std::string> hosts(host_ids.size(), "localhost");
  return Circle(MakeTopology(rank, host_ids, hosts), by_host);
}

std::string Text(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += std::to_string(rank) + " ";
  return text;
}

}  // namespace

TEST(CircleOfRanksBeginsWithThisOne) {
  const Circle circle = CircleOf(2, {0, 0, 1, 1}, /*by_host=*/false);
  EXPECT_EQ(Text(circle.ranks()), "2 3 0 1 ");
  EXPECT_EQ(circle.groups(), 4);
  for (int distance = 0; distance < 4; ++distance) {
    EXPECT_EQ(circle.BeginOf(distance), distance);
    EXPECT_EQ(circle.LeaderOf(distance), (2 + distance) % 4);
    EXPECT_EQ(circle.DistanceOf(circle.LeaderOf(distance)), distance);
    EXPECT_EQ(circle.PositionOf(circle.LeaderOf(distance)), distance);
  }
}

TEST(CircleOfHostsBeginsWithThisOneInItsOrder) {
  for (int rank : {1, 3, 4}) {  // of host 7, which has three ranks
    const Circle circle = CircleOf(rank, {5, 7, 5, 7, 7, 3}, /*by_host=*/true);
    EXPECT_EQ(Text(circle.ranks()), "1 3 4 5 0 2 ");
    EXPECT_EQ(circle.groups(), 3);
    EXPECT_EQ(circle.LeaderOf(0), 1);
    EXPECT_EQ(circle.LeaderOf(1), 5);
    EXPECT_EQ(circle.LeaderOf(2), 0);
    EXPECT_EQ(circle.BeginOf(1), 3);
    EXPECT_EQ(circle.BeginOf(2), 4);
    EXPECT_EQ(circle.BeginOf(3), 6);
    EXPECT_EQ(circle.DistanceOf(2), 2);
    EXPECT_EQ(circle.PositionOf(2), 5);
  }
}

TEST(CircleOfOneRank) {
  const Circle circle = CircleOf(0, {4}, /*by_host=*/true);
  EXPECT_EQ(circle.groups(), 1);
  EXPECT_EQ(circle.LeaderOf(0), 0);
  EXPECT_EQ(circle.BeginOf(1), 1);
}
