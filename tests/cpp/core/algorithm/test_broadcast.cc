// Broadcast from each root, of every dtype, small (tree) and large (scattered).
#include "element.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::BroadcastOptions;
using tfdist::DType;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

double ValueOf(int rank, int64_t i) { return static_cast<double>((i * 3 + rank * 7) % 100); }

double AsDType(DType dtype, double value) { return dtype == DType::kBool ? value != 0 : value; }

void CheckBroadcast(const RankContext& self, DType dtype, int root, int64_t count) {
  Elements values(dtype, count);
  for (int64_t i = 0; i < count; ++i) values.Set(i, ValueOf(self.rank, i));
  EXPECT_EQ(self.engine->Broadcast(BroadcastOptionsFor("b", 1, root), {values.view()}).message(),
            "");
  for (int64_t i = 0; i < count; ++i) EXPECT_EQ(values.Get(i), AsDType(dtype, ValueOf(root, i)));
}

}  // namespace

TEST(BroadcastIntoOtherMemoryLeavesTheInputs) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      const double own = ValueOf(self.rank, 1), sent = ValueOf(self.size - 1, 1);
      std::vector<float> input(1000, static_cast<float>(own)), output(1000, -1), other(999);
      const BroadcastOptions options = BroadcastOptionsFor("b", 1, self.size - 1);
      EXPECT_EQ(self.engine->Broadcast(options, {ViewOf(&input)}, {ViewOf(&output)}).message(), "");
      EXPECT_EQ(input[999], own);
      EXPECT_EQ(output[0], sent);
      EXPECT_EQ(output[999], sent);
      const Status refused = self.engine->Broadcast(options, {ViewOf(&input)}, {ViewOf(&other)});
      EXPECT(refused.code() == StatusCode::kInvalidArgument);
      EXPECT_CONTAINS(refused.message(), "shape [999]; expected float32 and [1000]");
      EXPECT_CONTAINS(self.engine->Broadcast(options, {ViewOf(&input)}, {}).message(),
                      "1 inputs and 0 outputs");
    });
  }
}

TEST(BroadcastEveryDtypeFromEveryRoot) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (int root = 0; root < self.size; ++root) {
        for (DType dtype : kAllDTypes) {
          for (int64_t count : {0, 1, 100}) CheckBroadcast(self, dtype, root, count);
        }
        for (int64_t count : {65'536, 65'537, 100'003}) {
          CheckBroadcast(self, DType::kUint8, root, count);
        }
        CheckBroadcast(self, DType::kFloat32, root, 300'001);
      }
    });
  }
}

TEST(BroadcastManyTensorsTogether) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      const int root = self.size - 1;
      std::vector<Elements> tensors;
      std::vector<TensorView> views;
      for (int t = 0; t < 40; ++t) {
        tensors.emplace_back(kAllDTypes[t % 11], t % 13);
        for (int64_t i = 0; i < t % 13; ++i) tensors[t].Set(i, ValueOf(self.rank + t, i));
      }
      for (Elements& tensor : tensors) views.push_back(tensor.view());
      EXPECT(self.engine->Broadcast(BroadcastOptionsFor("many", 40, root), views).ok());
      for (int t = 0; t < 40; ++t) {
        for (int64_t i = 0; i < t % 13; ++i) {
          EXPECT_EQ(tensors[t].Get(i), AsDType(kAllDTypes[t % 11], ValueOf(root + t, i)));
        }
      }
    });
  }
}
