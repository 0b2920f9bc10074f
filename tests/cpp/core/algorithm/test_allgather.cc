// Allgather of parts that differ in their first dimension, or may not.
#include <memory>
#include <string>

#include "element.h"
#include "expect.h"
#include "rank_team.h"
#include "result.h"

using tfdist::DType;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

constexpr int64_t kColumns = 3;

// Rank r brings rows_of(r) rows of kColumns values; checks shape, values and rows of the result.
template <typename RowsOf>
void CheckGather(const RankContext& self, const RowsOf& rows_of) {
  const auto value = [](int rank, int64_t i) { return static_cast<int32_t>(rank * 100000 + i); };
  const int64_t rows = rows_of(self.rank);
  std::vector<int32_t> input;
  for (int64_t i = 0; i < rows * kColumns; ++i) input.push_back(value(self.rank, i));
  std::vector<int32_t> expected;
  std::vector<int64_t> expected_rows;
  for (int rank = 0; rank < self.size; ++rank) {
    expected_rows.push_back(rows_of(rank));
    for (int64_t i = 0; i < rows_of(rank) * kColumns; ++i) expected.push_back(value(rank, i));
  }
  std::vector<int32_t> output;
  int allocations = 0;
  const auto allocate = [&](int tensor, const std::vector<int64_t>& shape, TensorView* view) {
    ++allocations;
    EXPECT_EQ(tensor, 0);
    EXPECT_EQ(tfdist::ShapeString(shape), "[" + std::to_string(expected.size() / kColumns) + ",3]");
    output.resize(expected.size());
    *view = {DType::kInt32, shape, output.data()};
    return Status::Ok();
  };
  const TensorView view{DType::kInt32, {rows, kColumns}, input.data()};
  std::vector<int64_t> gathered = {-1};  // is written over
  EXPECT_EQ(self.engine->Allgather(GatherOptionsFor("g", 1), {view}, allocate, &gathered).message(),
            "");
  EXPECT(output == expected);
  EXPECT_EQ(tfdist::ShapeString(gathered), tfdist::ShapeString(expected_rows));
  EXPECT_EQ(allocations, 1);
}

// Tensor t of rank r has (r + t) % 3 rows of t + 1 columns, of the t-th dtype.
void CheckSeveral(const RankContext& self, int tensors) {
  const auto rows_of = [](int rank, int t) { return static_cast<int64_t>((rank + t) % 3); };
  const auto value = [](int rank, int t, int64_t i) {
    return static_cast<double>((rank * 31 + t * 7 + i) % 50);
  };
  std::vector<Elements> inputs;
  std::vector<TensorView> views;
  std::vector<DType> dtypes;
  for (int t = 0; t < tensors; ++t) {
    dtypes.push_back(kAllDTypes[1 + t % 10]);  // but for bool, which keeps no values
    const int64_t rows = rows_of(self.rank, t);
    inputs.emplace_back(dtypes[t], rows * (t + 1));
    for (int64_t i = 0; i < inputs[t].count(); ++i) inputs[t].Set(i, value(self.rank, t, i));
    views.push_back({dtypes[t], {rows, t + 1}, inputs[t].view().data});
  }
  Results results(dtypes);
  std::vector<int64_t> rows;
  EXPECT(self.engine
             ->Allgather(GatherOptionsFor("several", tensors), views, results.Allocator(), &rows)
             .ok());
  EXPECT_EQ(results.allocations(), tensors);
  EXPECT_EQ(rows.size(), static_cast<size_t>(tensors * self.size));
  for (int t = 0; t < tensors; ++t) {
    int64_t place = 0;
    for (int rank = 0; rank < self.size; ++rank) {
      EXPECT_EQ(rows[t * self.size + rank], rows_of(rank, t));
      for (int64_t i = 0; i < rows_of(rank, t) * (t + 1); ++i) {
        EXPECT_EQ(results[t].Get(place++), value(rank, t, i));
      }
    }
    EXPECT_EQ(results[t].count(), place);
  }
}

// Rank r gives rows[r] numbers as the second of two tensors, of which the first has two everywhere.
// `asks`: whether this rank needs equally many.
Status GatherEqual(const RankContext& self, tfdist::Engine* engine, bool asks,
                   const std::vector<int64_t>& rows) {
  std::vector<float> alike(2), input(static_cast<size_t>(rows[self.rank]), self.rank + 0.5f);
  Results results({DType::kFloat32, DType::kFloat32});
  tfdist::GatherOptions options = GatherOptionsFor("g", 2);
  options.equal_rows = asks;
  std::vector<int64_t> told;
  const Status status =
      engine->Allgather(options, {ViewOf(&alike), ViewOf(&input)}, results.Allocator(), &told);
  for (int rank = 0; rank < engine->communicator().size(); ++rank) {
    EXPECT_EQ(told.at(static_cast<size_t>(engine->communicator().size() + rank)),
              rows[engine->communicator().topology().world_ranks[rank]]);
  }
  EXPECT_EQ(results.allocations(), status.ok() ? 2 : 0);
  int64_t place = 0;
  for (int rank = 0; status.ok() && rank < engine->communicator().size(); ++rank) {
    for (int64_t i = 0; i < rows[rank]; ++i) EXPECT_EQ(results[1].Get(place++), rank + 0.5);
  }
  return status;
}

}  // namespace

