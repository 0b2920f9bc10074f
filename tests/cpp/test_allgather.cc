// Allgather of parts that differ in their first dimension.
#include "expect.h"
#include "rank_team.h"

using tfdist::DType;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

constexpr int64_t kColumns = 3;

// Rank r brings rows_of(r) rows of kColumns values; checks shape and values of the result.
template <typename RowsOf>
void CheckGather(const RankContext& self, const RowsOf& rows_of) {
  const auto value = [](int rank, int64_t i) { return static_cast<int32_t>(rank * 100000 + i); };
  const int64_t rows = rows_of(self.rank);
  std::vector<int32_t> input;
  for (int64_t i = 0; i < rows * kColumns; ++i) input.push_back(value(self.rank, i));
  std::vector<int32_t> expected;
  for (int rank = 0; rank < self.size; ++rank) {
    for (int64_t i = 0; i < rows_of(rank) * kColumns; ++i) expected.push_back(value(rank, i));
  }
  std::vector<int32_t> output;
  int allocations = 0;
  const auto allocate = [&](const std::vector<int64_t>& shape, TensorView* view) {
    ++allocations;
    EXPECT_EQ(tfdist::ShapeString(shape), "[" + std::to_string(expected.size() / kColumns) + ",3]");
    output.resize(expected.size());
    *view = {DType::kInt32, shape, output.data()};
    return Status::Ok();
  };
  const TensorView view{DType::kInt32, {rows, kColumns}, input.data()};
  EXPECT_EQ(self.engine->Allgather("g", view, allocate).message(), "");
  EXPECT(output == expected);
  EXPECT_EQ(allocations, 1);
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

TEST(AllgatherOfScalarsIsAVector) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      double input = self.rank + 0.5;
      std::vector<double> output;
      const auto allocate = [&output](const std::vector<int64_t>& shape, TensorView* view) {
        output.resize(static_cast<size_t>(shape[0]));
        *view = {DType::kFloat64, shape, output.data()};
        return Status::Ok();
      };
      EXPECT(self.engine->Allgather("s", {DType::kFloat64, {}, &input}, allocate).ok());
      EXPECT_EQ(output.size(), static_cast<size_t>(self.size));
      for (int rank = 0; rank < self.size; ++rank) EXPECT_EQ(output[rank], rank + 0.5);
    });
  }
}

TEST(AllgatherWhoseAllocationFailsOnOneRankHurtsThatRankAlone) {
  RunRanks(3, [](const RankContext& self) {
    int32_t input = self.rank;
    std::vector<int32_t> output(3);
    const auto allocate = [&](const std::vector<int64_t>& shape, TensorView* view) {
      if (self.rank == 1) return Status(StatusCode::kUnimplemented, "no room");
      *view = {DType::kInt32, shape, output.data()};
      return Status::Ok();
    };
    const Status status = self.engine->Allgather("a", {DType::kInt32, {1}, &input}, allocate);
    EXPECT_EQ(status.message(), self.rank == 1 ? "no room" : "");
    if (self.rank != 1) EXPECT_EQ(output[2], 2);
    ExpectInStep(self);
  });
}
