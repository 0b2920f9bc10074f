// Ranks that submit different things: every rank gets the same error and the next call works.
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "core/agree/mismatch.h"
#include "core/value/calling_thread.h"
#include "core/wire/loopback_communicator.h"
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

constexpr char kAdvice[] =
    " Every rank must run the same collectives in the same order with the same names, dtypes, "
    "shapes, operation and root. Check for rank-dependent branches.";

using Call = std::function<Status(const RankContext& self)>;

void ExpectMismatch(int size, const std::string& text, const Call& call) {
  ExpectSameError(size, StatusCode::kFailedPrecondition, text, call);
}

// An allreduce 'grads' of a tensor 'dense/kernel' that `change` makes differ.
struct Submission {
  AllreduceOptions options;
  TensorView tensor;
};

Status Submit(const RankContext& self, const std::function<void(Submission*)>& change) {
  std::vector<double> memory(64, 1.0);
  Submission submission;
  submission.options.name = "grads";
  submission.options.tensor_names = {"dense/kernel"};
  submission.tensor = {DType::kFloat32, {3, 4}, memory.data()};
  change(&submission);
  return self.engine->Allreduce(submission.options, {submission.tensor}, {submission.tensor});
}

// As Submit, where all ranks but 0 are changed.
Call AllButRankZero(const std::function<void(Submission*)>& change) {
  return [change](const RankContext& self) {
    return Submit(self, self.rank == 0 ? [](Submission*) {} : change);
  };
}

}  // namespace

TEST(MismatchOfShapeHasThePromisedText) {
  const Call call = AllButRankZero([](Submission* s) { s->tensor.shape = {3, 5}; });
  ExpectMismatch(3,
                 std::string("allreduce 'grads' differs between ranks: shape of tensor "
                             "'dense/kernel' is [3,4] on rank 0, [3,5] on ranks 1-2.") +
                     kAdvice,
                 call);
  for (int size : {2, 4, 5}) ExpectMismatch(size, "[3,4] on rank 0, [3,5] on rank", call);
}

TEST(MismatchOfEachAttributeNamesItWithItsValues) {
  const auto expect = [](const std::string& text, const std::function<void(Submission*)>& change) {
    for (int size : {2, 3}) ExpectMismatch(size, text, AllButRankZero(change));
  };
  expect("dtype of tensor 'dense/kernel' is float32 on rank 0, float64 on rank",
         [](Submission* s) { s->tensor.dtype = DType::kFloat64; });
  expect("name of tensor 0 is 'dense/kernel' on rank 0, 'dense/bias' on rank",
         [](Submission* s) { s->options.tensor_names = {"dense/bias"}; });
  expect("reduction is sum on rank 0, max on rank",
         [](Submission* s) { s->options.reduction = Reduction::kMax; });
  expect("compression is none on rank 0, bf16 on rank",
         [](Submission* s) { s->options.compression = Compression::kBf16; });
  expect("prescale is 1 on rank 0, 0.5 on rank", [](Submission* s) { s->options.prescale = 0.5; });
  expect("postscale is 1 on rank 0, 0.25 on rank",
         [](Submission* s) { s->options.postscale = 0.25; });
  expect("shape of tensor 'dense/kernel' is [3,4] on rank 0, [12] on rank",
         [](Submission* s) { s->tensor.shape = {12}; });
  expect("out of step: rank 0 called allreduce 'grads', rank",
         [](Submission* s) { s->options.name = "other"; });
}

TEST(MismatchOfThreadsNamesThem) {
  for (int size : {2, 3}) {
    ExpectMismatch(size, "out of step: rank 0 called allreduce 'grads' in thread 'a', rank",
                   [](const RankContext& self) {
                     const tfdist::CallingThreadScope scope(self.rank == 0 ? "a" : "b");
                     return Submit(self, [](Submission*) {});
                   });
    ExpectMismatch(size, "rank 0 called allreduce 'grads', rank", [](const RankContext& self) {
      const tfdist::CallingThreadScope scope(self.rank == 0 ? "" : "b");
      return Submit(self, [](Submission*) {});
    });
  }
  ExpectMismatch(2, "call all collectives from one thread, or give each thread its own",
                 [](const RankContext& self) {
                   const tfdist::CallingThreadScope scope(self.rank == 0 ? "a" : "b");
                   return Submit(self, [](Submission*) {});
                 });
  RunRanks(2, TestConfig(), [](const RankContext& self) {
    const tfdist::CallingThreadScope scope("the same");
    EXPECT(Submit(self, [](Submission*) {}).ok());
  });
}

