// The fused allreduce on GPUs that do their work later, in the order that is worst for a missing
// event, against exact sums.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "element.h"
#include "exact_input.h"
#include "expect.h"
#include "gpu_team.h"

using tfdist::Compression;
using tfdist::CudaEvent;
using tfdist::DeviceReduce;
using tfdist::DType;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::TensorView;

namespace {

double Value(int rank, size_t tensor, int64_t i) {
  return static_cast<double>((i + 3 * rank + 5 * static_cast<int64_t>(tensor)) % 8);
}

double SumOf(int size, size_t tensor, int64_t i) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += Value(r, tensor, i);
  return sum;
}

// An allreduce whose inputs are made by the computation just before it, and whose results are
// looked at when its event has happened.
class OneCall {
 public:
  OneCall(const Rank& rank, DType dtype, const std::vector<int64_t>& counts, bool in_place)
      : rank_(rank) {
    for (int64_t count : counts) {
      inputs_.emplace_back(dtype, count);
      outputs_.emplace_back(dtype, count);
    }
    for (Elements& input : inputs_) from_.push_back(input.view());
    for (Elements& output : in_place ? inputs_ : outputs_) to_.push_back(output.view());
    results_ = in_place ? &inputs_ : &outputs_;
  }

  Status Start(const DeviceReduce& reduce) {
    rank_.gpu->Enqueue(rank_.compute, [this] {
      for (size_t t = 0; t < inputs_.size(); ++t) {
        for (int64_t i = 0; i < inputs_[t].count(); ++i) {
          inputs_[t].Set(i, Value(rank_.self.rank, t, i));
        }
      }
      return true;
    });
    const Status prepared = rank_.collective->PrepareAllreduce(reduce, from_);
    if (!prepared.ok()) return prepared;
    return rank_.collective->Allreduce(reduce, from_, to_, rank_.StepOf(&done_));
  }

  // `factor` times the sums are expected.
  void Check(double factor) {
    bool happened = false;
    while (!happened) EXPECT(rank_.gpu->HasHappened(done_, &happened).ok());
    rank_.collective->Release(done_);
    for (size_t t = 0; t < results_->size(); ++t) {
      const Elements& result = (*results_)[t];
      for (int64_t i = 0; i < result.count(); ++i) {
        EXPECT_EQ(result.Get(i), factor * SumOf(rank_.self.size, t, i));
      }
    }
  }

 private:
  const Rank& rank_;
  std::vector<Elements> inputs_, outputs_;
  std::vector<Elements>* results_;
  std::vector<TensorView> from_, to_;
  CudaEvent done_ = nullptr;
};

}  // namespace

TEST(DeviceAllreduceOfManyTensorsInEveryType) {
  for (FakeCudaDriver::Policy policy : kPolicies) {
    for (int size : kRankCounts) {
      RunOnGpus(size, policy, [](const Rank& rank) {
        for (Compression compression :
             {Compression::kNone, Compression::kFp16, Compression::kBf16}) {
          for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kInt32}) {
            for (bool in_place : {false, true}) {
              DeviceReduce reduce;
              reduce.compression = compression;
              reduce.fusion_threshold_bytes = 4000;
              OneCall call(rank, dtype, {0, 1, 7, 1000, 2000, 3, 8}, in_place);
              EXPECT_EQ(call.Start(reduce).message(), "");
              call.Check(1);
            }
          }
        }
      });
    }
  }
}

// Larger and larger ones, all on their way together, so that the buffer is replaced under them.
TEST(DeviceAllreduceReplacesItsBufferWithoutWaiting) {
  for (FakeCudaDriver::Policy policy : kPolicies) {
    RunOnGpus(2, policy, [](const Rank& rank) {
      for (int round = 0; round < 2; ++round) {
        std::vector<std::unique_ptr<OneCall>> calls;
        for (int64_t count = 10; count < 20000; count *= 3) {
          calls.push_back(std::make_unique<OneCall>(rank, DType::kFloat32,
                                                    std::vector<int64_t>{count, 5}, false));
          EXPECT_EQ(calls.back()->Start({}).message(), "");
        }
        for (auto& call : calls) call->Check(1);
      }
    });
  }
}

TEST(DeviceAllreduceScalesAndAverages) {
  RunOnGpus(2, FakeCudaDriver::kLastStream, [](const Rank& rank) {
    for (Compression compression : {Compression::kNone, Compression::kFp16}) {
      for (const std::vector<int64_t>& counts : {std::vector<int64_t>{9}, {9, 4}}) {
        DeviceReduce reduce;
        reduce.compression = compression;
        reduce.reduction = Reduction::kAverage;
        reduce.prescale = 4;
        reduce.postscale = 0.5;
        reduce.fusion_threshold_bytes = 1 << 20;
        OneCall call(rank, DType::kFloat32, counts, false);
        EXPECT_EQ(call.Start(reduce).message(), "");
        call.Check(4 * 0.5 / 2);
      }
    }
  });
}

