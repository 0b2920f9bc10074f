// What collectives cost, by operation: counts that are exact, and times that add up.
#include <string>

#include "core/algorithm/window_collective.h"
#include "core/watch/meter.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"

using tfdist::CollectiveCost;
using tfdist::Meter;
using tfdist::MeteredCall;
using tfdist::Operation;

namespace {

// A meter of each rank: by default an engine makes its own.
struct Costs {
  int64_t calls = 0;
  int64_t bytes = 0;
  int64_t total_ns = 0;
  int64_t parts_ns = 0;
};

Costs CostsOf(const Meter& meter, Operation operation) {
  CollectiveCost& cost = const_cast<Meter&>(meter).of(operation);
  const int64_t parts =
      cost.wait_ns + cost.exchange_ns + cost.pack_ns + cost.reduce_ns + cost.unpack_ns;
  return {cost.calls, cost.bytes, cost.total_ns, parts};
}

}  // namespace

TEST(MeterCountsCallsAndBytesOfEachOperation) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      const Meter& meter = self.engine->meter();
      EXPECT_EQ(CostsOf(meter, Operation::kAllreduce).calls, 0);
      std::vector<float> small(3, 1.0f);
      std::vector<float> large(30'000, 1.0f);
      for (int call = 0; call < 2; ++call) {
        EXPECT(self.engine
                   ->Allreduce(OptionsFor("two", 2), {ViewOf(&small), ViewOf(&large)},
                               {ViewOf(&small), ViewOf(&large)})
                   .ok());
      }
      EXPECT(self.engine->Broadcast(BroadcastOptionsFor("one", 1, 0), {ViewOf(&small)}).ok());
      EXPECT(self.engine->Barrier("b").ok());
      const Costs sums = CostsOf(meter, Operation::kAllreduce);
      EXPECT_EQ(sums.calls, 2);
      EXPECT_EQ(sums.bytes, 2 * 30'003 * 4);
      EXPECT(sums.total_ns > 0);
      EXPECT(sums.parts_ns > 0);
      EXPECT(sums.parts_ns <= sums.total_ns);
      EXPECT_EQ(CostsOf(meter, Operation::kBroadcast).calls, 1);
      EXPECT_EQ(CostsOf(meter, Operation::kBroadcast).bytes, 12);
      EXPECT_EQ(CostsOf(meter, Operation::kBarrier).calls, 1);
      EXPECT_EQ(CostsOf(meter, Operation::kBarrier).bytes, 0);
      EXPECT_EQ(CostsOf(meter, Operation::kAllgather).calls, 0);
    });
  }
}

TEST(MeterTellsWorkFromWaiting) {
  // On every way that data takes: packing, adding and unpacking all take time where there are two
  // ranks.
  RunRanks(4, [](const RankContext& self) {
    std::vector<float> values(30'000, 1.0f);
    std::vector<float> more(7, 1.0f);
    EXPECT(self.engine
               ->Allreduce(OptionsFor("two", 2), {ViewOf(&values), ViewOf(&more)},
                           {ViewOf(&values), ViewOf(&more)})
               .ok());
    CollectiveCost& cost = const_cast<Meter&>(self.engine->meter()).of(Operation::kAllreduce);
    EXPECT(cost.wait_ns > 0);
    EXPECT(cost.pack_ns > 0);
    EXPECT(cost.reduce_ns > 0);
    EXPECT(cost.unpack_ns > 0);
  });
}

TEST(MeterCountsTheWaitForALateRankOnTheOthersOnly) {
  for (const Fabric& fabric : FabricsOf(2)) {
    int64_t waits[2] = {};
    Gate stalled;
    tfdist::EngineConfig config = TestConfig();
    config.stall_warning_seconds = 0.2;
    config.on_stall = [&stalled](const std::string& report) {
      if (report.find("in barrier 'late'") != std::string::npos) stalled.Open();
    };
    RunRanksOn(fabric, config, [&](const RankContext& self) {
      if (self.rank == 1) stalled.Pass();
      EXPECT(self.engine->Barrier("late").ok());
      waits[self.rank] = const_cast<Meter&>(self.engine->meter()).of(Operation::kBarrier).wait_ns;
    });
    EXPECT(waits[0] >= 200'000'000);
    EXPECT(waits[0] > waits[1]);
  }
}

TEST(MeterIsSharedWithProcessSets) {
  RunRanks(2, [](const RankContext& self) {
    std::shared_ptr<tfdist::Engine> set;
    EXPECT(self.engine->AddProcessSet({0, 1}, 1, &set).ok());
    EXPECT(set->Barrier("in the set").ok());
    EXPECT(self.engine->Barrier("of all").ok());
    EXPECT_EQ(CostsOf(self.engine->meter(), Operation::kBarrier).calls, 2);
  });
}

TEST(MeterAsJson) {
  Meter meter;
  meter.of(Operation::kAllreduce).calls = 2;
  meter.of(Operation::kAllreduce).unpack_ns = 7;
  meter.of(Operation::kShutdown).calls = 1;
  const std::string json = meter.Json();
  EXPECT_EQ(json.find("{\"allreduce\": {\"calls\": 2, \"bytes\": 0, \"total_ns\": 0, \"wait_ns\": "
                      "0, \"exchange_ns\": 0, \"pack_ns\": 0, \"reduce_ns\": 0, \"unpack_ns\": 7}, "
                      "\"broadcast\": {"),
            0u);
  EXPECT(json.find("shutdown") == std::string::npos);
  EXPECT_EQ(json.substr(json.size() - 2), "}}");
}

TEST(MeterOfACallThatWasNotBegun) {
  MeteredCall call;
  call.End();
  CollectiveCost cost;
  call.Begin(tfdist::Call(), &cost);
  call.End();
  call.End();
  EXPECT_EQ(cost.calls, 1);
  EXPECT(cost.total_ns >= 0);
}
