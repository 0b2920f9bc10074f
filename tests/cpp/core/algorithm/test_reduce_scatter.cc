// ReduceScatter: values that are exactly known, rows dealt out evenly or not, and the same bits as
// the rows of an allreduce.
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "core/algorithm/fused_collective.h"
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

// First row of rank `rank`, found by dealing the rows out one by one. Of the last rank + 1: all.
int64_t FirstRow(int64_t rows, int rank, int size) {
  int64_t first = 0;
  for (int64_t row = 0; row < rows; ++row) first += row % size < rank ? 1 : 0;
  return first;
}

// One tensor of a call: what this rank gives, room for what it gets, and where that begins.
struct Part {
  Part(const RankContext& self, DType dtype, std::vector<int64_t> full_shape)
      : shape(std::move(full_shape)), own_shape(shape) {
    for (size_t d = 1; d < shape.size(); ++d) row_elements *= shape[d];
    first_row = FirstRow(shape[0], self.rank, self.size);
    own_shape[0] = FirstRow(shape[0], self.rank + 1, self.size) - first_row;
    input = Elements(dtype, shape[0] * row_elements);
    output = Elements(dtype, own_shape[0] * row_elements);
  }

  TensorView input_view() { return {input.view().dtype, shape, input.view().data}; }
  TensorView output_view() { return {output.view().dtype, own_shape, output.view().data}; }
  int64_t first_element() const { return first_row * row_elements; }

  std::vector<int64_t> shape;
  std::vector<int64_t> own_shape;
  int64_t row_elements = 1;
  int64_t first_row = 0;
  Elements input;
  Elements output;
};

Status Run(const RankContext& self, AllreduceOptions options, std::vector<Part>* parts) {
  options.tensor_names = OptionsFor("", parts->size()).tensor_names;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  for (Part& part : *parts) {
    inputs.push_back(part.input_view());
    outputs.push_back(part.output_view());
  }
  return self.engine->ReduceScatter(options, inputs, outputs);
}

void CheckReduction(const RankContext& self, DType dtype, Reduction reduction,
                    const std::vector<int64_t>& shape) {
  std::vector<Part> parts = {Part(self, dtype, shape)};
  Part& part = parts[0];
  const auto given = [&](int64_t i) {
    const double value = ExactInput(reduction, self.rank, i);
    return dtype == DType::kBool ? value != 0 : value;
  };
  for (int64_t i = 0; i < part.input.count(); ++i) part.input.Set(i, given(i));
  AllreduceOptions options = OptionsFor("scatter", 1);
  options.reduction = reduction;
  EXPECT_EQ(Run(self, options, &parts).message(), "");
  for (int64_t i = 0; i < part.output.count(); ++i) {
    EXPECT_EQ(part.output.Get(i),
              ExactResult(dtype, reduction, self.size, part.first_element() + i));
  }
  for (int64_t i = 0; i < part.input.count(); ++i) EXPECT_EQ(part.input.Get(i), given(i));
}

void CheckAverage(const RankContext& self, DType dtype, Compression compression) {
  std::vector<Part> parts = {Part(self, dtype, {101, 2})};
  Part& part = parts[0];
  for (int64_t i = 0; i < part.input.count(); ++i) {
    part.input.Set(i, AverageInput(self.rank, self.size, i));
  }
  AllreduceOptions options = OptionsFor("average", 1);
  options.reduction = Reduction::kAverage;
  options.compression = compression;
  EXPECT_EQ(Run(self, options, &parts).message(), "");
  for (int64_t i = 0; i < part.output.count(); ++i) {
    EXPECT_EQ(part.output.Get(i), ExactAverage(part.first_element() + i));
  }
}

// Scales by powers of two and inputs of few bits: exact in every floating type.
void CheckScales(const RankContext& self, DType dtype, Compression compression, double post) {
  std::vector<Part> parts = {Part(self, dtype, {103, 5})};
  Part& part = parts[0];
  for (int64_t i = 0; i < part.input.count(); ++i) {
    part.input.Set(i, static_cast<double>(i % 5 + self.rank));
  }
  AllreduceOptions options = OptionsFor("scaled", 1);
  options.compression = compression;
  options.prescale = 0.5;
  options.postscale = post;
  EXPECT_EQ(Run(self, options, &parts).message(), "");
  for (int64_t i = 0; i < part.output.count(); ++i) {
    const int64_t base = (part.first_element() + i) % 5;
    const double sum = static_cast<double>(base * self.size + self.size * (self.size - 1) / 2);
    EXPECT_EQ(part.output.Get(i), sum * 0.5 * post);
  }
}

