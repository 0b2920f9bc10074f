// The agreement in rounds: how many messages it takes, and that ranks which differ, have joined,
// are late or are lost are told of as in one round.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/agree/header.h"
#include "core/place/topology.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"

using tfdist::Agreement;
using tfdist::Call;
using tfdist::Communicator;
using tfdist::HeaderCheck;
using tfdist::Operation;
using tfdist::RankList;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Transfer;
using tfdist::Wait;

namespace {

const std::vector<int> kManySizes = {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64};

// Counts what a rank sends, and calls `before` with the number of each exchange.
class Observed : public Communicator {
 public:
  explicit Observed(Communicator* real) : Communicator(real->topology()), real_(real) {}

  Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                  Wait* wait) override {
    before(exchanges++);
    messages += static_cast<int>(sends.size());
    return real_->Exchange(sends, receives, wait);
  }
  void SendNote(int peer, int64_t note) override {
    ++notes;
    real_->SendNote(peer, note);
  }
  bool TakeNote(int* peer, int64_t* note) override { return real_->TakeNote(peer, note); }
  Status Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                std::unique_ptr<Communicator>* subset) override {
    return real_->Subset(ranks, channel, wait, subset);
  }
  Status Finalize(bool clean) override { return real_->Finalize(clean); }

  std::function<void(int)> before = [](int) {};
  int exchanges = 0;
  int messages = 0;
  int notes = 0;

 private:
  Communicator* const real_;
};

Status Agree(HeaderCheck* check, const Call& call, Communicator* communicator,
             const tfdist::EngineConfig& config, Agreement* agreement) {
  Wait wait(config, communicator->topology(), [] { return std::string("barrier 'b'"); });
  return check->Agree(call, communicator, &wait, agreement);
}

Call BarrierOf(const std::string& name) {
  Call call;
  call.operation = Operation::kBarrier;
  call.name = name;
  return call;
}

// Runs `body` by messages alone, and by sockets where these are not too many.
void RunBothWays(int size, const tfdist::EngineConfig& config, const RankBody& body) {
  for (bool by_sockets : {false, true}) {
    if (by_sockets && size > 17) continue;
    RunRanksOn({std::vector<int>(static_cast<size_t>(size), 0), 0, by_sockets}, config,
               [&](const RankContext& self) {
                 RankContext one = self;
                 one.by_sockets = by_sockets;
                 body(one);
               });
  }
}

int RoundsOf(int size) {
  int rounds = 1;
  for (int held = size > tfdist::kDirectRanks ? tfdist::kRadix : size; held < size;
       held *= tfdist::kRadix) {
    ++rounds;
  }
  return rounds;
}

}  // namespace

TEST(RoundsBringEveryHeaderInFewMessages) {
  for (int size : kManySizes) {
    const int most = size <= 8 ? size - 1 : size <= 16 ? 6 : 9;
    RunBothWays(size, TestConfig(), [&](const RankContext& self) {
      HeaderCheck check;
      Observed communicator(self.communicator);
      Call call = BarrierOf("b");
      call.weight = static_cast<uint32_t>(100 + self.rank);
      Agreement agreement;
      EXPECT_EQ(Agree(&check, call, &communicator, TestConfig(), &agreement).message(), "");
      for (int r = 0; r < size; ++r) EXPECT_EQ(agreement.weights[r], 100u + r);
      EXPECT(!agreement.AnyJoined());
      EXPECT(communicator.messages <= most);
      EXPECT_EQ(communicator.exchanges, RoundsOf(size));
      EXPECT_EQ(communicator.notes, 0);
    });
  }
}

TEST(RoundsTellOfEachRankThatDiffersOrHasJoined) {
  for (int size : kManySizes) {
    RunBothWays(size, TestConfig(), [&](const RankContext& self) {
      HeaderCheck check;
      const int step = size > 17 ? 9 : 1;
      for (int odd = 0; odd < size; odd += step) {
        Agreement agreement;
        const Call other = BarrierOf(self.rank == odd ? "other" : "b");
        const Status differs = Agree(&check, other, self.communicator, TestConfig(), &agreement);
        EXPECT_EQ(CodeOf(differs), static_cast<int>(StatusCode::kFailedPrecondition));
        EXPECT_CONTAINS(differs.message(),
                        "rank " + std::to_string(odd) + " called barrier 'other'");
        Call call = BarrierOf("b");
        if (self.rank == odd) call.operation = Operation::kJoin;
        const Status joined = Agree(&check, call, self.communicator, TestConfig(), &agreement);
        EXPECT_EQ(joined.message(), "");
        for (int r = 0; r < size; ++r) EXPECT_EQ(agreement.joined[r], r == odd ? 1 : 0);
        EXPECT_EQ(agreement.record.empty(), self.rank != odd);
      }
    });
  }
}

// Nobody but those that are late is named, whichever rank waits, and in whichever round.
TEST(RoundsNameExactlyTheRanksThatAreLate) {
  const std::vector<std::pair<int, std::vector<int>>> cases = {
      {9, {0}}, {10, {9}}, {17, {1}}, {17, {5, 16}}, {64, {22, 23, 63}}};
  for (const auto& [size, late] : cases) {
    tfdist::EngineConfig config = TestConfig();
    config.stall_shutdown_seconds = size > 17 ? 4 : 2;  // half of it is for the answers
    for (bool by_sockets : {false, true}) {
      if (by_sockets && size > 17) continue;
      std::atomic<int> waiting{size - static_cast<int>(late.size())};
      Gate all_failed;
      std::vector<std::string> messages(static_cast<size_t>(size));
      RunRanksOn({std::vector<int>(static_cast<size_t>(size), 0), 0, by_sockets}, TestConfig(),
                 [&](const RankContext& self) {
                   if (std::count(late.begin(), late.end(), self.rank) > 0) {
                     all_failed.Pass();
                     return;
                   }
                   HeaderCheck check;
                   Agreement agreement;
                   const Status status =
                       Agree(&check, BarrierOf("b"), self.communicator, config, &agreement);
                   messages[self.rank] = status.message();
                   EXPECT(!status.ok());
                   if (waiting.fetch_sub(1) == 1) all_failed.Open();
                 });
      int told = 0;
      for (const std::string& message : messages) {
        if (message.find("has waited") == std::string::npos) continue;
        ++told;
        EXPECT_CONTAINS(message, " for " + RankList(late) + " (host localhost).");
      }
      EXPECT(told > 0);
    }
  }
}

// It is lost before its first message, and after those of each round.
TEST(RoundsEndForAllWhereARankIsLostInAnyOfThem) {
  for (int size : {9, 17, 64}) {
    for (int round = 0; round < RoundsOf(size); ++round) {
      std::atomic<int> opening{0};
      RunBothWays(size, TestConfig(), [&](const RankContext& self) {
        const int victim = size / 2;
        // Until all are out of what has opened their engines.
        ++opening;
        while (opening % size != 0) std::this_thread::yield();
        HeaderCheck check;
        Observed communicator(self.communicator);
        communicator.before = [&](int number) {
          if (self.rank == victim && number == round) self.kill();
        };
        Agreement agreement;
        Status status = Agree(&check, BarrierOf("b"), &communicator, TestConfig(), &agreement);
        if (self.rank == victim) return;
        // Who had every header already learns of it in the next agreement.
        if (status.ok()) {
          status = Agree(&check, BarrierOf("b"), &communicator, TestConfig(), &agreement);
        }
        ExpectLost(self, status, victim);
      });
    }
  }
}
