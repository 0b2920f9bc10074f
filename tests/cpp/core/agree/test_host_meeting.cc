// The agreement where the ranks of a host meet in their window first: how many messages it takes,
// and that ranks which differ, have joined, are late or are lost are told of as over messages
// alone.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "agreement.h"
#include "core/agree/header.h"
#include "core/place/topology.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"

using tfdist::Call;
using tfdist::EngineConfig;
using tfdist::Operation;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Window;

namespace {

using Hosts = std::vector<int>;  // host by rank

// `hosts` with these many ranks each, in turn; one after the other or dealt out.
Hosts HostsOf(const std::vector<int>& counts, bool dealt = false) {
  Hosts hosts;
  for (size_t host = 0; host < counts.size(); ++host) {
    hosts.insert(hosts.end(), static_cast<size_t>(counts[host]), static_cast<int>(host));
  }
  if (!dealt) return hosts;
  Hosts turned;
  const size_t step = counts.size();
  for (size_t first = 0; first < step; ++first) {
    for (size_t i = first; i < hosts.size(); i += step) turned.push_back(hosts[i]);
  }
  return turned;
}

std::vector<Hosts> ManyHosts() {
  std::vector<Hosts> all;
  for (int size = 2; size <= 17; ++size) all.push_back(HostsOf({size}));
  all.push_back(HostsOf({64}));
  all.push_back({0, 1, 0, 1});
  all.push_back(HostsOf({3, 3, 3}));
  all.push_back(HostsOf({8, 8}, /*dealt=*/true));
  all.push_back(HostsOf({1, 2}));
  all.push_back(HostsOf({2, 1, 1, 3}, /*dealt=*/true));
  all.push_back(HostsOf({1, 1, 1, 1, 1, 2, 1, 1, 1, 3}));  // 10 hosts: leaders take rounds
  all.push_back(HostsOf({1, 1, 1, 1, 1}));
  all.push_back(HostsOf({8, 8, 8, 8, 8, 8, 8, 8}));
  all.push_back(HostsOf({1, 7, 2, 6, 3, 5, 4, 4, 8, 1, 9, 1, 5, 1, 3, 3, 1}, /*dealt=*/true));
  return all;
}

int LeaderOf(const Hosts& hosts, int rank) {
  return static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[rank]) - hosts.begin());
}

int CountOf(const Hosts& hosts) { return *std::max_element(hosts.begin(), hosts.end()) + 1; }

int MostMessages(int hosts) { return hosts <= 8 ? hosts - 1 : hosts <= 16 ? 6 : 9; }

}  // namespace

TEST(HostMeetingBringsEveryHeaderAndLeadersSendAlone) {
  for (const Hosts& hosts : ManyHosts()) {
    RunBothWays(hosts, [&](const RankContext& self) {
      Member member(self, /*in_windows=*/true);
      for (uint32_t round = 0; round < 20; ++round) {
        member.communicator.messages = 0;
        Call call = BarrierOf("b");
        call.weight = 1000 * round + static_cast<uint32_t>(self.rank);
        EXPECT_EQ(member.Agree(call).message(), "");
        for (int r = 0; r < self.size; ++r) {
          EXPECT_EQ(member.agreement.weights[r], 1000 * round + r);
        }
        const bool leads = LeaderOf(hosts, self.rank) == self.rank;
        const int most = leads ? MostMessages(CountOf(hosts)) : 0;
        EXPECT(member.communicator.messages <= most);
      }
      // By sockets a rank that waits for long tells those whose messages came too early.
      EXPECT(self.by_sockets || member.communicator.notes == 0);
    });
  }
}

TEST(HostMeetingTellsOfEachRankThatDiffersOrHasJoined) {
  for (const Hosts& hosts : ManyHosts()) {
    RunBothWays(hosts, [&](const RankContext& self) {
      Member member(self, /*in_windows=*/true);
      const int step = self.size > 17 ? 9 : 1;
      for (int odd = 0; odd < self.size; odd += step) {
        const Status differs = member.Agree(BarrierOf(self.rank == odd ? "other" : "b"));
        EXPECT_EQ(CodeOf(differs), static_cast<int>(StatusCode::kFailedPrecondition));
        EXPECT_CONTAINS(differs.message(),
                        "rank " + std::to_string(odd) + " called barrier 'other'");
        Call call = BarrierOf("b");
        if (self.rank == odd) call.operation = Operation::kJoin;
        EXPECT_EQ(member.Agree(call).message(), "");
        for (int r = 0; r < self.size; ++r) {
          EXPECT_EQ(member.agreement.joined[r], r == odd ? 1 : 0);
        }
        EXPECT_EQ(member.agreement.record.empty(), self.rank != odd);
      }
    });
  }
}

TEST(HostMeetingNamesTheLateOfTheOnlyHost) {
  ExpectLateNamed(HostsOf({9}), {4}, /*in_windows=*/true);
  ExpectLateNamed(HostsOf({9}), {0, 7}, /*in_windows=*/true);  // the first one too
}

