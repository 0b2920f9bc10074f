// Join: ranks that have nothing left take part with zeros in what the others submit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "element.h"
#include "exact_input.h"
#include "expect.h"
#include "rank_team.h"
#include "result.h"

using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::DType;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

using Ranks = std::vector<int>;

// One round of collectives among `live`, the ranks that have not joined.
using Step = std::function<void(const RankContext& self, const Ranks& live)>;

// Steps of each rank before it joins: one after the other up and down, one rank long after the
// others, all together, and every other rank.
std::vector<std::vector<int>> Schedules(int size) {
  std::vector<std::vector<int>> schedules(5);
  for (int rank = 0; rank < size; ++rank) {
    schedules[0].push_back(rank);
    schedules[1].push_back(size - 1 - rank);
    schedules[2].push_back(rank == size / 2 ? 5 : 1);
    schedules[3].push_back(2);
    schedules[4].push_back(rank % 2 == 1 ? 3 : 0);
  }
  return schedules;
}

// Rank r makes steps[r] steps and joins; then the same once more.
void RunUneven(int size, const std::vector<int>& steps, const Step& step) {
  int last = 0;  // the highest of those that make the most steps
  for (int rank = 0; rank < size; ++rank) last = steps[rank] >= steps[last] ? rank : last;
  RunRanks(size, [&](const RankContext& self) {
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int number = 0; number < steps[self.rank]; ++number) {
        Ranks live;
        for (int rank = 0; rank < size; ++rank) {
          if (steps[rank] > number) live.push_back(rank);
        }
        step(self, live);
      }
      int told = -1;
      EXPECT_EQ(self.engine->Join(&told).message(), "");
      EXPECT_EQ(told, last);
      ExpectInStep(self);
    }
  });
}

void RunAllSchedules(const Step& step) {
  for (int size : kRankCounts) {
    for (const std::vector<int>& steps : Schedules(size)) RunUneven(size, steps, step);
  }
}

double SumOf(const Ranks& ranks, const std::function<double(int rank)>& value) {
  double sum = 0;
  for (int rank : ranks) sum += value(rank);
  return sum;
}

// Several tensors of several dtypes, one of them large.
void SumStep(const RankContext& self, const Ranks& live) {
  const DType dtypes[] = {DType::kInt32, DType::kFloat32, DType::kFloat16,
                          DType::kBool,  DType::kInt64,   DType::kFloat64};
  const int64_t counts[] = {5, 20011, 3, 9, 0, 1};
  const auto input = [](int rank, int64_t i) { return ExactInput(Reduction::kSum, rank, i); };
  for (Compression compression : {Compression::kNone, Compression::kFp16}) {
    std::vector<Elements> tensors;
    std::vector<TensorView> views;
    for (size_t t = 0; t < 6; ++t) {
      tensors.emplace_back(dtypes[t], counts[t]);
      for (int64_t i = 0; i < counts[t]; ++i) tensors[t].Set(i, input(self.rank, i));
    }
    for (Elements& tensor : tensors) views.push_back(tensor.view());
    AllreduceOptions options = OptionsFor("sum", 6);
    options.compression = compression;
    EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
    for (size_t t = 0; t < 6; ++t) {
      for (int64_t i = 0; i < counts[t]; ++i) {
        const double sum = SumOf(live, [&](int rank) { return input(rank, i); });
        EXPECT_EQ(tensors[t].Get(i), dtypes[t] == DType::kBool ? sum != 0 : sum);
      }
    }
  }
}

// Those that have joined count in a plain average, with zeros.
void AverageStep(const RankContext& self, const Ranks& live) {
  std::vector<float> values;
  for (int i = 0; i < 9; ++i) values.push_back(static_cast<float>(self.size * (self.rank + i)));
  AllreduceOptions options = OptionsFor("average", 1);
  options.reduction = Reduction::kAverage;
  options.prescale = 0.5;
  options.postscale = 4;
  EXPECT(self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)}).ok());
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(values[i], 2 * SumOf(live, [&](int rank) { return rank + i; }));
  }
}

