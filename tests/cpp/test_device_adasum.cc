// Adasum on GPUs that do their work later, against what the engine folds on the processor.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "element.h"
#include "exact_input.h"
#include "expect.h"
#include "fake_cuda_driver.h"
#include "fake_nccl.h"
#include "nccl/device_adasum.h"
#include "rank_team.h"

using tfdist::AdasumCall;
using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::CudaStream;
using tfdist::DeviceAdasum;
using tfdist::DType;
using tfdist::NcclRanks;
using tfdist::Packer;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;
using tfdist::Wait;

namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 5};

class FakeCompiler : public tfdist::KernelCompiler {
 public:
  std::string Describe() const override { return "a fake"; }
  int version() const override { return 1; }
  Status Compile(const std::string&, const std::string&, std::string* image) override {
    *image = "kernels";
    return Status::Ok();
  }
};

// One rank with a GPU of its own.
struct Rank {
  const RankContext& self;
  FakeCudaDriver* gpu;
  DeviceAdasum* adasum;
  CudaStream stream;
  Wait* wait;
};

void RunOnGpus(int size, const std::function<void(const Rank& rank)>& body) {
  const tfdist::EngineConfig config = TestConfig();
  FakeNcclWorld world;
  RunRanksOn(FabricsOf(size)[0], config, [&](const RankContext& self) {
    FakeCudaDriver gpu;
    const std::unique_ptr<FakeNccl> nccl = world.Rank();
    nccl->UseGpu(&gpu);
    const tfdist::Topology& topology = self.communicator->topology();
    Wait wait(config, topology, [] { return std::string("allreduce 'g'"); });
    CudaStream stream;
    EXPECT(gpu.NewStream(true, &stream).ok());
    std::unique_ptr<NcclRanks> ranks;
    EXPECT(NcclRanks::Open(nccl.get(), "GPU", 10, self.communicator, &wait, &ranks).ok());
    FakeCompiler compiler;
    tfdist::KernelCache kernels(&compiler, "");
    tfdist::DeviceFacts facts;
    EXPECT(gpu.Describe(0, &facts).ok());
    std::unique_ptr<Packer> packer;
    EXPECT(Packer::Open(&gpu, facts, &kernels, &packer).ok());
    {
      std::unique_ptr<DeviceAdasum> adasum;
      EXPECT(
          DeviceAdasum::Open({&gpu, packer.get(), ranks.get()}, facts, topology, &kernels, &adasum)
              .ok());
      body({self, &gpu, adasum.get(), stream, &wait});
      EXPECT(gpu.Synchronize());
    }
    EXPECT_EQ(gpu.allocated_bytes(), 0);
    EXPECT(ranks->Close(&wait).ok());
    EXPECT_EQ(self.engine->Barrier("end").message(), "");  // the fakes live until all have ended
  });
}

// Entry i of tensor `tensor` on rank `rank`: alike enough on all ranks that the products matter.
using Entry = std::function<double(int rank, size_t tensor, int64_t i)>;

double WaveEntry(int rank, size_t tensor, int64_t i) {
  const double place = static_cast<double>(i) + 17 * static_cast<double>(tensor);
  return (std::sin(place * 0.7) + 0.6 * std::cos(place * 0.31 * (rank + 1))) * (1 + rank);
}

// What is submitted.
struct Case {
  DType dtype;
  std::vector<int64_t> counts;
  AdasumCall call = {};
  Entry entry = WaveEntry;
  bool in_place = true;
};

std::vector<TensorView> ViewsOf(std::vector<Elements>* tensors) {
  std::vector<TensorView> views;
  for (Elements& tensor : *tensors) views.push_back(tensor.view());
  return views;
}

std::vector<Elements> InputsOf(const Case& test, int rank) {
  std::vector<Elements> inputs;
  for (size_t t = 0; t < test.counts.size(); ++t) {
    inputs.emplace_back(test.dtype, test.counts[t]);
    for (int64_t i = 0; i < test.counts[t]; ++i) inputs[t].Set(i, test.entry(rank, t, i));
  }
  return inputs;
}

