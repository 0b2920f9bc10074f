// Alltoall: every rank gives each rank some rows of one tensor, equally many or not.
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

using SplitOf = std::function<int64_t(int from, int to)>;

// Few bits, so that every dtype keeps it; differs by sender, receiver and place.
double ValueOf(DType dtype, int from, int to, int64_t i) {
  const int64_t value = (from * 41 + to * 17 + i * 3) % 97;
  return static_cast<double>(dtype == DType::kBool ? value % 2 : value);
}

// Rank `from` gives rank `to` split_of(from, to) rows of the dimensions `row`. `pass_splits` is
// false where the engine is to find equal splits by itself.
void CheckAlltoall(const RankContext& self, DType dtype, const std::vector<int64_t>& row,
                   const SplitOf& split_of, bool pass_splits = true) {
  int64_t row_elements = 1;
  for (int64_t dim : row) row_elements *= dim;
  std::vector<int64_t> splits;
  int64_t rows = 0;
  for (int to = 0; to < self.size; ++to) {
    splits.push_back(split_of(self.rank, to));
    rows += splits.back();
  }
  Elements input(dtype, rows * row_elements);
  int64_t place = 0;
  for (int to = 0; to < self.size; ++to) {
    for (int64_t i = 0; i < splits[to] * row_elements; ++i) {
      input.Set(place++, ValueOf(dtype, self.rank, to, i));
    }
  }
  std::vector<int64_t> shape = {rows};
  shape.insert(shape.end(), row.begin(), row.end());
  if (!pass_splits) splits.clear();
  Results results({dtype});
  std::vector<int64_t> received = {-1};  // is written over
  EXPECT_EQ(
      self.engine
          ->Alltoall("a", {dtype, shape, input.view().data}, splits, results.Allocator(), &received)
          .message(),
      "");

  EXPECT_EQ(received.size(), static_cast<size_t>(self.size));
  place = 0;
  for (int from = 0; from < self.size; ++from) {
    const int64_t arrived = split_of(from, self.rank);
    EXPECT_EQ(received[from], arrived);
    for (int64_t i = 0; i < arrived * row_elements; ++i) {
      EXPECT_EQ(results[0].Get(place++), ValueOf(dtype, from, self.rank, i));
    }
  }
  shape[0] = 0;
  for (int64_t count : received) shape[0] += count;
  EXPECT_EQ(results.shape(0), tfdist::ShapeString(shape));
  EXPECT_EQ(results[0].count(), place);
}

// An alltoall of float32 whose result nobody looks at.
Status Submit(const RankContext& self, const std::vector<int64_t>& shape,
              const std::vector<int64_t>& splits) {
  std::vector<double> memory(256);
  Results results({DType::kFloat32});
  std::vector<int64_t> received;
  return self.engine->Alltoall("tokens", {DType::kFloat32, shape, memory.data()}, splits,
                               results.Allocator(), &received);
}

void ExpectRefused(const std::string& text, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& splits) {
  const std::string complete = "alltoall 'tokens' received " + text;
  ExpectSameError(3, StatusCode::kInvalidArgument, complete,
                  [&](const RankContext& self) { return Submit(self, shape, splits); });
  // On one rank alone it is everybody's error too.
  ExpectSameError(3, StatusCode::kFailedPrecondition,
                  "alltoall 'tokens' has wrong arguments on some ranks: rank 1: " + complete,
                  [&](const RankContext& self) {
                    if (self.rank == 1) return Submit(self, shape, splits);
                    return Submit(self, {3}, {});
                  });
}

}  // namespace

TEST(AlltoallEqualUnevenAndZeroSplits) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      const int last = self.size - 1;
      const auto check = [&self](const SplitOf& split_of) {
        CheckAlltoall(self, DType::kInt32, {}, split_of);
        CheckAlltoall(self, DType::kFloat32, {3}, split_of);
        CheckAlltoall(self, DType::kFloat64, {2, 1, 5}, split_of);
        CheckAlltoall(self, DType::kFloat32, {4, 0}, split_of);  // rows without elements
      };
      check([](int, int) { return 2; });
      check([](int from, int to) { return from * 2 + to; });
      check([](int from, int to) { return (from + to) % 2; });
      check([last](int from, int to) { return from == last && to == 0 ? 7 : 0; });
      check([](int from, int to) { return from == to ? 3 : 0; });  // nothing travels
      check([](int, int) { return 0; });
      check([](int from, int to) { return 9000 + from * 10 + to; });
    });
  }
}

