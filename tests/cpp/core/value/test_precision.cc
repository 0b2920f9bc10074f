// How exact results are: order of summation, accumulation of 16-bit values, compression error.
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "core/value/float_span.h"
#include "element.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::DType;
using tfdist::HalfFormat;
using tfdist::Reduction;

namespace {

// What rank `rank` contributes: the same on every rank that asks.
std::vector<float> RandomInput(int rank, int64_t count) {
  std::mt19937 random(1000 + static_cast<unsigned>(rank));
  std::uniform_real_distribution<float> magnitude(-8.0f, 8.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = std::exp(magnitude(random)) - 1.0f;
  return values;
}

void Accumulate(const std::vector<float>& values, std::vector<float>* sums) {
  if (sums->empty()) {
    *sums = values;
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) (*sums)[i] += values[i];
}

// Rank order on each host, then host by host.
void CheckBitsInRankOrder(const RankContext& self, int64_t count) {
  std::vector<float> values = RandomInput(self.rank, count);
  EXPECT(self.engine->Allreduce(OptionsFor("order", 1), {ViewOf(&values)}, {ViewOf(&values)}).ok());
  std::map<int, std::vector<float>> sums;  // by host
  for (int rank = 0; rank < self.size; ++rank) {
    Accumulate(RandomInput(rank, count), &sums[self.communicator->topology().host_ids[rank]]);
  }
  std::vector<float> expected;
  for (const auto& host : sums) Accumulate(host.second, &expected);
  EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0);
}

// At most one rounding of each input, one of each host's sum if there are several, and one of the
// result.
void CheckErrorBound(const RankContext& self, Compression compression, double unit) {
  constexpr int64_t kCount = 9001;
  std::vector<float> values = RandomInput(self.rank, kCount);
  AllreduceOptions options = OptionsFor("bound", 1);
  options.compression = compression;
  EXPECT(self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)}).ok());
  std::vector<double> exact(kCount);
  std::vector<double> magnitude(kCount);
  for (int rank = 0; rank < self.size; ++rank) {
    const std::vector<float> input = RandomInput(rank, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      exact[i] += input[i];
      magnitude[i] += std::fabs(input[i]);
    }
  }
  const int roundings = self.communicator->topology().cross_size > 1 ? 3 : 2;
  for (int64_t i = 0; i < kCount; ++i) {
    const double subnormal = 0x1p-24 * (self.size + 8);  // below the normal range: absolute error
    EXPECT(std::fabs(values[i] - exact[i]) <= roundings * 1.005 * unit * magnitude[i] + subnormal);
  }
}

float ReduceOne(const RankContext& self, DType dtype, const AllreduceOptions& options,
                double value) {
  Elements elements(dtype, 1);
  elements.Set(0, value);
  EXPECT(self.engine->Allreduce(options, {elements.view()}, {elements.view()}).ok());
  return static_cast<float>(elements.Get(0));
}

}  // namespace

TEST(PrecisionSumsInRankOrderWithTheSameBitsEverywhere) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (int64_t count : {1, 1000, 4096, 4097, 50'021}) CheckBitsInRankOrder(self, count);
    });
  }
}

TEST(PrecisionOfCompressionStaysWithinTheFormat) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      CheckErrorBound(self, Compression::kFp16, 0x1p-11);
      CheckErrorBound(self, Compression::kBf16, 0x1p-8);
      CheckErrorBound(self, Compression::kNone, 0x1p-23);
    });
  }
}

TEST(PrecisionHalfAverageNearTheLimitDoesNotOverflow) {
  RunRanks(4, [](const RankContext& self) {
    AllreduceOptions options = OptionsFor("large", 1);
    options.reduction = Reduction::kAverage;
    EXPECT_EQ(ReduceOne(self, DType::kFloat16, options, 60000), 60000.0f);
    options.compression = Compression::kFp16;
    EXPECT_EQ(ReduceOne(self, DType::kFloat32, options, 60000), 60000.0f);
  });
}

TEST(PrecisionCompressedSumBeyondTheRangeOfHalfDoesNotOverflow) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      AllreduceOptions options = OptionsFor("large", 1);
      options.compression = Compression::kFp16;
      EXPECT_EQ(ReduceOne(self, DType::kFloat32, options, 32768), 32768.0f * self.size);
      options.postscale = 1024;
      EXPECT_EQ(ReduceOne(self, DType::kFloat32, options, 32768), 32768.0f * 1024 * self.size);
    });
  }
}

TEST(PrecisionHalfSumAccumulatesBetterThanHalf) {
  RunRanks(5, [](const RankContext& self) {
    const auto input = [](int rank) { return rank == 0 ? 2048.0f : 0.5f; };
    uint16_t naive = HalfFormat::FromFloat(input(0));
    for (int rank = 1; rank < self.size; ++rank) {
      naive = HalfFormat::FromFloat(HalfFormat::ToFloat(naive) + input(rank));
    }
    EXPECT_EQ(HalfFormat::ToFloat(naive), 2048.0f);  // every small one is rounded away
    const float ours = ReduceOne(self, DType::kFloat16, OptionsFor("mixed", 1), input(self.rank));
    EXPECT_EQ(ours, 2050.0f);
  });
}

TEST(PrecisionHalfPostscaleIsAppliedBeforeRounding) {
  RunRanks(4, [](const RankContext& self) {
    AllreduceOptions options = OptionsFor("quarter", 1);
    options.postscale = 0.25;
    EXPECT_EQ(ReduceOne(self, DType::kFloat16, options, 60000), 60000.0f);
  });
}