// A call on the GPU under way, and its result.
class OneCall {
 public:
  OneCall(const Rank& rank, const Case& test)
      : inputs_(InputsOf(test, rank.self.rank)), outputs_(inputs_), in_place_(test.in_place) {
    const std::vector<TensorView> from = ViewsOf(&inputs_);
    const std::vector<TensorView> to = test.in_place ? from : ViewsOf(&outputs_);
    EXPECT_EQ(rank.adasum->Allreduce(test.call, from, to, rank.stream, rank.wait).message(), "");
  }

  // For when the GPU has done it.
  const std::vector<Elements>& results() const { return in_place_ ? inputs_ : outputs_; }

 private:
  std::vector<Elements> inputs_, outputs_;
  const bool in_place_;
};

std::vector<Elements> OnProcessor(const RankContext& self, const Case& test) {
  std::vector<Elements> tensors = InputsOf(test, self.rank);
  const std::vector<TensorView> views = ViewsOf(&tensors);
  AllreduceOptions options = OptionsFor("adasum", views.size());
  options.reduction = Reduction::kAdasum;
  options.compression = test.call.compression;
  options.prescale = test.call.prescale;
  options.postscale = test.call.postscale;
  EXPECT_EQ(self.engine->Allreduce(options, views, views).message(), "");
  return tensors;
}

// The two add products up in another order, so a factor may differ in its last bits, and what is
// rounded after it by one unit of the type that travels.
double ToleranceOf(DType wire) {
  switch (wire) {
    case DType::kFloat64:
      return 1e-14;
    case DType::kFloat16:
      return 0x1p-10;
    case DType::kBfloat16:
      return 0x1p-7;
    default:
      return 0x1p-22;
  }
}

void CheckResults(const Rank& rank, const Case& test, const std::vector<Elements>& results) {
  const std::vector<Elements> expected = OnProcessor(rank.self, test);
  const double tolerance = ToleranceOf(WireType(test.dtype, test.call.compression));
  for (size_t t = 0; t < expected.size(); ++t) {
    double largest = 0;
    for (int64_t i = 0; i < expected[t].count(); ++i) {
      largest = std::max(largest, std::fabs(expected[t].Get(i)));
    }
    for (int64_t i = 0; i < expected[t].count(); ++i) {
      EXPECT(std::fabs(results[t].Get(i) - expected[t].Get(i)) <= tolerance * largest);
    }
    // All ranks have the bits of rank 0.
    std::vector<char> bytes = results[t].bytes();
    const TensorView view = ViewOf(DType::kUint8, &bytes);
    EXPECT(rank.self.engine->Broadcast(BroadcastOptionsFor("bits", 1, 0), {view}).ok());
    EXPECT(bytes == results[t].bytes());
  }
}

void CheckCase(const Rank& rank, const Case& test) {
  const OneCall call(rank, test);
  EXPECT(rank.gpu->Synchronize());
  CheckResults(rank, test, call.results());
}

// Boundaries between tensors fall inside slices, on them, and several in one slice.
const std::vector<int64_t> kMixedCounts = {1, 7, 0, 13, 500, 2, 0, 3001, 1, 1, 1, 64};

}  // namespace