// Those that have joined do not count in a weighted average.
void WeightedStep(const RankContext& self, const Ranks& live) {
  const auto weight = [](int rank) { return rank * 3 + 2; };
  std::vector<double> values;
  for (int i = 0; i < 9; ++i) values.push_back(self.rank * 0.3 + i);
  AllreduceOptions options = OptionsFor("weighted", 1);
  options.reduction = Reduction::kAverage;
  options.weighted = true;
  options.weight = static_cast<uint32_t>(weight(self.rank));
  const TensorView view = ViewOf(DType::kFloat64, &values);
  EXPECT(self.engine->Allreduce(options, {view}, {view}).ok());
  for (int i = 0; i < 9; ++i) {
    const double total = SumOf(live, weight);
    const double sum = SumOf(live, [&](int rank) { return weight(rank) * (rank * 0.3 + i); });
    EXPECT(std::fabs(values[i] - sum / total) <= 1e-13 * sum / total);
  }
}

// Zeros change nothing: equal gradients give that gradient, orthogonal ones their sum.
void AdasumStep(const RankContext& self, const Ranks& live) {
  std::vector<float> equal(100, 3.0f);
  std::vector<float> orthogonal(1000);
  for (int i = 0; i < 1000; ++i) orthogonal[i] = i % self.size == self.rank ? i + 1.0f : 0.0f;
  AllreduceOptions options = OptionsFor("adasum", 2);
  options.reduction = Reduction::kAdasum;
  const std::vector<TensorView> views = {ViewOf(&equal), ViewOf(&orthogonal)};
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
  for (float value : equal) EXPECT_EQ(value, 3.0f);
  for (int i = 0; i < 1000; ++i) {
    const bool given = std::count(live.begin(), live.end(), i % self.size) > 0;
    EXPECT_EQ(orthogonal[i], given ? i + 1.0f : 0.0f);
  }
}

// Those that have joined give no rows, and no scalar.
void AllgatherStep(const RankContext& self, const Ranks& live) {
  const int64_t own_rows = self.rank + 1;
  std::vector<int32_t> input(static_cast<size_t>(own_rows * 2), self.rank);
  double scalar = self.rank + 0.5;
  Results results({DType::kInt32, DType::kFloat64});
  std::vector<int64_t> rows;
  EXPECT_EQ(self.engine
                ->Allgather(
                    GatherOptionsFor("gather", 2),
                    {{DType::kInt32, {own_rows, 2}, input.data()}, {DType::kFloat64, {}, &scalar}},
                    results.Allocator(), &rows)
                .message(),
            "");
  int64_t place = 0;
  for (int rank = 0; rank < self.size; ++rank) {
    const bool gives = std::count(live.begin(), live.end(), rank) > 0;
    EXPECT_EQ(rows[rank], gives ? rank + 1 : 0);
    EXPECT_EQ(rows[self.size + rank], gives ? 1 : 0);
    for (int64_t i = 0; i < rows[rank] * 2; ++i) EXPECT_EQ(results[0].Get(place++), rank);
  }
  EXPECT_EQ(results[0].count(), place);
  EXPECT_EQ(results[1].count(), static_cast<int64_t>(live.size()));
  for (size_t i = 0; i < live.size(); ++i) {
    EXPECT_EQ(results[1].Get(static_cast<int64_t>(i)), live[i] + 0.5);
  }
}

Status Reduce(const RankContext& self, Reduction reduction) {
  std::vector<float> values(4, 1.0f);
  AllreduceOptions options = OptionsFor("x", 1);
  options.reduction = reduction;
  return self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)});
}

Status Join(const RankContext& self) {
  int last = -1;
  return self.engine->Join(&last);
}