// Tensors of several dtypes and sizes, whose sums depend on the order of summation.
std::vector<Part> MixedParts(const RankContext& self) {
  std::vector<Part> parts;
  const std::vector<int64_t> shapes[] = {{7, 3}, {1},    {0, 4}, {64, 2, 2}, {5},   {300},
                                         {3, 0}, {9, 1}, {2, 5}, {17},       {1, 6}};
  const DType floats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat32, DType::kFloat16,
                          DType::kFloat32, DType::kFloat32, DType::kBfloat16};
  std::mt19937 random(77 + static_cast<unsigned>(self.rank));
  std::normal_distribution<double> normal;
  for (size_t t = 0; t < 11; ++t) {
    parts.emplace_back(self, floats[t % 7], shapes[t]);
    Elements& input = parts.back().input;
    for (int64_t i = 0; i < input.count(); ++i) input.Set(i, normal(random));
  }
  return parts;
}

// The bytes that ReduceScatter gives are those of the rows that Allreduce gives.
void CheckSameBits(const RankContext& self, AllreduceOptions options) {
  std::vector<Part> parts = MixedParts(self);
  EXPECT_EQ(Run(self, options, &parts).message(), "");
  std::vector<TensorView> views;
  for (Part& part : parts) views.push_back(part.input_view());
  options.tensor_names = OptionsFor("", parts.size()).tensor_names;
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
  for (Part& part : parts) {
    const int64_t element_bytes = tfdist::SizeOf(part.input.view().dtype);
    const char* rows = part.input.bytes().data() + part.first_element() * element_bytes;
    EXPECT_EQ(std::memcmp(part.output.bytes().data(), rows,
                          static_cast<size_t>(part.output.count() * element_bytes)),
              0);
  }
}

void CheckSameBitsOfAllOptions(const RankContext& self) {
  const Reduction reductions[] = {Reduction::kSum, Reduction::kAverage, Reduction::kMin,
                                  Reduction::kMax, Reduction::kProduct};
  for (Reduction reduction : reductions) {
    for (Compression compression : {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
      AllreduceOptions options;
      options.name = "same";
      options.reduction = reduction;
      options.compression = compression;
      CheckSameBits(self, options);
      options.prescale = 0.3;
      options.postscale = 7.1;
      CheckSameBits(self, options);
    }
  }
  AllreduceOptions weighted;
  weighted.name = "weighted";
  weighted.reduction = Reduction::kAverage;
  weighted.weighted = true;
  weighted.weight = static_cast<uint32_t>(self.rank * 3 + 1);
  CheckSameBits(self, weighted);
}

// Submits one float32 tensor whose output this test chooses.
Status Submit(const RankContext& self, const std::vector<int64_t>& shape,
              const std::vector<int64_t>& own_shape,
              const AllreduceOptions& options = OptionsFor("s", 1)) {
  std::vector<float> input(64, 1.0f);
  std::vector<float> output(64, 1.0f);
  return self.engine->ReduceScatter(options, {{DType::kFloat32, shape, input.data()}},
                                    {{DType::kFloat32, own_shape, output.data()}});
}

}  // namespace

TEST(ReduceScatterEveryDtypeAndReduction) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kAllDTypes) {
        for (Reduction reduction : kExactReductions) {
          // No rows, fewer than ranks, uneven, even for 1 to 5 ranks, and rows without elements.
          for (int64_t rows : {0, 1, 3, 7, 60, 503}) {
            CheckReduction(self, dtype, reduction, {rows});
            CheckReduction(self, dtype, reduction, {rows, 2, 3});
          }
          CheckReduction(self, dtype, reduction, {6, 0});
        }
      }
    });
  }
}

TEST(ReduceScatterLargerThanASegment) {
  // At 2 and 3 ranks one more than a round can carry: only rank 0 has anything left for the second.
  constexpr int64_t kSegmentElements = (8 << 20) / sizeof(float);
  for (int size : {2, 3}) {
    RunRanks(size, [](const RankContext& self) {
      const int64_t round = kSegmentElements / self.size * self.size;
      CheckReduction(self, DType::kFloat32, Reduction::kSum, {round + 1});
    });
  }
  // Fewer rows than ranks: one rank has nothing to receive.
  RunRanks(3, [](const RankContext& self) {
    CheckReduction(self, DType::kFloat32, Reduction::kMax, {2, kSegmentElements / 2 + 17});
  });
}