TEST(AlltoallWithoutSplitsDealsEquallyManyRows) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (int64_t rows : {0, 1, 4}) {
        CheckAlltoall(self, DType::kFloat32, {3}, [rows](int, int) { return rows; }, false);
      }
      // The ranks may have unequal numbers of rows, and some may pass splits.
      const SplitOf by_sender = [](int from, int) { return from + 1; };
      CheckAlltoall(self, DType::kFloat32, {3}, by_sender, false);
      CheckAlltoall(self, DType::kFloat32, {3}, by_sender, self.rank % 2 == 0);
    });
  }
}

TEST(AlltoallOfEveryDtype) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kAllDTypes) {
        CheckAlltoall(self, dtype, {2}, [](int from, int to) { return (from * 3 + to) % 4; });
      }
    });
  }
}

TEST(AlltoallRefusesWrongSplits) {
  ExpectRefused("5 rows and no splits; 3 ranks cannot get equal numbers of them.", {5}, {});
  ExpectRefused("2 splits; expected 3, one number of rows for each rank.", {5}, {2, 3});
  ExpectRefused("4 splits; expected 3, one number", {5}, {2, 3, 0, 0});
  const std::string wrong =
      "splits that are negative or do not add up to the 5 rows of its tensor. Assign every row to "
      "one rank.";
  ExpectRefused(wrong, {5}, {2, 2, 0});
  ExpectRefused(wrong, {5}, {2, 2, 2});
  ExpectRefused(wrong, {5}, {-1, 3, 3});
  ExpectRefused(wrong, {5}, {INT64_MAX, INT64_MAX, 7});  // overflows to 5
  ExpectRefused("a scalar; expected at least one dimension, whose rows are distributed.", {}, {});
  ExpectSameError(1, StatusCode::kInvalidArgument, "received 2 splits; expected 1,",
                  [](const RankContext& self) { return Submit(self, {5}, {2, 3}); });
}

TEST(AlltoallMismatchNamesWhatDiffersButForTheFirstDimension) {
  ExpectSameError(3, StatusCode::kFailedPrecondition,
                  "alltoall 'tokens' differs between ranks: shape of tensor 'tokens' is [*,2] on "
                  "ranks 0-1, [*,3] on rank 2.",
                  [](const RankContext& self) {
                    return Submit(self, {3 * (self.rank + 1), self.rank == 2 ? 3 : 2}, {});
                  });
  ExpectSameError(2, StatusCode::kFailedPrecondition,
                  "dtype of tensor 'tokens' is float32 on rank 0, int32 on rank 1.",
                  [](const RankContext& self) {
                    std::vector<float> values(2);
                    const DType dtype = self.rank == 0 ? DType::kFloat32 : DType::kInt32;
                    Results results({dtype});
                    std::vector<int64_t> received;
                    return self.engine->Alltoall("tokens", {dtype, {2}, values.data()}, {},
                                                 results.Allocator(), &received);
                  });
  ExpectSameError(2, StatusCode::kFailedPrecondition,
                  "rank 0 called alltoall 'tokens', rank 1 called barrier 'b'.",
                  [](const RankContext& self) {
                    return self.rank == 0 ? Submit(self, {2}, {}) : self.engine->Barrier("b");
                  });
}

TEST(AlltoallWhoseAllocationFailsOnOneRankHurtsThatRankAlone) {
  for (int size : {1, 2, 3, 5}) {
    RunRanks(size, [](const RankContext& self) {
      const int failing = self.size / 2;
      std::vector<int64_t> input;
      for (int to = 0; to < self.size; ++to) input.push_back(self.rank * 10 + to);
      const TensorView view{DType::kInt64, {self.size}, input.data()};
      std::vector<int64_t> output(static_cast<size_t>(self.size));
      const auto allocate = [&](int, const std::vector<int64_t>& shape, TensorView* result) {
        if (self.rank == failing) return Status(StatusCode::kResourceExhausted, "no room");
        *result = {DType::kInt64, shape, output.data()};
        return Status::Ok();
      };
      std::vector<int64_t> received;
      const Status status = self.engine->Alltoall("a", view, {}, allocate, &received);
      EXPECT_EQ(status.message(), self.rank == failing ? "no room" : "");
      for (int from = 0; from < self.size && self.rank != failing; ++from) {
        EXPECT_EQ(output[from], from * 10 + self.rank);
      }
      ExpectInStep(self);
    });
  }
}