TEST(AllgatherEqualUnevenAndEmptyParts) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      CheckGather(self, [](int) { return int64_t{2}; });
      CheckGather(self, [](int rank) { return int64_t{rank} * 2 + 1; });
      CheckGather(self, [](int rank) { return int64_t{rank % 2}; });
      CheckGather(self, [](int) { return int64_t{0}; });
      CheckGather(self, [](int rank) { return int64_t{20000} + rank; });
    });
  }
}

TEST(AllgatherOfSeveralTensorsTellsTheRowsOfEach) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (int tensors : {0, 1, 2, 13}) CheckSeveral(self, tensors);
    });
  }
}

TEST(AllgatherOfScalarsIsAVector) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      double input = self.rank + 0.5;
      Results results({DType::kFloat64});
      std::vector<int64_t> rows;
      EXPECT(self.engine
                 ->Allgather(GatherOptionsFor("s", 1), {{DType::kFloat64, {}, &input}},
                             results.Allocator(), &rows)
                 .ok());
      EXPECT_EQ(results.shape(0), "[" + std::to_string(self.size) + "]");
      for (int rank = 0; rank < self.size; ++rank) EXPECT_EQ(results[0].Get(rank), rank + 0.5);
      EXPECT(rows == std::vector<int64_t>(static_cast<size_t>(self.size), 1));
    });
  }
}

TEST(AllgatherWhoseAllocationFailsOnOneRankHurtsThatRankAlone) {
  for (int failing : {0, 1}) {  // which of two tensors
    RunRanks(3, [failing](const RankContext& self) {
      std::vector<int32_t> input = {self.rank, self.rank * 10};
      std::vector<int32_t> output[] = {std::vector<int32_t>(3), std::vector<int32_t>(3)};
      const auto allocate = [&](int tensor, const std::vector<int64_t>& shape, TensorView* view) {
        if (self.rank == 1 && tensor == failing) {
          return Status(StatusCode::kResourceExhausted, "no room");
        }
        *view = {DType::kInt32, shape, output[tensor].data()};
        return Status::Ok();
      };
      std::vector<int64_t> rows;
      const Status status = self.engine->Allgather(
          GatherOptionsFor("a", 2),
          {{DType::kInt32, {1}, &input[0]}, {DType::kInt32, {1}, &input[1]}}, allocate, &rows);
      EXPECT_EQ(status.message(), self.rank == 1 ? "no room" : "");
      if (self.rank != 1) {
        EXPECT_EQ(output[0][2], 2);
        EXPECT_EQ(output[1][2], 20);
      }
      ExpectInStep(self);
    });
  }
}

TEST(AllgatherOfRowsThatMustBeEqualAndAre) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      const size_t ranks = static_cast<size_t>(self.size);
      for (int64_t rows : {0, 3}) {
        const std::vector<int64_t> alike(ranks, rows);
        EXPECT_EQ(GatherEqual(self, self.engine, true, alike).message(), "");
      }
    });
  }
}

TEST(AllgatherOfUnequalRowsIsRefusedIfOneRankNeedsThemEqual) {
  const std::string text =
      " needs the same number of rows on every rank; received for tensor 'tensor1' ";
  for (bool all_ask : {true, false}) {
    const auto gather = [all_ask](const std::vector<int64_t>& rows) {
      return [all_ask, rows](const RankContext& self) {
        const bool asks = all_ask || self.rank == self.size - 1;
        return GatherEqual(self, self.engine, asks, rows);
      };
    };
    const auto expect = [&](const std::string& by_rank, const std::vector<int64_t>& rows) {
      ExpectSameError(static_cast<int>(rows.size()), StatusCode::kInvalidArgument,
                      "allgather 'g' (2 tensors, first 'tensor0')" + text + by_rank, gather(rows));
    };
    expect("by rank: 1, 0.", {1, 0});
    expect("by rank: 1, 2, 3.", {1, 2, 3});  // as many in all as rank 1 expects
    expect("by rank: 4, 4, 4, 5.", {4, 4, 4, 5});
    expect("by rank: 0, 1, 1, 1, 1.", {0, 1, 1, 1, 1});
  }
  RunRanks(3, [](const RankContext& self) {  // nobody needs them equal
    EXPECT_EQ(GatherEqual(self, self.engine, false, {1, 2, 3}).message(), "");
  });
}

TEST(AllgatherOfUnequalRowsInAProcessSetNamesTheSet) {
  RunRanks(3, [](const RankContext& self) {
    std::shared_ptr<tfdist::Engine> set;
    EXPECT_EQ(self.engine->AddProcessSet({0, 2}, 1, &set).message(), "");
    if (set != nullptr) {
      const Status status = GatherEqual(self, set.get(), true, {5, 0, 7});
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInvalidArgument));
      EXPECT_CONTAINS(status.message(),
                      "in process set 1 (ranks 0, 2) needs the same number of rows");
      EXPECT_CONTAINS(status.message(), "by rank: 5, 7.");
    }
    ExpectInStep(self);
  });
}

TEST(AllgatherNeedsANameForEachTensor) {
  ExpectSameError(2, StatusCode::kInvalidArgument,
                  "allgather 'g' received 2 tensor names for 1 tensors",
                  [](const RankContext& self) {
                    std::vector<float> values(2);
                    return self.engine->Allgather(GatherOptionsFor("g", 2), {ViewOf(&values)},
                                                  nullptr, nullptr);
                  });
}
