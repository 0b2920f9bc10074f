// Allreduce of exactly summable values, whose results need no tolerance.
#include <string>

#include "element.h"
#include "exact_input.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::DType;
using tfdist::Reduction;
using tfdist::TensorView;

namespace {

// 1: fewer elements than ranks. 1003: the small path. 20011: the large path for every dtype.
constexpr int64_t kCounts[] = {0, 1, 1003, 20011};

void CheckReduction(const RankContext& self, DType dtype, Reduction reduction, int64_t count) {
  Elements input(dtype, count);
  Elements output(dtype, count);
  for (int64_t i = 0; i < count; ++i) input.Set(i, ExactInput(reduction, self.rank, i));
  AllreduceOptions options = OptionsFor("reduce", 1);
  options.reduction = reduction;
  EXPECT_EQ(self.engine->Allreduce(options, {input.view()}, {output.view()}).message(), "");
  for (int64_t i = 0; i < count; ++i) {
    EXPECT_EQ(output.Get(i), ExactResult(dtype, reduction, self.size, i));
    const double untouched = ExactInput(reduction, self.rank, i);
    EXPECT_EQ(input.Get(i), dtype == DType::kBool ? untouched != 0 : untouched);
  }
}

// Scales by powers of two and inputs of few bits: exact in every floating type.
void CheckScales(const RankContext& self, DType dtype, Compression compression, double post) {
  constexpr int64_t kCount = 517;
  Elements values(dtype, kCount);
  for (int64_t i = 0; i < kCount; ++i) values.Set(i, static_cast<double>(i % 5 + self.rank));
  AllreduceOptions options = OptionsFor("scaled", 1);
  options.compression = compression;
  options.prescale = 0.5;
  options.postscale = post;
  EXPECT_EQ(self.engine->Allreduce(options, {values.view()}, {values.view()}).message(), "");
  for (int64_t i = 0; i < kCount; ++i) {
    const double sum = static_cast<double>(i % 5 * self.size + self.size * (self.size - 1) / 2);
    EXPECT_EQ(values.Get(i), sum * 0.5 * post);
  }
}

void CheckAverage(const RankContext& self, DType dtype, Compression compression, int64_t count) {
  Elements values(dtype, count);
  for (int64_t i = 0; i < count; ++i) values.Set(i, AverageInput(self.rank, self.size, i));
  AllreduceOptions options = OptionsFor("average", 1);
  options.reduction = Reduction::kAverage;
  options.compression = compression;
  EXPECT_EQ(self.engine->Allreduce(options, {values.view()}, {values.view()}).message(), "");
  for (int64_t i = 0; i < count; ++i) EXPECT_EQ(values.Get(i), ExactAverage(i));
}

// Tensors of mixed dtypes and sizes in one call, in place.
void CheckFused(const RankContext& self, Compression compression) {
  const DType dtypes[] = {DType::kFloat32, DType::kFloat16, DType::kInt32,    DType::kFloat32,
                          DType::kFloat64, DType::kFloat32, DType::kBfloat16, DType::kFloat32};
  const int64_t counts[] = {3, 5, 7, 0, 11, 2000, 4, 1};
  std::vector<Elements> tensors;
  std::vector<TensorView> views;
  for (size_t t = 0; t < 8; ++t) {
    tensors.emplace_back(dtypes[t], counts[t]);
    for (int64_t i = 0; i < counts[t]; ++i) {
      tensors[t].Set(i, static_cast<double>((i + static_cast<int64_t>(t)) % 8 + self.rank));
    }
  }
  for (Elements& tensor : tensors) views.push_back(tensor.view());
  AllreduceOptions options = OptionsFor("fused", 8);
  options.compression = compression;
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
  for (size_t t = 0; t < 8; ++t) {
    for (int64_t i = 0; i < counts[t]; ++i) {
      const int64_t base = (i + static_cast<int64_t>(t)) % 8;
      EXPECT_EQ(tensors[t].Get(i),
                static_cast<double>(base * self.size + self.size * (self.size - 1) / 2));
    }
  }
}

}  // namespace

TEST(AllreduceEveryDtypeAndReduction) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kAllDTypes) {
        for (Reduction reduction : kExactReductions) {
          for (int64_t count : kCounts) CheckReduction(self, dtype, reduction, count);
        }
      }
    });
  }
}

TEST(AllreduceLargerThanASegment) {
  for (int size : {2, 3}) {
    RunRanks(size, [](const RankContext& self) {
      CheckReduction(self, DType::kFloat32, Reduction::kSum, (5 << 20) + 1);
    });
  }
}

TEST(CompressedAllreduceWhoseResultsAreWrittenPastTheCaches) {
  constexpr int64_t kCount = (8 << 20) + 5;  // elements of 4 bytes: over 32 MiB
  RunRanksOn(FabricsOf(2)[1], TestConfig(), [](const RankContext& self) {
    CheckAverage(self, DType::kFloat32, Compression::kFp16, kCount);
  });
}

TEST(AllreduceAverageIsTheSumDividedByTheRanks) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (int64_t count : kCounts) {
        for (DType dtype : kFloatingDTypes) {
          CheckAverage(self, dtype, Compression::kNone, count);
        }
        CheckAverage(self, DType::kFloat32, Compression::kFp16, count);
        CheckAverage(self, DType::kFloat64, Compression::kBf16, count);
      }
    });
  }
}

TEST(AllreducePrescaleAndPostscale) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      ForEachScale([&](DType dtype, Compression compression, double post) {
        CheckScales(self, dtype, compression, post);
      });
    });
  }
}

TEST(AllreduceFusesMixedTensorsAtEveryThreshold) {
  for (int size : kRankCounts) {
    for (int64_t threshold : {0, 64, 1 << 20}) {
      tfdist::EngineConfig config = TestConfig();
      config.fusion_threshold_bytes = threshold;
      RunRanks(size, config, [](const RankContext& self) {
        for (Compression c : {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
          CheckFused(self, c);
        }
      });
    }
  }
}

TEST(AllreduceOfNoTensorsAndOfScalars) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      EXPECT(self.engine->Allreduce(OptionsFor("none", 0), {}, {}).ok());
      double value = self.rank + 1;
      const TensorView scalar{DType::kFloat64, {}, &value};
      EXPECT(self.engine->Allreduce(OptionsFor("scalar", 1), {scalar}, {scalar}).ok());
      EXPECT_EQ(value, self.size * (self.size + 1) / 2.0);
    });
  }
}
