// Adasum against a reference in float64 that folds whole gradients, tensor by tensor.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

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

constexpr int kAdasumRankCounts[] = {1, 2, 3, 4, 5, 8};

using Gradient = std::vector<double>;

double Dot(const Gradient& a, const Gradient& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Equation 4 of the paper.
Gradient FoldTwo(const Gradient& a, const Gradient& b) {
  const double ab = Dot(a, b);
  const double aa = Dot(a, a);
  const double bb = Dot(b, b);
  if (aa == 0) return b;
  if (bb == 0) return a;
  Gradient result(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    result[i] = a[i] - ab / (2 * aa) * a[i] + b[i] - ab / (2 * bb) * b[i];
  }
  return result;
}

// The tree from its root: the largest power of two of the gradients on the left, the rest on the
// right, which is what pairing neighbours level by level comes to.
Gradient Fold(const std::vector<Gradient>& gradients, size_t begin, size_t end) {
  if (end - begin == 1) return gradients[begin];
  size_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return FoldTwo(Fold(gradients, begin, begin + left), Fold(gradients, begin + left, end));
}

// Entry i of tensor `tensor` on rank `rank`.
using Entry = std::function<double(int rank, int tensor, int64_t i)>;

// Pseudorandom, and alike enough on all ranks that the products matter.
double RandomEntry(int rank, int tensor, int64_t i) {
  const auto noise = [](uint64_t seed) {
    seed = (seed + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    seed = (seed ^ (seed >> 31)) * 0x94d049bb133111ebull;
    return static_cast<double>(seed >> 40) / (1 << 24) - 0.5;
  };
  const uint64_t place = static_cast<uint64_t>(tensor) * 1000003u + static_cast<uint64_t>(i);
  return (noise(place) + 0.7 * noise(place * 16 + static_cast<uint64_t>(rank) + 1)) * (1 + rank);
}

// A few roundings of the type that the gradients are kept in, and one of the result.
double ToleranceOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-13;
    case DType::kFloat16:
      return 0x1p-9;
    case DType::kBfloat16:
      return 0x1p-6;
    default:
      return 4e-6;
  }
}

// What is submitted, and how far from the reference a result may be: `tolerance` times the largest
// entry of any rank.
struct Case {
  Case(DType own_dtype, std::vector<int64_t> elements)
      : dtype(own_dtype), counts(std::move(elements)), tolerance(ToleranceOf(own_dtype)) {}

  DType dtype;
  std::vector<int64_t> counts;  // elements, by tensor
  double tolerance;
  Compression compression = Compression::kNone;
  Entry entry = RandomEntry;
};

using Outcome = std::vector<Elements>;  // by tensor

// Submits the tensors of `test` in one call, in place.
Outcome RunAdasum(const RankContext& self, const Case& test, AllreduceOptions options) {
  Outcome outcome;
  std::vector<TensorView> views;
  for (size_t t = 0; t < test.counts.size(); ++t) {
    outcome.emplace_back(test.dtype, test.counts[t]);
    for (int64_t i = 0; i < test.counts[t]; ++i) {
      outcome[t].Set(i, test.entry(self.rank, static_cast<int>(t), i));
    }
  }
  for (Elements& tensor : outcome) views.push_back(tensor.view());
  options.tensor_names = OptionsFor("", views.size()).tensor_names;
  options.reduction = Reduction::kAdasum;
  options.compression = test.compression;
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
  return outcome;
}

// Folds what the ranks submitted, as their dtype keeps it.
void CheckTensor(int size, const Case& test, int tensor, const Elements& result) {
  const int64_t count = test.counts[tensor];
  std::vector<Gradient> gradients;
  double largest = 0;
  for (int rank = 0; rank < size; ++rank) {
    Elements given(test.dtype, count);
    for (int64_t i = 0; i < count; ++i) given.Set(i, test.entry(rank, tensor, i));
    gradients.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      gradients.back().push_back(given.Get(i));
      largest = std::max(largest, std::fabs(given.Get(i)));
    }
  }
  const Gradient expected = Fold(gradients, 0, gradients.size());
  for (int64_t i = 0; i < count; ++i) {
    EXPECT(std::fabs(result.Get(i) - expected[i]) <= test.tolerance * largest);
  }
}

