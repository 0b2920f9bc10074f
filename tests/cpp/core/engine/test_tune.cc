// Settings that change between two collectives, on all ranks at once; and allreduces of the host
// that get their place before they come.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "gpu_machine.h"

using tfdist::EngineConfig;
using tfdist::Hierarchy;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;
using tfdist::Tuning;

namespace {

constexpr int64_t kWindowBytes = 256 << 10;
constexpr int64_t kMostChunkBytes = 32 << 10;  // an eighth

// Ranks that share memory, and two hosts of them.
std::vector<Fabric> SharingFabrics() {
  return {{{0, 0}, kWindowBytes},
          {{0, 0, 0}, kWindowBytes},
          {{0, 0, 0, 0}, kWindowBytes},
          {{0, 1, 0, 1}, kWindowBytes}};
}

// Depends on the place and on the rank.
float Value(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 5) % 11 + rank); }

// An allreduce of several tensors, and the other algorithms of the window.
void CheckCollectives(const RankContext& self) {
  for (int64_t count : {int64_t{3}, int64_t{20'001}}) {
    std::vector<float> first(static_cast<size_t>(count));
    std::vector<float> second(17);
    for (int64_t i = 0; i < count; ++i) first[i] = Value(self.rank, i);
    for (int64_t i = 0; i < 17; ++i) second[i] = Value(self.rank, i + 3);
    const std::vector<TensorView> views = {ViewOf(&first), ViewOf(&second)};
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("sum", 2), views, views).message(), "");
    const auto sum = [&self](int64_t i) {
      float total = 0;
      for (int rank = 0; rank < self.size; ++rank) total += Value(rank, i);
      return total;
    };
    for (int64_t i : {int64_t{0}, count / 2, count - 1}) EXPECT_EQ(first[i], sum(i));
    EXPECT_EQ(second[16], sum(19));

    std::vector<float> whole(static_cast<size_t>(count * self.size));
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = Value(self.rank, static_cast<int64_t>(i));
    std::vector<float> own(static_cast<size_t>(count));
    EXPECT_EQ(self.engine->ReduceScatter(OptionsFor("rows", 1), {ViewOf(&whole)}, {ViewOf(&own)})
                  .message(),
              "");
    EXPECT_EQ(own.back(), sum(count * (self.rank + 1) - 1));

    const int root = self.engine->communicator().topology().world_ranks.back();
    std::vector<float> sent(static_cast<size_t>(count), Value(self.rank, count));
    EXPECT_EQ(self.engine->Broadcast(BroadcastOptionsFor("b", 1, root), {ViewOf(&sent)}).message(),
              "");
    EXPECT_EQ(sent.back(), Value(self.size - 1, count));
  }
}

Status TuneTo(const RankContext& self, int64_t threshold, int64_t chunk) {
  return self.engine->Tune({threshold, chunk, Hierarchy::kNone});
}

}  // namespace

TEST(TuneChangesChunksAndBucketsBetweenCollectives) {
  for (const Fabric& fabric : SharingFabrics()) {
    RunRanksOn(fabric, TestConfig(), [](const RankContext& self) {
      EXPECT_EQ(self.engine->MostChunkBytes(), kMostChunkBytes);
      CheckCollectives(self);
      for (int64_t chunk : {int64_t{8} << 10, int64_t{9} << 10, int64_t{0}}) {
        for (int64_t threshold : {int64_t{0}, int64_t{1} << 20}) {
          EXPECT_EQ(TuneTo(self, threshold, chunk).message(), "");
          CheckCollectives(self);
        }
      }
    });
  }
}

TEST(TuneChangesBucketsOfMessages) {
  for (int size : kRankCounts) {
    RunRanksOn({std::vector<int>(static_cast<size_t>(size), 0), 0}, TestConfig(),
               [](const RankContext& self) {
                 EXPECT_EQ(self.engine->MostChunkBytes(), 0);
                 for (int64_t threshold : {0, 100, 1 << 20}) {
                   EXPECT_EQ(TuneTo(self, threshold, 0).message(), "");
                   CheckCollectives(self);
                 }
               });
  }
}

TEST(TuneOfUnequalValuesIsTheErrorOfEveryRank) {
  ExpectSameError(3, StatusCode::kFailedPrecondition, "fusion threshold",
                  [](const auto& self) { return TuneTo(self, 1000 + self.rank, 0); });
  RunRanksOn({{0, 0, 0}, kWindowBytes}, TestConfig(), [](const RankContext& self) {
    const Status status = TuneTo(self, 1 << 20, self.rank == 1 ? 8 << 10 : 0);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kFailedPrecondition));
    EXPECT_CONTAINS(status.message(), "chunks of 8192 bytes");
    CheckCollectives(self);
  });
}