TEST(MismatchOfTheNumberOfTensors) {
  ExpectMismatch(3, "number of tensors is 1 on rank 0, 2 on rank 1, 3 on rank 2",
                 [](const RankContext& self) {
                   const size_t tensors = static_cast<size_t>(self.rank) + 1;
                   float value = 0;
                   const std::vector<TensorView> views(tensors, {DType::kFloat32, {}, &value});
                   return self.engine->Allreduce(OptionsFor("n", tensors), views, views);
                 });
}

TEST(MismatchOfOperationsSaysWhoCalledWhat) {
  ExpectMismatch(
      4,
      std::string("the ranks are out of step: ranks 0, 2 called allreduce 'grads', ranks 1, 3 "
                  "called barrier 'y'.") +
          kAdvice,
      [](const RankContext& self) {
        if (self.rank % 2 == 1) return self.engine->Barrier("y");
        return Submit(self, [](Submission*) {});
      });
}

TEST(MismatchOfRootAndOfBroadcastShape) {
  const auto broadcast = [](const RankContext& self, int root, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    return self.engine->Broadcast(BroadcastOptionsFor("weights", 1, root), {ViewOf(&values)});
  };
  ExpectMismatch(3,
                 "broadcast 'weights' differs between ranks: root is 0 on rank 0, 1 on ranks 1-2",
                 [&](const RankContext& self) { return broadcast(self, self.rank != 0, 4); });
  ExpectMismatch(3, "shape of tensor 'tensor0' is [4] on ranks 0-1, [5] on rank 2",
                 [&](const RankContext& self) { return broadcast(self, 0, 4 + self.rank / 2); });
}

TEST(MismatchOfAllgatherIgnoresTheFirstDimensionOnly) {
  ExpectMismatch(2, "shape of tensor 'g' is [*,2] on rank 0, [*,3] on rank 1",
                 [](const RankContext& self) {
                   std::vector<float> values(64);
                   const TensorView view{DType::kFloat32, {4, 2 + self.rank}, values.data()};
                   tfdist::GatherOptions options = GatherOptionsFor("gather", 1);
                   options.tensor_names = {"g"};
                   return self.engine->Allgather(options, {view}, nullptr, nullptr);
                 });
}