TEST(DeviceAdasumIsWhatTheEngineFolds) {
  for (int size : kSizes) {
    RunOnGpus(size, [](const Rank& rank) {
      for (DType dtype : kFloatingDTypes) {
        for (Compression compression :
             {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
          Case test{dtype, kMixedCounts};
          test.call.compression = compression;
          CheckCase(rank, test);
          test.call.prescale = 0.5;
          test.call.postscale = 3;
          test.in_place = false;
          CheckCase(rank, test);
        }
        for (int64_t count : {0, 1, 8, 9, 1003}) CheckCase(rank, {dtype, {count}});
      }
    });
  }
}

TEST(DeviceAdasumOfManyTensorsAndOfALargeOne) {
  for (int size : {2, 3}) {
    RunOnGpus(size, [](const Rank& rank) {
      CheckCase(rank, {DType::kFloat32, std::vector<int64_t>(500, 3)});
      CheckCase(rank, {DType::kFloat32, {5, 150'009, 7}});
    });
  }
}

TEST(DeviceAdasumOfGradientsThatAreZeroOnSomeRanks) {
  for (int size : kSizes) {
    RunOnGpus(size, [size](const Rank& rank) {
      for (int zero = 0; zero <= size; ++zero) {
        Case test{DType::kFloat32, kMixedCounts};
        test.entry = [zero, size](int r, size_t tensor, int64_t i) {
          const bool is_zero = r == zero || zero == size || (tensor == 4 && r != zero);
          return is_zero ? 0.0 : WaveEntry(r, tensor, i);
        };
        CheckCase(rank, test);
      }
    });
  }
}

TEST(DeviceAdasumOfOrthogonalGradientsIsTheirSumAndOfEqualOnesTheirAverage) {
  for (int size : kSizes) {
    RunOnGpus(size, [size](const Rank& rank) {
      Case test{DType::kFloat32, {811}};
      test.entry = [size](int r, size_t, int64_t i) {
        return i % size == r ? static_cast<double>(i % 7 + 1) : 0.0;
      };
      const OneCall orthogonal(rank, test);
      test.entry = [](int, size_t, int64_t i) { return static_cast<double>(i % 7 + 1); };
      const OneCall equal(rank, test);
      EXPECT(rank.gpu->Synchronize());
      for (int64_t i = 0; i < 811; ++i) {
        EXPECT_EQ(orthogonal.results()[0].Get(i), static_cast<double>(i % 7 + 1));
        EXPECT_EQ(equal.results()[0].Get(i), static_cast<double>(i % 7 + 1));
      }
    });
  }
}

// Larger and larger ones, all on their way together, so that memory is replaced under them.
TEST(DeviceAdasumTakesCallsOneAfterTheOtherWithoutWaiting) {
  RunOnGpus(3, [](const Rank& rank) {
    std::vector<Case> cases;
    for (int64_t count = 10; count < 20000; count *= 3) {
      for (DType dtype : {DType::kFloat16, DType::kFloat64}) cases.push_back({dtype, {count, 5}});
    }
    std::vector<std::unique_ptr<OneCall>> calls;
    for (const Case& test : cases) calls.push_back(std::make_unique<OneCall>(rank, test));
    EXPECT(rank.gpu->Synchronize());
    for (size_t c = 0; c < cases.size(); ++c) CheckResults(rank, cases[c], calls[c]->results());
  });
}

TEST(DeviceAdasumTakesTheMemoryThatItSays) {
  constexpr int64_t kCount = 100'000;
  for (int size : {2, 5}) {
    for (Compression compression : {Compression::kNone, Compression::kFp16}) {
      RunOnGpus(size, [compression](const Rank& rank) {
        Case test{DType::kFloat32, {kCount}};
        test.call.compression = compression;
        CheckCase(rank, test);
        EXPECT(rank.gpu->allocated_bytes() < 8 * kCount + 10'000);
      });
    }
  }
}

TEST(DeviceAdasumRefusesIntegers) {
  RunOnGpus(1, [](const Rank& rank) {
    std::vector<Elements> tensors = InputsOf({DType::kInt32, {3}}, 0);
    const std::vector<TensorView> views = ViewsOf(&tensors);
    const Status status = rank.adasum->Allreduce({}, views, views, rank.stream, rank.wait);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInvalidArgument));
    EXPECT_EQ(status.message(),
              "adasum received int32, but needs a floating dtype. Use sum, or cast the tensor to "
              "float32.");
  });
}