// 40,000 from each rank is more than a float16 holds when it is summed as it is.
TEST(DeviceAllreduceInFloat16OverflowsNoSoonerThanItsAverage) {
  RunOnGpus(3, FakeCudaDriver::kLastStream, [](const Rank& rank) {
    for (Reduction reduction : {Reduction::kSum, Reduction::kAverage}) {
      std::vector<float> values = {40000.0f, 1.0f};
      DeviceReduce reduce;
      reduce.compression = Compression::kFp16;
      reduce.reduction = reduction;
      CudaEvent done;
      const std::vector<TensorView> views = {ViewOf(&values)};
      EXPECT(rank.collective->PrepareAllreduce(reduce, views).ok());
      EXPECT(rank.collective->Allreduce(reduce, views, views, rank.StepOf(&done)).ok());
      EXPECT(rank.gpu->Synchronize());
      rank.collective->Release(done);
      const float factor = reduction == Reduction::kSum ? 3.0f : 1.0f;
      EXPECT(std::abs(values[0] - factor * 40000.0f) < factor * 40.0f);
      EXPECT(std::abs(values[1] - factor) < factor * 0.001f);
    }
  });
}

// Also of those that NCCL does not reduce.
TEST(DeviceAllreduceOfEveryTypeByEveryReduction) {
  for (int size : {1, 2, 3}) {
    RunOnGpus(size, FakeCudaDriver::kLastStream, [](const Rank& rank) {
      for (DType dtype : kAllDTypes) {
        for (Reduction reduction : kExactReductions) {
          Elements input(dtype, 50), output(dtype, 50);
          for (int64_t i = 0; i < 50; ++i) {
            input.Set(i, ExactInput(reduction, rank.self.rank, i));
          }
          DeviceReduce reduce;
          reduce.reduction = reduction;
          CudaEvent done;
          EXPECT_EQ(rank.collective->PrepareAllreduce(reduce, {input.view()}).message(), "");
          EXPECT_EQ(rank.collective
                        ->Allreduce(reduce, {input.view()}, {output.view()}, rank.StepOf(&done))
                        .message(),
                    "");
          EXPECT(rank.gpu->Synchronize());
          rank.collective->Release(done);
          for (int64_t i = 0; i < 50; ++i) {
            EXPECT_EQ(output.Get(i), ExactResult(dtype, reduction, rank.self.size, i));
          }
        }
      }
    });
  }
}

// Ranks 1 and 3 have joined: they give zeros and take nothing.
TEST(DeviceAllreduceTakesZerosFromRanksWithoutTensors) {
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{9}, {9, 4}}) {
    RunOnGpus(4, FakeCudaDriver::kLastStream, [&](const Rank& rank) {
      const bool gives = rank.self.rank % 2 == 0;
      std::vector<Elements> inputs, outputs;
      std::vector<TensorView> from, to;
      for (int64_t count : counts) {
        inputs.emplace_back(DType::kFloat32, count);
        outputs.emplace_back(DType::kFloat32, count);
        for (int64_t i = 0; i < count; ++i) inputs.back().Set(i, rank.self.rank + 1.0);
        from.push_back({DType::kFloat32, {count}, nullptr});
      }
      for (size_t t = 0; gives && t < counts.size(); ++t) {
        from[t] = inputs[t].view();
        to.push_back(outputs[t].view());
      }
      CudaEvent done;
      EXPECT_EQ(rank.collective->PrepareAllreduce({}, from).message(), "");
      EXPECT_EQ(rank.collective->Allreduce({}, from, to, rank.StepOf(&done)).message(), "");
      EXPECT(rank.gpu->Synchronize());
      rank.collective->Release(done);
      for (size_t t = 0; gives && t < counts.size(); ++t) {
        for (int64_t i = 0; i < counts[t]; ++i) EXPECT_EQ(outputs[t].Get(i), 1.0 + 3.0);
      }
    });
  }
}

// A rank without weight may hold anything, also what is no number.
TEST(DeviceAllreduceWeighsRanksByTheirShares) {
  RunOnGpus(3, FakeCudaDriver::kLastStream, [](const Rank& rank) {
    const double shares[] = {0.25, 0, 0.75};
    const float values[] = {8, std::nanf(""), 16};
    for (Compression compression : {Compression::kNone, Compression::kFp16}) {
      std::vector<float> value = {values[rank.self.rank]};
      const std::vector<TensorView> views = {ViewOf(&value)};
      DeviceReduce reduce;
      reduce.reduction = Reduction::kAverage;
      reduce.compression = compression;
      reduce.share = shares[rank.self.rank];
      CudaEvent done;
      EXPECT_EQ(rank.collective->PrepareAllreduce(reduce, views).message(), "");
      EXPECT_EQ(rank.collective->Allreduce(reduce, views, views, rank.StepOf(&done)).message(), "");
      EXPECT(rank.gpu->Synchronize());
      rank.collective->Release(done);
      EXPECT_EQ(value[0], 0.25f * 8 + 0.75f * 16);
    }
  });
}
