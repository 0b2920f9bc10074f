// NcclRanks on a fake NCCL: what it computes, and that every fault ends on all ranks with a name.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expect.h"
#include "fake_nccl.h"
#include "gate.h"
#include "nccl/nccl_ranks.h"
#include "rank_team.h"

using tfdist::EngineConfig;
using tfdist::NcclOperator;
using tfdist::NcclRanks;
using tfdist::NcclResult;
using tfdist::NcclType;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Transfer;
using tfdist::Wait;

namespace {

// Far longer than the fake takes; tests that wait for it are few.
EngineConfig Joining() {
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 2;
  return config;
}

// One rank with its NCCL, and a wait for one call.
struct Rank {
  const RankContext& self;
  FakeNccl* nccl;
  Wait* wait;
};

using Body = std::function<void(const Rank& rank)>;
using FaultsOf = std::function<NcclFaults(int rank)>;

NcclFaults NoFaults(int) { return {}; }

std::string Gpu(int rank) { return "GPU " + std::to_string(rank) + ": Fake"; }

Status Open(const Rank& rank, std::unique_ptr<NcclRanks>* ranks) {
  return NcclRanks::Open(rank.nccl, Gpu(rank.self.rank), Joining(), rank.self.communicator,
                         rank.wait, ranks);
}

// Runs `body` on every rank; afterwards no communicator is left open. Returns how many were
// aborted.
int RunNccl(int size, const FaultsOf& faults, const Body& body) {
  const EngineConfig config = TestConfig();
  FakeNcclWorld world;
  RunRanksOn(FabricsOf(size)[0], config, [&](const RankContext& self) {
    const std::unique_ptr<FakeNccl> nccl = world.Rank(faults(self.rank));
    Wait wait(config, self.communicator->topology(), [] { return std::string("allreduce 'g'"); });
    body({self, nccl.get(), &wait});
    EXPECT_EQ(self.engine->Barrier("end").message(), "");  // the fakes live until all have ended
  });
  EXPECT_EQ(world.open(), 0);
  return world.aborted();
}

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(static_cast<float>((i + 3 * rank) % 7));
  return values;
}

float SumAt(int size, size_t i) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += Values(r, i + 1)[i];
  return sum;
}

void CheckEveryCollective(const Rank& rank, NcclRanks* ranks) {
  constexpr size_t kCount = 5;
  const int size = rank.self.size;
  const int me = rank.self.rank;
  const std::vector<float> mine = Values(me, kCount);
  const std::vector<float> long_mine = Values(me, kCount * size);
  std::vector<float> sum(kCount), root(mine), part(kCount), all(kCount * size);
  std::vector<int64_t> sent(size), received(size, -1);
  std::vector<Transfer> sends, receives;
  for (int peer = 0; peer < size; ++peer) {
    sent[peer] = 10 * me + peer;
    sends.push_back({peer, &sent[peer], sizeof(int64_t)});
    receives.push_back({peer, &received[peer], sizeof(int64_t)});
  }
  constexpr NcclType kType = NcclType::kFloat32;
  constexpr NcclOperator kSum = NcclOperator::kSum;
  const auto ok = [](const Status& status) { EXPECT_EQ(status.message(), ""); };
  ok(ranks->AllReduce(mine.data(), sum.data(), kCount, kType, kSum, nullptr, rank.wait));
  ok(ranks->Broadcast(root.data(), root.data(), kCount, kType, size - 1, nullptr, rank.wait));
  ok(ranks->ReduceScatter(long_mine.data(), part.data(), kCount, kType, kSum, nullptr, rank.wait));
  ok(ranks->AllGather(mine.data(), all.data(), kCount, kType, nullptr, rank.wait));
  ok(ranks->Exchange(sends, receives, nullptr, rank.wait));
  EXPECT(rank.nccl->Synchronize());
  ok(ranks->Check(*rank.wait));
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(sum[i], SumAt(size, i));
    EXPECT_EQ(root[i], Values(size - 1, kCount)[i]);
    EXPECT_EQ(part[i], SumAt(size, kCount * me + i));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i], Values(static_cast<int>(i / kCount), kCount)[i % kCount]);
  }
  for (int peer = 0; peer < size; ++peer) EXPECT_EQ(received[peer], 10 * peer + me);
}

}  // namespace

TEST(NcclRanksRunEveryCollectiveAndClose) {
  for (int size : kRankCounts) {
    const int aborted = RunNccl(size, NoFaults, [](const Rank& rank) {
      std::unique_ptr<NcclRanks> ranks;
      EXPECT_EQ(Open(rank, &ranks).message(), "");
      CheckEveryCollective(rank, ranks.get());
      EXPECT_EQ(ranks->Close(rank.wait).message(), "");
      EXPECT_CONTAINS(ranks->Check(*rank.wait).message(), "has closed its NCCL communicator");
    });
    EXPECT_EQ(aborted, 0);
  }
}