TEST(ReduceScatterAverageIsTheSumDividedByTheRanks) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kFloatingDTypes) CheckAverage(self, dtype, Compression::kNone);
      for (Compression compression : {Compression::kFp16, Compression::kBf16}) {
        CheckAverage(self, DType::kFloat32, compression);
        CheckAverage(self, DType::kFloat64, compression);
      }
    });
  }
}

TEST(ReduceScatterPrescaleAndPostscale) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      ForEachScale([&](DType dtype, Compression compression, double post) {
        CheckScales(self, dtype, compression, post);
      });
    });
  }
}

TEST(ReduceScatterHasTheBitsOfAllreduceAtEveryThreshold) {
  for (int size : kRankCounts) {
    for (int64_t threshold : {0, 64, 1 << 20}) {
      tfdist::EngineConfig config = TestConfig();
      config.fusion_threshold_bytes = threshold;
      RunRanks(size, config, CheckSameBitsOfAllOptions);
    }
  }
}

TEST(ReduceScatterOfNoTensors) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      EXPECT(self.engine->ReduceScatter(OptionsFor("none", 0), {}, {}).ok());
      ExpectInStep(self);
    });
  }
}

TEST(ReduceScatterRefusesScalarsAdasumAndIntegerAverages) {
  for (int size : kRankCounts) {
    ExpectSameError(size, StatusCode::kInvalidArgument,
                    "reducescatter 's': tensor 'tensor0' is a scalar; expected at least one "
                    "dimension, whose rows are distributed. Use allreduce for a scalar.",
                    [](const RankContext& self) { return Submit(self, {}, {}); });
  }
  ExpectSameError(2, StatusCode::kInvalidArgument,
                  "reducescatter 's' received reduction adasum; expected sum, average, min, max or "
                  "product.",
                  [](const RankContext& self) {
                    AllreduceOptions options = OptionsFor("s", 1);
                    options.reduction = Reduction::kAdasum;
                    return Submit(self, {2}, {1}, options);
                  });
  ExpectSameError(2, StatusCode::kInvalidArgument,
                  "reducescatter 's': tensor 'tensor0' has dtype int64, but reduction average",
                  [](const RankContext& self) {
                    std::vector<int64_t> values(4);
                    AllreduceOptions options = OptionsFor("s", 1);
                    options.reduction = Reduction::kAverage;
                    return self.engine->ReduceScatter(options, {{DType::kInt64, {2}, &values[0]}},
                                                      {{DType::kInt64, {1}, &values[2]}});
                  });
}

TEST(ReduceScatterRefusesOutputsOfOtherRows) {
  // 7 rows at 3 ranks are 3, 2 and 2.
  ExpectSameError(
      3, StatusCode::kFailedPrecondition,
      "reducescatter 's' has wrong arguments on some ranks: rank 1: reducescatter 's': "
      "the output for tensor 'tensor0' has dtype float32 and shape [3,4]; expected "
      "float32 and [2,4].",
      [](const RankContext& self) { return Submit(self, {7, 4}, {self.rank < 2 ? 3 : 2, 4}); });
}

TEST(ReduceScatterOfUnequalRowsIsAMismatch) {
  ExpectSameError(2, StatusCode::kFailedPrecondition,
                  "reducescatter 's' differs between ranks: shape of tensor 'tensor0' is [2,3] on "
                  "rank 0, [3,3] on rank 1.",
                  [](const RankContext& self) { return Submit(self, {2 + self.rank, 3}, {1, 3}); });
  ExpectSameError(2, StatusCode::kFailedPrecondition, "reduction is sum on rank 0, max on rank 1.",
                  [](const RankContext& self) {
                    AllreduceOptions options = OptionsFor("s", 1);
                    if (self.rank == 1) options.reduction = Reduction::kMax;
                    return Submit(self, {2}, {1}, options);
                  });
}

TEST(OwnRowsCoverAllRowsInOrder) {
  for (int size = 1; size <= 9; ++size) {
    for (int64_t rows = 0; rows <= 30; ++rows) {
      for (int rank = 0; rank < size; ++rank) {
        const tfdist::RowRange own = tfdist::OwnRows(rows, rank, size);
        EXPECT_EQ(own.begin, FirstRow(rows, rank, size));
        EXPECT_EQ(own.end, FirstRow(rows, rank + 1, size));
      }
    }
  }
  const int64_t many = int64_t{1} << 40;
  EXPECT_EQ(tfdist::OwnRows(many, 2, 3).end, many);
}
