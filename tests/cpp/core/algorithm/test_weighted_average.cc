// The weighted average: ranks that count by a number of their own, such as that of their samples.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "element.h"
#include "exact_input.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::DType;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

constexpr int64_t kCounts[] = {7, 5000, 0, 1};

// Depends on rank, tensor and place, and has no short binary form.
double Input(int rank, size_t tensor, int64_t i) {
  return static_cast<double>(rank + 1) * 0.37 +
         static_cast<double>((i * 7 + static_cast<int64_t>(tensor)) % 29) / 7;
}

AllreduceOptions WeightedBy(double weight) {
  AllreduceOptions options = OptionsFor("weighted", 4);
  options.reduction = Reduction::kAverage;
  options.weighted = true;
  options.weight = static_cast<uint32_t>(weight);
  return options;
}

// Averages the tensors of this rank in place.
std::vector<Elements> Average(const RankContext& self, DType dtype,
                              const AllreduceOptions& options) {
  std::vector<Elements> tensors;
  std::vector<TensorView> views;
  for (size_t t = 0; t < 4; ++t) {
    tensors.emplace_back(dtype, kCounts[t]);
    for (int64_t i = 0; i < kCounts[t]; ++i) tensors[t].Set(i, Input(self.rank, t, i));
  }
  for (Elements& tensor : tensors) views.push_back(tensor.view());
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
  return tensors;
}

void ExpectSameBits(const std::vector<Elements>& tensors, const std::vector<Elements>& expected) {
  for (size_t t = 0; t < 4; ++t) EXPECT(tensors[t].bytes() == expected[t].bytes());
}

using WeightOf = std::function<double(int rank)>;

// Within `unit`, the rounding of inputs, shares and result, of what float64 gives.
void CheckWeights(const RankContext& self, DType dtype, Compression compression, double unit,
                  const WeightOf& weight_of) {
  AllreduceOptions options = WeightedBy(weight_of(self.rank));
  options.compression = compression;
  options.prescale = 0.5;
  options.postscale = 6;
  const std::vector<Elements> tensors = Average(self, dtype, options);
  double total = 0;
  for (int rank = 0; rank < self.size; ++rank) total += weight_of(rank);
  for (size_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < kCounts[t]; ++i) {
      double sum = 0;
      for (int rank = 0; rank < self.size; ++rank) sum += weight_of(rank) * Input(rank, t, i);
      const double expected = sum / total * 3;
      EXPECT(std::fabs(tensors[t].Get(i) - expected) <= 4 * unit * expected);
    }
  }
}

const WeightOf kWeights[] = {
    [](int rank) { return rank + 1.0; },
    [](int rank) { return rank == 0 ? 1.0 : 0.0; },
    [](int rank) { return rank % 2 == 0 ? 3.0 : 0.0; },
    [](int rank) { return rank == 0 ? 4294967295.0 : 4294967290.0 + rank; },  // beyond 32 bits
};

}  // namespace

TEST(WeightedAverageOfUnequalWeights) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (const WeightOf& weight_of : kWeights) {
        CheckWeights(self, DType::kFloat64, Compression::kNone, 0x1p-52, weight_of);
        CheckWeights(self, DType::kFloat32, Compression::kNone, 0x1p-23, weight_of);
        CheckWeights(self, DType::kFloat16, Compression::kNone, 0x1p-10, weight_of);
        CheckWeights(self, DType::kBfloat16, Compression::kNone, 0x1p-7, weight_of);
        CheckWeights(self, DType::kFloat32, Compression::kFp16, 0x1p-10, weight_of);
        CheckWeights(self, DType::kFloat64, Compression::kBf16, 0x1p-7, weight_of);
      }
    });
  }
}

TEST(WeightedAverageOfEqualWeightsHasTheBitsOfThePlainOne) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kFloatingDTypes) {
        for (Compression compression : {Compression::kNone, Compression::kFp16}) {
          AllreduceOptions options = WeightedBy(0);
          options.compression = compression;
          options.weighted = false;
          const std::vector<Elements> plain = Average(self, dtype, options);
          options.weighted = true;
          for (uint32_t weight : {1u, 3u, 4294967295u}) {
            options.weight = weight;
            ExpectSameBits(Average(self, dtype, options), plain);
          }
        }
      }
    });
  }
}