TEST(NcclRanksOfPartOfTheRanksAreApart) {
  RunNccl(4, NoFaults, [](const Rank& rank) {
    const int first = rank.self.rank / 2 * 2;
    std::unique_ptr<tfdist::Communicator> pair;
    EXPECT(rank.self.communicator->Subset({first, first + 1}, 7, rank.wait, &pair).ok());
    std::unique_ptr<NcclRanks> ranks;
    EXPECT(NcclRanks::Open(rank.nccl, "GPU", Joining(), pair.get(), rank.wait, &ranks).ok());
    float value = static_cast<float>(1 << rank.self.rank);
    EXPECT(ranks
               ->AllReduce(&value, &value, 1, NcclType::kFloat32, NcclOperator::kSum, nullptr,
                           rank.wait)
               .ok());
    EXPECT(rank.nccl->Synchronize());
    EXPECT_EQ(value, first == 0 ? 3.0f : 12.0f);
    EXPECT(ranks->Close(rank.wait).ok());
  });
}

TEST(NcclRanksFailAlikeWhenOneCannotStart) {
  for (int culprit : {0, 2}) {
    const auto faults = [culprit](int rank) {
      NcclFaults found;
      if (rank == culprit) found.init = NcclResult::kSystemError;
      return found;
    };
    RunNccl(3, faults, [culprit](const Rank& rank) {
      std::unique_ptr<NcclRanks> ranks;
      const Status status = Open(rank, &ranks);
      EXPECT(ranks == nullptr);
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
      EXPECT_CONTAINS(status.message(), "rank " + std::to_string(culprit) + " (host localhost, " +
                                            Gpu(culprit) + ") could not join the others");
    });
  }
}

TEST(NcclRanksFailAlikeWithoutAnId) {
  const auto faults = [](int rank) {
    NcclFaults found;
    if (rank == 0) found.id = NcclResult::kInternalError;
    return found;
  };
  RunNccl(3, faults, [](const Rank& rank) {
    std::unique_ptr<NcclRanks> ranks;
    const Status status = Open(rank, &ranks);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInternal));
    EXPECT_EQ(status.message(),
              "rank 0 (host localhost, GPU 0: Fake) could not begin in allreduce 'g': NCCL 2.28.0 "
              "(fake) says: error 3. Set NCCL_DEBUG=INFO for details.");
  });
}

TEST(NcclRanksEndAtTheDeadlineWhenOneHangs) {
  const auto faults = [](int rank) {
    NcclFaults found;
    found.hangs = rank == 1;
    return found;
  };
  const int aborted = RunNccl(3, faults, [](const Rank& rank) {
    std::unique_ptr<NcclRanks> ranks;
    const Status status = Open(rank, &ranks);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kDeadlineExceeded));
    EXPECT_CONTAINS(status.message(), "could not join the others by NCCL 2.28.0 (fake) in time");
    EXPECT(ranks == nullptr);
  });
  EXPECT_EQ(aborted, 3);
}

TEST(NcclRanksAbortAfterAnAsynchronousErrorAndOpenAgain) {
  Gate injected;
  const int aborted = RunNccl(2, NoFaults, [&injected](const Rank& rank) {
    std::unique_ptr<NcclRanks> ranks;
    EXPECT(Open(rank, &ranks).ok());
    if (rank.self.rank == 1) {
      rank.nccl->InjectAsyncError(NcclResult::kSystemError);
      const Status status = ranks->Check(*rank.wait);
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
      EXPECT_CONTAINS(status.message(), "rank 1 (host localhost, GPU 1: Fake) could not continue");
      EXPECT_CONTAINS(status.message(), "says: error 2: connection to 10.0.0.7 closed");
      EXPECT_CONTAINS(status.message(), "--network-interfaces");
      EXPECT_EQ(ranks->Close(rank.wait).message(), status.message());
      rank.nccl->InjectAsyncError(NcclResult::kSuccess);
      injected.Open();
    } else {
      injected.Pass();
      float value = 1;
      const Status status = ranks->AllReduce(&value, &value, 1, NcclType::kFloat32,
                                             NcclOperator::kSum, nullptr, rank.wait);
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
      EXPECT_CONTAINS(status.message(), "rank 0 (host localhost, GPU 0: Fake) could not allreduce");
      EXPECT_CONTAINS(status.message(), "Another rank has failed");
    }
    std::unique_ptr<NcclRanks> again;
    EXPECT_EQ(Open(rank, &again).message(), "");
    CheckEveryCollective(rank, again.get());
    EXPECT_EQ(again->Close(rank.wait).message(), "");
  });
  EXPECT_EQ(aborted, 2);
}