// `call` on all ranks but `joined`, which are in Join: one error for all, and then in step.
void ExpectRefused(const std::string& title,
                   const std::function<Status(const RankContext& self)>& call) {
  const auto expect = [&](int size, const std::string& ranks, const Ranks& joined) {
    ExpectSameError(size, StatusCode::kFailedPrecondition,
                    title + " ran after " + ranks +
                        " had joined, but zeros from them would change its result. Until all "
                        "ranks have joined, only allreduce by sum, average or adasum, allgather "
                        "and barrier may run.",
                    [&](const RankContext& self) {
                      const bool in_join = std::count(joined.begin(), joined.end(), self.rank) > 0;
                      return in_join ? Join(self) : call(self);
                    });
  };
  expect(2, "rank 0", {0});
  expect(3, "rank 2", {2});
  expect(4, "ranks 0, 2", {0, 2});
}

}  // namespace

TEST(JoinGivesZerosToSums) { RunAllSchedules(SumStep); }

TEST(JoinGivesZerosToAverages) { RunAllSchedules(AverageStep); }

TEST(JoinGivesNoWeightToWeightedAverages) { RunAllSchedules(WeightedStep); }

TEST(JoinGivesZerosToAdasum) { RunAllSchedules(AdasumStep); }

TEST(JoinGivesNoRowsToAllgather) { RunAllSchedules(AllgatherStep); }

TEST(JoinLearnsThatTheOthersRefuseUnequalRows) {
  for (int size : {2, 3, 5}) {
    RunRanks(size, [](const RankContext& self) {
      const int joined = self.size / 2;
      const auto gather = [&](bool equal_rows, int64_t rows) {
        std::vector<float> input(static_cast<size_t>(rows), self.rank + 0.5f);
        Results results({DType::kFloat32});
        tfdist::GatherOptions options = GatherOptionsFor("gather", 1);
        options.equal_rows = equal_rows;
        std::vector<int64_t> told;
        return self.engine->Allgather(options, {ViewOf(&input)}, results.Allocator(), &told);
      };
      if (self.rank != joined) {
        const Status refused = gather(true, 20000);
        EXPECT_EQ(CodeOf(refused), static_cast<int>(StatusCode::kInvalidArgument));
        EXPECT_CONTAINS(refused.message(), "needs the same number of rows on every rank");
        EXPECT_CONTAINS(refused.message(), self.size == 2 ? "by rank: 20000, 0." : "20000, 0, 2");
        EXPECT_EQ(gather(false, 20000).message(), "");
        EXPECT_EQ(gather(true, 0).message(), "");  // as many as the rank that has joined
      }
      EXPECT_EQ(Join(self).message(), "");
      ExpectInStep(self);
    });
  }
}

TEST(JoinTakesPartInBarriersAndInAllOfThemInTurn) {
  RunAllSchedules([](const RankContext& self, const Ranks& live) {
    EXPECT_EQ(self.engine->Barrier("b").message(), "");
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("none", 0), {}, {}).message(), "");
    SumStep(self, live);
    AllgatherStep(self, live);
    AdasumStep(self, live);
    EXPECT_EQ(self.engine->Barrier("c").message(), "");
    WeightedStep(self, live);
  });
}

TEST(JoinOfASingleRankIsDoneAtOnce) {
  RunRanks(1, [](const RankContext& self) {
    int last = -1;
    EXPECT_EQ(self.engine->Join(&last).message(), "");
    EXPECT_EQ(last, 0);
  });
}

TEST(JoinRefusesWhatZerosWouldChange) {
  const std::string allreduce = "allreduce 'x' (1 tensor, 'tensor0')";
  ExpectRefused(allreduce + " by min",
                [](const RankContext& self) { return Reduce(self, Reduction::kMin); });
  ExpectRefused(allreduce + " by max",
                [](const RankContext& self) { return Reduce(self, Reduction::kMax); });
  ExpectRefused(allreduce + " by product",
                [](const RankContext& self) { return Reduce(self, Reduction::kProduct); });
  ExpectRefused("broadcast 'w' (1 tensor, 'tensor0')", [](const RankContext& self) {
    std::vector<float> values(4);
    return self.engine->Broadcast(BroadcastOptionsFor("w", 1, 1), {ViewOf(&values)});
  });
  ExpectRefused("reducescatter 's' (1 tensor, 'tensor0')", [](const RankContext& self) {
    std::vector<float> input(static_cast<size_t>(self.size));
    std::vector<float> output(1);
    return self.engine->ReduceScatter(OptionsFor("s", 1), {ViewOf(&input)}, {ViewOf(&output)});
  });
  ExpectRefused("alltoall 'a' (1 tensor, 'a')", [](const RankContext& self) {
    std::vector<float> input(static_cast<size_t>(self.size));
    return self.engine->Alltoall("a", ViewOf(&input), {}, nullptr, nullptr);
  });
}

