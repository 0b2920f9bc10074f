// The agreement in rounds: how many messages it takes, and that ranks which differ, have joined,
// are late or are lost are told of as in one round.
#include <string>
#include <utility>
#include <vector>

#include "agreement.h"
#include "core/agree/header.h"
#include "core/place/topology.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::Call;
using tfdist::Operation;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

const std::vector<int> kManySizes = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64};

std::vector<int> OneHost(int size) { return std::vector<int>(static_cast<size_t>(size), 0); }

int RoundsOf(int size) {
  int rounds = 1;
  for (int held = size > tfdist::kDirectHosts ? tfdist::kRadix : size; held < size;
       held *= tfdist::kRadix) {
    ++rounds;
  }
  return rounds;
}

}  // namespace

TEST(RoundsBringEveryHeaderInFewMessages) {
  for (int size : kManySizes) {
    const int most = size <= 8 ? size - 1 : size <= 16 ? 6 : 9;
    RunBothWays(OneHost(size), [&](const RankContext& self) {
      Member member(self, /*in_windows=*/false);
      Call call = BarrierOf("b");
      call.weight = static_cast<uint32_t>(100 + self.rank);
      EXPECT_EQ(member.Agree(call).message(), "");
      for (int r = 0; r < size; ++r) EXPECT_EQ(member.agreement.weights[r], 100u + r);
      EXPECT(!member.agreement.AnyJoined());
      EXPECT(member.communicator.messages <= most);
      EXPECT_EQ(member.communicator.exchanges, RoundsOf(size));
      // By sockets a rank that waits for long tells those whose messages came too early.
      EXPECT(self.by_sockets || member.communicator.notes == 0);
    });
  }
}

TEST(RoundsTellOfEachRankThatDiffersOrHasJoined) {
  for (int size : kManySizes) {
    RunBothWays(OneHost(size), [&](const RankContext& self) {
      Member member(self, /*in_windows=*/false);
      const int step = size > 17 ? 9 : 1;
      for (int odd = 0; odd < size; odd += step) {
        const Status differs = member.Agree(BarrierOf(self.rank == odd ? "other" : "b"));
        EXPECT_EQ(CodeOf(differs), static_cast<int>(StatusCode::kFailedPrecondition));
        EXPECT_CONTAINS(differs.message(),
                        "rank " + std::to_string(odd) + " called barrier 'other'");
        Call call = BarrierOf("b");
        if (self.rank == odd) call.operation = Operation::kJoin;
        EXPECT_EQ(member.Agree(call).message(), "");
        for (int r = 0; r < size; ++r) EXPECT_EQ(member.agreement.joined[r], r == odd ? 1 : 0);
        EXPECT_EQ(member.agreement.record.empty(), self.rank != odd);
      }
    });
  }
}

// Whichever rank waits, and in whichever round.
TEST(RoundsNameExactlyTheRanksThatAreLate) {
  ExpectLateNamed(OneHost(9), {0}, /*in_windows=*/false);
  ExpectLateNamed(OneHost(10), {9}, /*in_windows=*/false);
  ExpectLateNamed(OneHost(17), {1}, /*in_windows=*/false);
  ExpectLateNamed(OneHost(17), {5, 16}, /*in_windows=*/false);
  ExpectLateNamed(OneHost(64), {22, 23, 63}, /*in_windows=*/false);
}

// It is lost before its first message, and after those of each round.
TEST(RoundsEndForAllWhereARankIsLostInAnyOfThem) {
  for (int size : {9, 17, 64}) {
    for (int round = 0; round < RoundsOf(size); ++round) {
      RunBothWays(OneHost(size), [&](const RankContext& self) {
        const int victim = size / 2;
        Member member(self, /*in_windows=*/false);
        member.communicator.before = [&](int number) {
          if (self.rank == victim && number == round) self.kill();
        };
        Status status = member.Agree(BarrierOf("b"));
        if (self.rank == victim) return;
        // Who had every header already learns of it in the next agreement.
        if (status.ok()) status = member.Agree(BarrierOf("b"));
        ExpectLost(self, status, victim);
      });
    }
  }
}