TEST(TuneRefusesWhatCannotBe) {
  const auto refused = [](int64_t threshold, int64_t chunk, Hierarchy hierarchy,
                          const std::string& text) {
    ExpectSameError(2, StatusCode::kInvalidArgument, text, [=](const RankContext& self) {
      return self.engine->Tune({threshold, chunk, hierarchy});
    });
  };
  refused(-1, 0, Hierarchy::kNone, "the fusion threshold is -1 bytes; expected 0 or more");
  refused(0, 1 << 20, Hierarchy::kNone, "a chunk of shared memory is 1048576 bytes; expected 0");
  refused(0, 100, Hierarchy::kNone, "a chunk of shared memory is 100 bytes");
  refused(0, 0, Hierarchy::kNccl, "differs from the one the engine was started with");
  for (const Fabric& fabric : SharingFabrics()) {
    RunRanksOn(fabric, TestConfig(), [](const RankContext& self) {
      for (int64_t chunk : {kMostChunkBytes + 64, int64_t{4} << 10, (int64_t{8} << 10) + 1}) {
        const Status status = TuneTo(self, 0, chunk);
        EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInvalidArgument));
        EXPECT_CONTAINS(status.message(), "a multiple of 64 from 8192 to 32768");
      }
      CheckCollectives(self);
    });
  }
}

// A process set begins as the ranks are tuned by then.
TEST(TuneHoldsForLaterProcessSets) {
  RunRanksOn({{0, 0, 0}, kWindowBytes}, TestConfig(), [](const RankContext& self) {
    EXPECT_EQ(TuneTo(self, 1 << 10, 8 << 10).message(), "");
    std::shared_ptr<tfdist::Engine> set;
    EXPECT_EQ(self.engine->AddProcessSet({0, 2}, 1, &set).message(), "");
    if (set != nullptr) {
      const tfdist::Communicator& members = set->communicator();
      CheckCollectives({members.rank(), members.size(), set.get(), nullptr});
    }
    CheckCollectives(self);
  });
}

// A rank that has joined would keep other chunks than the rest.
TEST(TuneIsRefusedAfterARankHasJoined) {
  RunRanksOn({{0, 0, 0}, kWindowBytes}, TestConfig(), [](const RankContext& self) {
    if (self.rank != 1) {
      const Status status = TuneTo(self, 0, 8 << 10);
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kFailedPrecondition));
      EXPECT_CONTAINS(status.message(), "had joined");
    }
    int last = -1;
    Status joined = self.engine->Join(&last);
    if (!joined.ok()) joined = self.engine->Join(&last);  // the error was every rank's
    EXPECT_EQ(joined.message(), "");
    CheckCollectives(self);
  });
}

TEST(TuneTurnsTheHierarchyOfGpusOnAndOff) {
  for (const Fabric& fabric : {Fabric{{0, 0, 1, 1}, kWindowBytes}, Fabric{{0, 1, 0, 1}, 0}}) {
    for (Hierarchy hierarchy : {Hierarchy::kNccl, Hierarchy::kTransport}) {
      EngineConfig config = TestConfig();
      config.hierarchy = hierarchy;
      RunOnMachine(fabric, config, [hierarchy](const RankContext& self) {
        for (Hierarchy tuned : {Hierarchy::kNone, hierarchy, Hierarchy::kNone, hierarchy}) {
          EXPECT_EQ(self.engine->Tune({8 << 20, 0, tuned}).message(), "");
          ExpectSum(self, self.engine, All(4));
        }
        EXPECT_EQ(self.engine->Shutdown().message(), "");
      });
    }
  }
}

// Three allreduces, announced alike on all ranks, come from threads in an order that differs by
// rank, and a call that was not announced comes after them.
TEST(AllreducesOfTheHostRunInTheOrderOfTheirAnnouncement) {
  for (const Fabric& fabric : SharingFabrics()) {
    RunRanksOn(fabric, TestConfig(), [](const RankContext& self) {
      constexpr int kCalls = 3;
      std::vector<int64_t> places;
      for (int i = 0; i < kCalls; ++i) places.push_back(self.engine->Announce());
      std::vector<std::vector<float>> values;
      for (int i = 0; i < kCalls; ++i) {
        values.emplace_back(static_cast<size_t>(1 + i * 9000), static_cast<float>(self.rank + i));
      }
      std::vector<std::thread> threads;
      for (int k = 0; k < kCalls; ++k) {
        const int i = (k + self.rank) % kCalls;
        threads.emplace_back([&, i] {
          tfdist::AllreduceOptions options = OptionsFor("bucket " + std::to_string(i), 1);
          options.place = places[i];
          const std::vector<TensorView> views = {ViewOf(&values[i])};
          EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
        });
      }
      EXPECT_EQ(self.engine->Barrier("end").message(), "");
      for (std::thread& thread : threads) thread.join();
      const int ranks = self.size * (self.size - 1) / 2;
      for (int i = 0; i < kCalls; ++i) {
        EXPECT_EQ(values[i].back(), static_cast<float>(ranks + i * self.size));
      }
    });
  }
}