TEST(WeightedAverageIsTheTensorOfTheOnlyRankWithWeight) {
  for (int size : kRankCounts) {
    for (int only = 0; only < size; ++only) {
      RunRanks(size, [only](const RankContext& self) {
        for (DType dtype : kFloatingDTypes) {
          const auto tensors = Average(self, dtype, WeightedBy(self.rank == only ? 7 : 0));
          for (size_t t = 0; t < 4; ++t) {
            Elements expected(dtype, kCounts[t]);
            for (int64_t i = 0; i < kCounts[t]; ++i) expected.Set(i, Input(only, t, i));
            EXPECT(tensors[t].bytes() == expected.bytes());
          }
        }
      });
    }
  }
}

TEST(WeightedAverageOverNoWeightIsZero) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (const Elements& tensor : Average(self, DType::kFloat32, WeightedBy(0))) {
        for (int64_t i = 0; i < tensor.count(); ++i) EXPECT_EQ(tensor.Get(i), 0.0);
      }
    });
  }
}

TEST(WeightedAverageLeavesOutTheNanOfARankWithoutWeight) {
  // The mean over a batch without samples is 0 / 0.
  RunRanks(3, [](const RankContext& self) {
    for (Compression compression : {Compression::kNone, Compression::kFp16}) {
      const bool empty = self.rank == 1;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> values = {empty ? nan : 2.0f, empty ? -INFINITY : 4.0f};
      AllreduceOptions options = OptionsFor("nan", 1);
      options.reduction = Reduction::kAverage;
      options.compression = compression;
      options.weighted = true;
      options.weight = empty ? 0 : 8;
      EXPECT(self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)}).ok());
      EXPECT_EQ(values[0], 2.0f);
      EXPECT_EQ(values[1], 4.0f);
      // The NaN of a rank that counts is not hidden.
      values = {empty ? nan : 2.0f, 4.0f};
      options.weight = 1;
      EXPECT(self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)}).ok());
      EXPECT(std::isnan(values[0]));
    }
  });
}

TEST(WeightedAverageDoesNotOverflowHalf) {
  RunRanks(4, [](const RankContext& self) {
    std::vector<float> values = {60000.0f};
    AllreduceOptions options = OptionsFor("large", 1);
    options.reduction = Reduction::kAverage;
    options.compression = Compression::kFp16;
    options.weighted = true;
    options.weight = self.rank == 0 ? 2 : 1;
    EXPECT(self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)}).ok());
    EXPECT(std::fabs(values[0] - 60000.0f) <= 32);  // one unit in the last place of float16
  });
}

TEST(WeightsAreForTheAverageOnlyAndOnAllRanks) {
  const auto submit = [](const RankContext& self, Reduction reduction, bool weighted, DType dtype) {
    Elements values(dtype, 3);
    AllreduceOptions options = OptionsFor("w", 1);
    options.reduction = reduction;
    options.weighted = weighted;
    return self.engine->Allreduce(options, {values.view()}, {values.view()});
  };
  ExpectSameError(2, StatusCode::kInvalidArgument,
                  "allreduce 'w' received weights for reduction sum; weights need average.",
                  [&](const RankContext& self) {
                    return submit(self, Reduction::kSum, true, DType::kFloat32);
                  });
  ExpectSameError(2, StatusCode::kInvalidArgument,
                  "tensor 'tensor0' has dtype int64, but reduction average needs a floating dtype.",
                  [&](const RankContext& self) {
                    return submit(self, Reduction::kAverage, true, DType::kInt64);
                  });
  ExpectSameError(
      3, StatusCode::kFailedPrecondition,
      "allreduce 'w' differs between ranks: weights is no on ranks 0, 2, yes on rank 1.",
      [&](const RankContext& self) {
        return submit(self, Reduction::kAverage, self.rank == 1, DType::kFloat32);
      });
}