TEST(MismatchOfFusionThresholdsIsFound) {
  // Engines of its own, since a team shares one config.
  auto communicators = tfdist::LoopbackCommunicator::Create(2);
  std::vector<Status> statuses(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      tfdist::EngineConfig config = TestConfig();
      config.fusion_threshold_bytes = 100 + rank;
      tfdist::Engine engine(std::move(communicators[rank]), config);
      statuses[rank] = engine.Allreduce(OptionsFor("t", 0), {}, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_CONTAINS(statuses[0].message(), "fusion threshold is 100 on rank 0, 101 on rank 1.");
  EXPECT_EQ(statuses[1].message(), statuses[0].message());
}

TEST(MismatchWithShutdownSaysThatARankHasFinished) {
  ExpectMismatch(3, "rank 0 called allreduce 'grads', ranks 1-2 have finished (called shutdown).",
                 [](const RankContext& self) {
                   if (self.rank > 0) return self.engine->Shutdown();
                   return Submit(self, [](Submission*) {});
                 });
  ExpectMismatch(
      2,
      "rank 0 has finished (called shutdown), rank 1 called barrier 'b'. Give every rank the "
      "same number of steps, or let those that come to their end first call join.",
      [](const RankContext& self) {
        return self.rank == 0 ? self.engine->Shutdown() : self.engine->Barrier("b");
      });
}

TEST(MismatchBeyondTheCapOfTheDescriptionIsStillAnError) {
  ExpectMismatch(2, "beyond the first 65536 bytes", [](const RankContext& self) {
    std::vector<float> values(2);
    AllreduceOptions options = OptionsFor("many", 5000);
    std::vector<TensorView> views(5000, {DType::kFloat32, {1}, values.data()});
    views.back().shape = {1 + self.rank};
    return self.engine->Allreduce(options, views, views);
  });
}

TEST(MismatchOfManyValuesSpellsOutEight) {
  ExpectMismatch(10, " and 2 more.", [](const RankContext& self) {
    std::vector<float> values(static_cast<size_t>(self.rank) + 1);
    return self.engine->Allreduce(OptionsFor("x", 1), {ViewOf(&values)}, {ViewOf(&values)});
  });
}

TEST(InvalidArgumentOnAllRanksIsAnInvalidArgument) {
  for (int size : kRankCounts) {
    ExpectSameError(size, StatusCode::kInvalidArgument,
                    "allreduce 'grads': tensor 'dense/kernel' has dtype int32, but reduction "
                    "average needs a floating dtype. Use sum, or cast the tensor to float32.",
                    [](const RankContext& self) {
                      return Submit(self, [](Submission* s) {
                        s->tensor.dtype = DType::kInt32;
                        s->options.reduction = Reduction::kAverage;
                      });
                    });
  }
}

TEST(InvalidArgumentOnOneRankReachesAllRanks) {
  const auto expect = [](const std::string& text, const std::function<void(Submission*)>& change) {
    ExpectMismatch(3, "allreduce 'grads' has wrong arguments on some ranks: rank 1: " + text,
                   [&change](const RankContext& self) {
                     return Submit(self, self.rank == 1 ? change : [](Submission*) {});
                   });
  };
  expect("allreduce 'grads' received 0 tensor names for 1 tensors",
         [](Submission* s) { s->options.tensor_names.clear(); });
  expect("allreduce 'grads': tensor 'dense/kernel' of shape [3,4] has no memory",
         [](Submission* s) { s->tensor.data = nullptr; });
  expect("allreduce 'grads': tensor 'dense/kernel' has shape [-1]",
         [](Submission* s) { s->tensor.shape = {-1}; });
  expect("allreduce 'grads' received prescale inf",
         [](Submission* s) { s->options.prescale = std::numeric_limits<double>::infinity(); });
  expect("allreduce 'grads': tensor 'dense/kernel' has dtype uint8, but prescale",
         [](Submission* s) {
           s->tensor.dtype = DType::kUint8;
           s->options.prescale = 2;
         });
}

TEST(InvalidListLengthsOutputsAndRoots) {
  ExpectSameError(2, StatusCode::kInvalidArgument, "received 1 inputs and 0 outputs",
                  [](const RankContext& self) {
                    std::vector<float> values(2);
                    return self.engine->Allreduce(OptionsFor("x", 1), {ViewOf(&values)}, {});
                  });
  ExpectSameError(
      2, StatusCode::kInvalidArgument, "has dtype float32 and shape [3]; expected float32 and [2].",
      [](const RankContext& self) {
        std::vector<float> in(2);
        std::vector<float> out(3);
        return self.engine->Allreduce(OptionsFor("x", 1), {ViewOf(&in)}, {ViewOf(&out)});
      });
  for (int root : {-1, 3}) {
    ExpectSameError(3, StatusCode::kInvalidArgument, "; expected one of ranks 0-2.",
                    [root](const RankContext& self) {
                      std::vector<float> values(2);
                      return self.engine->Broadcast(BroadcastOptionsFor("w", 1, root),
                                                    {ViewOf(&values)});
                    });
  }
}

TEST(MismatchOfRowsNamesTheFirstTensorThatDiffers) {
  const std::vector<std::string> names = {"ids", "values"};
  const std::vector<TensorView> tensors(2);
  tfdist::Call call;
  call.tensor_names = &names;
  call.tensors = &tensors;
  const auto compare = [&](const std::vector<int64_t>& rows) {
    return tfdist::CompareRows("allgather 'x'", call, rows);
  };
  EXPECT(compare({4, 4, 4, 0, 0, 0}).ok());
  EXPECT(compare({7, 8}).ok());  // a single rank
  const Status second = compare({4, 4, 4, 5, 5, 6});
  EXPECT_EQ(CodeOf(second), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_EQ(
      second.message(),
      "allgather 'x' needs the same number of rows on every rank; received for tensor 'values' by "
      "rank: 5, 5, 6.");
  EXPECT_CONTAINS(compare({1, 0, 2, 3}).message(), "'ids' by rank: 1, 0.");
}

TEST(MismatchOfRowsIsNoneWithoutTensors) {
  const std::vector<std::string> names;
  const std::vector<TensorView> tensors;
  tfdist::Call call;
  call.tensor_names = &names;
  call.tensors = &tensors;
  EXPECT(tfdist::CompareRows("allgather 'x'", call, {}).ok());
}

TEST(CallsThatAgreeButForNeighbouringNamesAreTold) {
  // "ab" + "c" and "a" + "bc" must not hash alike.
  ExpectMismatch(2, "name of tensor 0", [](const RankContext& self) {
    std::vector<float> values(1);
    AllreduceOptions options = OptionsFor("x", 2);
    options.tensor_names =
        self.rank == 0 ? std::vector<std::string>{"ab", "c"} : std::vector<std::string>{"a", "bc"};
    const std::vector<TensorView> views(2, ViewOf(&values));
    return self.engine->Allreduce(options, views, views);
  });
}