TEST(HostMeetingNamesTheLateOfTwoHosts) {
  const Hosts pairs = {0, 0, 1, 1};
  ExpectLateNamed(pairs, {3}, /*in_windows=*/true);     // a rank of another host
  ExpectLateNamed(pairs, {2}, /*in_windows=*/true);     // its leader
  ExpectLateNamed(pairs, {2, 3}, /*in_windows=*/true);  // all of it
  ExpectLateNamed(pairs, {0, 3}, /*in_windows=*/true);  // a leader and the other's rank
}

TEST(HostMeetingNamesTheLateOfUnevenHosts) {
  const Hosts uneven = HostsOf({3, 1, 4, 2});
  ExpectLateNamed(uneven, {5}, /*in_windows=*/true);        // of a host that has more
  ExpectLateNamed(uneven, {3}, /*in_windows=*/true);        // one that is alone
  ExpectLateNamed(uneven, {1, 4, 9}, /*in_windows=*/true);  // on three hosts
}

TEST(HostMeetingNamesTheLateWhereLeadersTakeRounds) {
  const Hosts many = HostsOf({1, 1, 1, 2, 1, 1, 2, 1, 1, 2});
  ExpectLateNamed(many, {4}, /*in_windows=*/true);
  ExpectLateNamed(many, {3, 12}, /*in_windows=*/true);
}

TEST(HostMeetingNamesTheLateOfManyOnEachHost) {
  ExpectLateNamed(HostsOf({8, 8, 8, 8, 8, 8, 8, 8}), {0, 22, 23, 40, 63}, /*in_windows=*/true);
}

// Before it has shown its header, in the middle of writing it, or in the next agreement.
TEST(HostMeetingEndsForAllWhereARankIsLost) {
  enum class When { kBefore, kWriting, kAfter };
  for (const Hosts& hosts : {HostsOf({2}), HostsOf({17}), Hosts{0, 1, 0, 1}, HostsOf({1, 3, 2}),
                             HostsOf({1, 1, 1, 1, 1, 2, 1, 1, 1, 3})}) {
    const int size = static_cast<int>(hosts.size());
    for (int victim : {0, size / 2, size - 1}) {
      for (When when : {When::kBefore, When::kWriting, When::kAfter}) {
        RunBothWays(hosts, [&](const RankContext& self) {
          Member member(self, /*in_windows=*/true);
          EXPECT_EQ(member.Agree(BarrierOf("a")).message(), "");
          self.meet();
          if (self.rank == victim && when != When::kAfter) {
            Window::Meeting& own = member.window->meeting(member.window->rank());
            if (when == When::kWriting) std::memset(own.headers[0], 0xff, Window::kHeaderBytes / 2);
            return self.kill();
          }
          Status status = member.Agree(BarrierOf("b"));
          if (when == When::kAfter) {
            EXPECT(status.ok() || self.rank != victim);
            if (self.rank == victim) return self.kill();
            if (status.ok()) status = member.Agree(BarrierOf("b"));
          }
          ExpectLost(self, status, victim);
        });
      }
    }
  }
}

// A leader that has shown its header, and is lost in one of the rounds with other leaders.
TEST(HostMeetingEndsForAllWhereALeaderIsLostInARound) {
  for (const Hosts& hosts : {Hosts{0, 1, 0, 1}, HostsOf({3, 3, 3}), HostsOf({1, 3, 2}),
                             HostsOf({2, 1, 1, 1, 1, 2, 1, 1, 1, 3})}) {
    const int size = static_cast<int>(hosts.size());
    const int rounds = CountOf(hosts) <= 8 ? 1 : 2;
    for (int victim : {LeaderOf(hosts, 0), LeaderOf(hosts, size - 1)}) {
      for (int round = 0; round < rounds; ++round) {
        RunBothWays(hosts, [&](const RankContext& self) {
          Member member(self, /*in_windows=*/true);
          self.meet();
          member.communicator.before = [&](int number) {
            if (self.rank == victim && number == round) self.kill();
          };
          Status status = member.Agree(BarrierOf("b"));
          if (self.rank == victim) return;
          if (status.ok()) status = member.Agree(BarrierOf("b"));
          ExpectLost(self, status, victim);
        });
      }
    }
  }
}

// It has shown its header, waited for too long and given up. That header is not taken for it later.
TEST(HostMeetingFailsForWhoComesAfterAnotherGaveUp) {
  for (const Hosts& hosts : {HostsOf({2}), HostsOf({2, 1})}) {
    for (bool by_sockets : {false, true}) {
      Gate gave_up;
      RunRanksOn({hosts, 0, by_sockets}, TestConfig(), [&](const RankContext& self) {
        Member member(self, /*in_windows=*/true);
        if (self.rank == 2) return;
        EngineConfig config = TestConfig();
        if (self.rank == 0) config.stall_shutdown_seconds = 0.1;
        if (self.rank == 1) gave_up.Pass();
        const Status status = member.Agree(BarrierOf("b"), config);
        gave_up.Open();
        if (self.rank == 0) {
          EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kDeadlineExceeded));
          return;
        }
        EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
        EXPECT_CONTAINS(status.message(),
                        by_sockets ? "was notified by rank 0 (host localhost) that it has failed"
                                   : "lost rank 0 (host localhost), which has failed");
      });
    }
  }
}