// Runs `test` and checks values and that all ranks have the same bits.
void CheckCase(int size, const tfdist::EngineConfig& config, const Case& test) {
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  RunRanks(size, config, [&](const RankContext& self) {
    outcomes[self.rank] = RunAdasum(self, test, OptionsFor("adasum", 0));
  });
  for (size_t t = 0; t < test.counts.size(); ++t) {
    CheckTensor(size, test, static_cast<int>(t), outcomes[0][t]);
    for (const Outcome& other : outcomes) {
      EXPECT(other[t].bytes() == outcomes[0][t].bytes());
    }
  }
}

void CheckCase(int size, const Case& test) { CheckCase(size, TestConfig(), test); }

// Boundaries between tensors fall inside slices, on them, and several in one slice.
const std::vector<int64_t> kMixedCounts = {1, 7, 0, 13, 500, 2, 0, 3001, 1, 1, 1, 64};

}  // namespace

TEST(AdasumOfOneTensorInEveryFloatingDtype) {
  for (int size : kAdasumRankCounts) {
    for (DType dtype : kFloatingDTypes) {
      for (int64_t count : {0, 1, 3, 1003, 20011}) {
        Case test(dtype, {count});
        CheckCase(size, test);
      }
    }
  }
}

TEST(AdasumFoldsEachTensorByItselfAtEveryThreshold) {
  for (int size : kAdasumRankCounts) {
    for (int64_t threshold : {0, 64, 1 << 20}) {
      tfdist::EngineConfig config = TestConfig();
      config.fusion_threshold_bytes = threshold;
      for (DType dtype : kFloatingDTypes) {
        Case test(dtype, kMixedCounts);
        CheckCase(size, config, test);
      }
    }
  }
}

TEST(AdasumOfCompressedTensors) {
  for (int size : kAdasumRankCounts) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
      Case test(dtype, kMixedCounts);
      test.compression = Compression::kFp16;
      test.tolerance = 2 * ToleranceOf(DType::kFloat16);  // the inputs are rounded too
      CheckCase(size, test);
      test.compression = Compression::kBf16;
      test.tolerance = 2 * ToleranceOf(DType::kBfloat16);
      CheckCase(size, test);
    }
  }
}

TEST(AdasumOfManyTensorsAndOfALargeOne) {
  for (int size : {3, 5}) {
    // Its products are more than fit into one small message.
    const Case many(DType::kFloat32, std::vector<int64_t>(700, 3));
    CheckCase(size, many);
  }
  CheckCase(3, Case(DType::kFloat32, {5, 500'009}));
}

TEST(AdasumOfGradientsThatAreZeroOnSomeRanks) {
  for (int size : kAdasumRankCounts) {
    for (int zero = 0; zero < size; ++zero) {
      Case test(DType::kFloat32, kMixedCounts);
      test.entry = [zero](int rank, int tensor, int64_t i) {
        return rank == zero ? 0.0 : RandomEntry(rank, tensor, i);
      };
      CheckCase(size, test);
      // Only one tensor is zero on that rank.
      test.entry = [zero](int rank, int tensor, int64_t i) {
        return rank == zero && tensor == 4 ? 0.0 : RandomEntry(rank, tensor, i);
      };
      CheckCase(size, test);
    }
    Case none(DType::kFloat32, kMixedCounts);
    none.entry = [](int, int, int64_t) { return 0.0; };
    CheckCase(size, none);
  }
}

TEST(AdasumOfParallelGradientsIsTheirAverage) {
  for (int size : {1, 2, 4, 8}) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kFloatingDTypes) {
        Case test(dtype, {100, 9});
        test.entry = [](int rank, int, int64_t i) { return (rank * 2 + 1) * (i % 5 + 1.0); };
        const Outcome outcome = RunAdasum(self, test, OptionsFor("parallel", 2));
        for (int64_t i = 0; i < 100; ++i) {
          const double average = self.size * (i % 5 + 1.0);
          EXPECT(std::fabs(outcome[0].Get(i) - average) <= ToleranceOf(dtype) * average);
        }
      }
    });
  }
}

