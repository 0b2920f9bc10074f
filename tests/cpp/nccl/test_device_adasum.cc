// Adasum on GPUs that do their work later, in the order that is worst for a missing event, against
// what the engine folds on the processor.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "element.h"
#include "exact_input.h"
#include "expect.h"
#include "gpu_team.h"

using tfdist::AllreduceOptions;
using tfdist::Compression;
using tfdist::CudaEvent;
using tfdist::DeviceReduce;
using tfdist::DType;
using tfdist::Reduction;
using tfdist::TensorView;

namespace {

// Alike enough on all ranks that the products matter.
double Entry(int rank, size_t tensor, int64_t i) {
  const double place = static_cast<double>(i) + 17 * static_cast<double>(tensor);
  return (std::sin(place * 0.7) + 0.6 * std::cos(place * 0.31 * (rank + 1))) * (1 + rank);
}

// What is submitted.
struct Case {
  DType dtype;
  std::vector<int64_t> counts;
  DeviceReduce reduce = {};
  bool in_place = true;
};

std::vector<TensorView> ViewsOf(std::vector<Elements>* tensors) {
  std::vector<TensorView> views;
  for (Elements& tensor : *tensors) views.push_back(tensor.view());
  return views;
}

void Fill(std::vector<Elements>* tensors, int rank) {
  for (size_t t = 0; t < tensors->size(); ++t) {
    Elements& tensor = (*tensors)[t];
    for (int64_t i = 0; i < tensor.count(); ++i) tensor.Set(i, Entry(rank, t, i));
  }
}

// A call under way, whose inputs are made by the computation just before it.
class OneCall {
 public:
  OneCall(const Rank& rank, const Case& test) : rank_(rank), test_(test) {
    for (int64_t count : test.counts) inputs_.emplace_back(test.dtype, count);
    outputs_ = inputs_;
    const std::vector<TensorView> from = ViewsOf(&inputs_);
    const std::vector<TensorView> to = test.in_place ? from : ViewsOf(&outputs_);
    rank.gpu->Enqueue(rank.compute, [this] {
      Fill(&inputs_, rank_.self.rank);
      return true;
    });
    DeviceReduce reduce = test.reduce;
    reduce.reduction = Reduction::kAdasum;
    EXPECT_EQ(rank.collective->PrepareAllreduce(reduce, from).message(), "");
    EXPECT_EQ(rank.collective->Allreduce(reduce, from, to, rank.StepOf(&done_)).message(), "");
  }

  // The two add products up in another order, so a factor may differ in its last bits, and what is
  // rounded after it by one unit of the type that travels.
  void Check() {
    bool happened = false;
    while (!happened) EXPECT(rank_.gpu->HasHappened(done_, &happened).ok());
    rank_.collective->Release(done_);
    const std::vector<Elements> expected = OnProcessor();
    const double tolerance = ToleranceOf(WireType(test_.dtype, test_.reduce.compression));
    for (size_t t = 0; t < expected.size(); ++t) {
      const Elements& result = (test_.in_place ? inputs_ : outputs_)[t];
      double largest = 0;
      for (int64_t i = 0; i < result.count(); ++i) {
        largest = std::max(largest, std::fabs(expected[t].Get(i)));
      }
      for (int64_t i = 0; i < result.count(); ++i) {
        EXPECT(std::fabs(result.Get(i) - expected[t].Get(i)) <= tolerance * largest);
      }
      // All ranks have the bits of rank 0.
      std::vector<char> bytes = result.bytes();
      const TensorView view = ViewOf(DType::kUint8, &bytes);
      EXPECT(rank_.self.engine->Broadcast(BroadcastOptionsFor("bits", 1, 0), {view}).ok());
      EXPECT(bytes == result.bytes());
    }
  }

 private:
  static double ToleranceOf(DType wire) {
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

  std::vector<Elements> OnProcessor() const {
    std::vector<Elements> tensors;
    for (int64_t count : test_.counts) tensors.emplace_back(test_.dtype, count);
    Fill(&tensors, rank_.self.rank);
    const std::vector<TensorView> views = ViewsOf(&tensors);
    AllreduceOptions options = OptionsFor("adasum", views.size());
    options.reduction = Reduction::kAdasum;
    options.compression = test_.reduce.compression;
    options.prescale = test_.reduce.prescale;
    options.postscale = test_.reduce.postscale;
    EXPECT_EQ(rank_.self.engine->Allreduce(options, views, views).message(), "");
    return tensors;
  }

  const Rank& rank_;
  const Case test_;
  std::vector<Elements> inputs_, outputs_;
  CudaEvent done_ = nullptr;
};

}  // namespace

TEST(DeviceAdasumIsWhatTheEngineFolds) {
  for (int size : kRankCounts) {
    RunOnGpus(size, kPolicies[size % 2], [](const Rank& rank) {
      for (DType dtype : kFloatingDTypes) {
        for (Compression compression :
             {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
          Case test{dtype, {1, 7, 0, 13, 500, 2, 0, 3001, 1, 1, 1, 64}};
          test.reduce.compression = compression;
          OneCall(rank, test).Check();
          test.reduce.prescale = 0.5;
          test.reduce.postscale = 3;
          test.reduce.fusion_threshold_bytes = 4000;
          test.in_place = false;
          OneCall(rank, test).Check();
        }
        for (int64_t count : {0, 1, 8, 9, 1003}) OneCall(rank, {dtype, {count}}).Check();
      }
    });
  }
}

// Larger and larger ones, so that memory is replaced under what is still in the stream.
TEST(DeviceAdasumTakesCallsOneAfterTheOther) {
  for (FakeCudaDriver::Policy policy : kPolicies) {
    RunOnGpus(3, policy, [](const Rank& rank) {
      std::vector<std::unique_ptr<OneCall>> calls;
      for (int64_t count = 10; count < 20000; count *= 3) {
        for (DType dtype : {DType::kFloat16, DType::kFloat64}) {
          calls.push_back(std::make_unique<OneCall>(rank, Case{dtype, {count, 5}}));
        }
      }
      for (auto& call : calls) call->Check();
    });
  }
}