TEST(JoinRefusesProcessSetsAndShutdown) {
  ExpectRefused("add_process_set 'ranks 0-1'", [](const RankContext& self) {
    std::shared_ptr<tfdist::Engine> engine;
    return self.engine->AddProcessSet({0, 1}, 1, &engine);
  });
  ExpectRefused("remove_process_set '1'",
                [](const RankContext& self) { return self.engine->RemoveProcessSet(1); });
  ExpectRefused("shutdown", [](const RankContext& self) { return self.engine->Shutdown(); });
}

TEST(JoinLearnsOfAMismatchAmongTheOthers) {
  ExpectSameError(4, StatusCode::kFailedPrecondition,
                  "allreduce 'x' differs between ranks: reduction is sum on ranks 0, 3, max on "
                  "rank 2.",
                  [](const RankContext& self) {
                    if (self.rank == 1) return Join(self);
                    return Reduce(self, self.rank == 2 ? Reduction::kMax : Reduction::kSum);
                  });
  ExpectSameError(
      3, StatusCode::kFailedPrecondition, "rank 1 called barrier 'b', rank 2 called allreduce 'x'.",
      [](const RankContext& self) {
        if (self.rank == 0) return Join(self);
        return self.rank == 1 ? self.engine->Barrier("b") : Reduce(self, Reduction::kSum);
      });
}

TEST(JoinLearnsOfWrongArgumentsAmongTheOthers) {
  const auto with_scale = [](const RankContext& self, double scale) {
    std::vector<float> values(4, 1.0f);
    AllreduceOptions options = OptionsFor("x", 1);
    options.postscale = scale;
    return self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)});
  };
  ExpectSameError(3, StatusCode::kInvalidArgument, "and postscale inf; expected finite numbers.",
                  [&](const RankContext& self) {
                    return self.rank == 0 ? Join(self) : with_scale(self, INFINITY);
                  });
  ExpectSameError(3, StatusCode::kFailedPrecondition,
                  "allreduce 'x' has wrong arguments on some ranks: rank 2: allreduce 'x' received",
                  [&](const RankContext& self) {
                    if (self.rank == 0) return Join(self);
                    return with_scale(self, self.rank == 2 ? INFINITY : 1);
                  });
}

TEST(JoinEndsAtItsDeadlineAndNamesWhoDidNotCome) {
  tfdist::EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  RunRanks(3, config, [](const RankContext& self) {
    if (self.rank == 1) return;  // neither works nor joins
    const Status status = Join(self);
    if (ExpectDeadline(self, status)) {
      EXPECT_CONTAINS(status.message(), "in join for rank 1 (host localhost)");
    }
    EXPECT_EQ(self.engine->Barrier("later").message(), status.message());
  });
}

TEST(JoinEndsWhenAPeerIsKilled) {
  for (int size : {2, 3, 5}) {
    const auto start = std::chrono::steady_clock::now();
    RunRanks(size, [](const RankContext& self) {
      const int victim = self.size - 1;
      Status status;
      if (self.rank == 0) {
        status = Join(self);  // takes part in what the others do until one is gone
      } else {
        for (int call = 0; status.ok() && call < 100000; ++call) {
          if (self.rank == victim && call == 20) return self.kill();
          std::vector<float> values(50'000, 1.0f);
          status = self.engine->Allreduce(OptionsFor("g", 1), {ViewOf(&values)}, {ViewOf(&values)});
        }
      }
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
      EXPECT_CONTAINS(status.message(), "rank " + std::to_string(victim) + " (host localhost)");
      EXPECT_EQ(Join(self).message(), status.message());
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT(elapsed.count() < 20);  // the deadline is 60 s
  }
}