TEST(AdasumOfEqualGradientsIsThatGradient) {
  for (int size : kAdasumRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kFloatingDTypes) {
        Case test(dtype, {1000});
        // Squares of this size overflow float16, and their sum would overflow it by far.
        test.entry = [](int, int, int64_t i) { return i % 2 == 0 ? 57344.0 : -3.0; };
        const Outcome outcome = RunAdasum(self, test, OptionsFor("equal", 1));
        EXPECT_EQ(outcome[0].Get(0), 57344.0);
        EXPECT_EQ(outcome[0].Get(999), -3.0);
      }
    });
  }
}

TEST(AdasumOfOrthogonalGradientsIsTheirSum) {
  for (int size : kAdasumRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (DType dtype : kFloatingDTypes) {
        const auto value = [](int64_t i) { return static_cast<double>(i % 7 + 1); };
        Case test(dtype, {811});
        test.entry = [&](int rank, int, int64_t i) { return i % self.size == rank ? value(i) : 0; };
        const Outcome outcome = RunAdasum(self, test, OptionsFor("orthogonal", 1));
        for (int64_t i = 0; i < 811; ++i) EXPECT_EQ(outcome[0].Get(i), value(i));
      }
    });
  }
}

TEST(AdasumScalesWithPrescaleAndPostscale) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      for (Compression compression : {Compression::kNone, Compression::kFp16}) {
        Case test(DType::kFloat32, {257, 3});
        test.compression = compression;
        AllreduceOptions options = OptionsFor("scaled", 2);
        const Outcome plain = RunAdasum(self, test, options);
        options.prescale = 0.5;
        options.postscale = 16;
        const Outcome scaled = RunAdasum(self, test, options);
        for (size_t t = 0; t < 2; ++t) {
          for (int64_t i = 0; i < test.counts[t]; ++i) {
            // Powers of two cost no bits, but where a half is subnormal.
            const double expected = plain[t].Get(i) * 8;
            EXPECT(std::fabs(scaled[t].Get(i) - expected) <=
                   (compression == Compression::kNone ? 0 : 0x1p-18));
          }
        }
      }
    });
  }
}

TEST(AdasumKeepsInputsThatAreNotOutputs) {
  RunRanks(3, [](const RankContext& self) {
    std::vector<float> input = {1.0f, static_cast<float>(self.rank)};
    std::vector<float> output(2);
    AllreduceOptions options = OptionsFor("apart", 1);
    options.reduction = Reduction::kAdasum;
    EXPECT(self.engine->Allreduce(options, {ViewOf(&input)}, {ViewOf(&output)}).ok());
    EXPECT_EQ(input[0], 1.0f);
    EXPECT_EQ(input[1], static_cast<float>(self.rank));
    EXPECT(output[0] > 1.0f);
  });
}

TEST(AdasumRefusesIntegersAndWeights) {
  for (int size : kRankCounts) {
    ExpectSameError(size, StatusCode::kInvalidArgument,
                    "allreduce 'i': tensor 'tensor0' has dtype int32, but reduction adasum needs a "
                    "floating dtype. Use sum, or cast the tensor to float32.",
                    [](const RankContext& self) {
                      std::vector<int32_t> values(3);
                      const TensorView view = ViewOf(DType::kInt32, &values);
                      AllreduceOptions options = OptionsFor("i", 1);
                      options.reduction = Reduction::kAdasum;
                      return self.engine->Allreduce(options, {view}, {view});
                    });
  }
  ExpectSameError(2, StatusCode::kInvalidArgument,
                  "allreduce 'w' received weights for reduction adasum; weights need average.",
                  [](const RankContext& self) {
                    std::vector<float> values(3);
                    AllreduceOptions options = OptionsFor("w", 1);
                    options.reduction = Reduction::kAdasum;
                    options.weighted = true;
                    return self.engine->Allreduce(options, {ViewOf(&values)}, {ViewOf(&values)});
                  });
}
