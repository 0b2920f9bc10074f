// The engine's collectives of tensors on GPUs, with a fake GPU and NCCL for each rank: right sums,
// the same error everywhere, and an end where the GPU does not come to one.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/algorithm/fused_collective.h"
#include "expect.h"
#include "gpu_machine.h"

using tfdist::DType;
using tfdist::Engine;
using tfdist::EngineConfig;
using tfdist::OnGpu;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

TensorView Rows(std::vector<float>* values, int64_t rows, int64_t columns) {
  return {DType::kFloat32, {rows, columns}, values->data()};
}

// Memory for results, kept by the test.
struct Results {
  std::vector<std::vector<float>> values = std::vector<std::vector<float>>(4);
  tfdist::Allocate Allocate() {
    return [this](int tensor, const std::vector<int64_t>& shape, TensorView* output) {
      TensorView view{DType::kFloat32, shape, nullptr};
      values.at(tensor).assign(static_cast<size_t>(view.count()), -1.0f);
      view.data = values[tensor].data();
      *output = view;
      return Status::Ok();
    };
  }
};

// Rank r gives r + 1 rows of two, or as many as all in the second tensor.
void CheckAllgather(const RankContext& self) {
  Told told;
  Results results;
  std::vector<float> uneven(2 * (self.rank + 1), static_cast<float>(self.rank));
  std::vector<float> even(3, static_cast<float>(10 * self.rank));
  std::vector<int64_t> rows;
  const OnGpu gpu = told.On(self);
  const Status status = self.engine->Allgather(GatherOptionsFor("gather", 2),
                                               {Rows(&uneven, self.rank + 1, 2), Rows(&even, 1, 3)},
                                               results.Allocate(), &rows, &gpu);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(told.Next().message(), "");
  size_t at = 0;
  for (int r = 0; r < self.size; ++r) {
    EXPECT_EQ(rows[r], int64_t{r + 1});
    EXPECT_EQ(rows[self.size + r], int64_t{1});
    for (int i = 0; i < 2 * (r + 1); ++i) {
      EXPECT_EQ(results.values[0][at++], static_cast<float>(r));
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(results.values[1][3 * r + i], static_cast<float>(10 * r));
    }
  }
}

// 2 * size + 1 rows of three, so that rank 0 keeps one more than the others.
void CheckReduceScatter(const RankContext& self, Reduction reduction) {
  Told told;
  const int64_t rows = 2 * self.size + 1;
  const tfdist::RowRange own = tfdist::OwnRows(rows, self.rank, self.size);
  std::vector<float> input, output(static_cast<size_t>(3 * (own.end - own.begin)), -1.0f);
  for (int64_t i = 0; i < 3 * rows; ++i) input.push_back(static_cast<float>(i + self.rank));
  tfdist::AllreduceOptions options = OptionsFor("part", 1);
  options.reduction = reduction;
  const OnGpu gpu = told.On(self);
  EXPECT_EQ(self.engine
                ->ReduceScatter(options, {Rows(&input, rows, 3)},
                                {Rows(&output, own.end - own.begin, 3)}, &gpu)
                .message(),
            "");
  EXPECT_EQ(told.Next().message(), "");
  const float extra = static_cast<float>(self.size * (self.size - 1) / 2);
  for (size_t i = 0; i < output.size(); ++i) {
    const float sum = static_cast<float>(self.size) * static_cast<float>(3 * own.begin + i) + extra;
    EXPECT_EQ(output[i], reduction == Reduction::kSum ? sum : sum / static_cast<float>(self.size));
  }
}

void CheckBroadcast(const RankContext& self) {
  Told told;
  std::vector<float> input(5, static_cast<float>(self.rank)), output(5, -1.0f);
  const OnGpu gpu = told.On(self);
  const int root = self.size - 1;
  EXPECT_EQ(self.engine
                ->Broadcast(BroadcastOptionsFor("weights", 1, root), {ViewOf(&input)},
                            {ViewOf(&output)}, &gpu)
                .message(),
            "");
  EXPECT_EQ(told.Next().message(), "");
  for (float value : output) EXPECT_EQ(value, static_cast<float>(root));
}

// Rank r sends p rows to rank p, which hold 10 r + p.
void CheckAlltoall(const RankContext& self) {
  Told told;
  Results results;
  std::vector<float> input;
  std::vector<int64_t> splits, received;
  for (int p = 0; p < self.size; ++p) {
    splits.push_back(p);
    input.insert(input.end(), static_cast<size_t>(p), static_cast<float>(10 * self.rank + p));
  }
  const OnGpu gpu = told.On(self);
  const Status status = self.engine->Alltoall("exchange", ViewOf(&input), splits,
                                              results.Allocate(), &received, &gpu);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(told.Next().message(), "");
  size_t at = 0;
  for (int r = 0; r < self.size; ++r) {
    EXPECT_EQ(received[r], int64_t{self.rank});
    for (int i = 0; i < self.rank; ++i) {
      EXPECT_EQ(results.values[0][at++], static_cast<float>(10 * r + self.rank));
    }
  }
}

// `first` is called by rank 0 and `second` by the others; all get one error with `text`, and are
// in step.
void ExpectError(int size, const std::string& text, const RankBody& prepare,
                 const std::function<OnGpu*(const RankContext& self, OnGpu* gpu)>& where,
                 size_t elements = 1, Reduction reduction = Reduction::kSum) {
  std::vector<std::string> messages(static_cast<size_t>(size));
  RunOnMachine(size, [&](const RankContext& self) {
    prepare(self);
    Told told;
    std::vector<float> values(elements, 1.0f), more(1);
    OnGpu gpu = told.On(self);
    const std::vector<TensorView> views = {ViewOf(&values), ViewOf(&more)};
    tfdist::AllreduceOptions options = OptionsFor("grads", 2);
    options.reduction = reduction;
    const Status status = self.engine->Allreduce(options, views, views, where(self, &gpu));
    messages[self.rank] = status.message();
    EXPECT_CONTAINS(status.message(), text);
    ExpectInStep(self);
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
}

Status AdasumOnGpu(Engine* engine, std::vector<float>* input, std::vector<float>* output,
                   const OnGpu* gpu) {
  tfdist::AllreduceOptions options = OptionsFor("grads", 1);
  options.reduction = Reduction::kAdasum;
  return engine->Allreduce(options, {ViewOf(input)}, {ViewOf(output)}, gpu);
}

void ExpectAdasumOfHost(const RankContext& self, Engine* engine) {
  Told told;
  std::vector<float> input = {1.0f + static_cast<float>(self.rank), 2.0f}, on_host(2), on_gpu(2);
  EXPECT_EQ(AdasumOnGpu(engine, &input, &on_host, nullptr).message(), "");
  const OnGpu gpu = told.On(self);
  EXPECT_EQ(AdasumOnGpu(engine, &input, &on_gpu, &gpu).message(), "");
  EXPECT_EQ(told.Next().message(), "");
  for (int i = 0; i < 2; ++i) EXPECT(std::abs(on_gpu[i] - on_host[i]) < 1e-6f);
}

size_t Copies(const FakeCudaDriver& gpu) {
  const std::vector<std::string> log = gpu.log();
  return static_cast<size_t>(std::count_if(log.begin(), log.end(), [](const std::string& line) {
    return line.find("copy on stream") == 0;
  }));
}

// The computation of the last rank never comes to the collective, for which its call waits. While
// it does, `then` is called again and again, with how many calls have ended. Returns the statuses
// by rank.
std::vector<Status> RunUnendingAdasum(const Fabric& fabric, const EngineConfig& config,
                                      const std::function<void(const RankContext&, int)>& then) {
  std::vector<Status> statuses(fabric.host_ids.size());
  std::atomic<int> ended{0};
  RunOnMachine(fabric, config, [&](const RankContext& self) {
    ExpectAdasumOfHost(self, self.engine);
    Machine::Node& node = *Machine::current->nodes[self.rank];
    Told told;
    std::vector<float> values = {1.0f};
    const size_t copies = Copies(node.gpu);
    std::atomic<bool> goes{self.rank < self.size - 1};
    node.gpu.Enqueue(node.compute, [&] {
      if (!goes && Copies(node.gpu) > copies) then(self, ended);
      return goes.load();
    });
    const OnGpu gpu = told.On(self);
    const Status status = AdasumOnGpu(self.engine, &values, &values, &gpu);
    ++ended;
    goes = true;
    EXPECT(node.gpu.Synchronize());
    EXPECT_EQ(AdasumOnGpu(self.engine, &values, &values, &gpu).message(), status.message());
    statuses[self.rank] = status;
  });
  return statuses;
}

}  // namespace

TEST(EngineOnGpusRunsEveryCollective) {
  for (int size : {1, 2, 3, 4}) {
    RunOnMachine(size, [](const RankContext& self) {
      for (int round = 0; round < 2; ++round) {
        ExpectSum(self, self.engine, All(self.size));
        CheckAllgather(self);
        CheckReduceScatter(self, Reduction::kSum);
        CheckReduceScatter(self, Reduction::kAverage);
        CheckBroadcast(self);
        CheckAlltoall(self);
        ExpectInStep(self);  // the same engine, on the host
      }
      EXPECT_EQ(self.engine->Shutdown().message(), "");
    });
  }
}

// What the computation's stream gets afterwards sees the result, though nobody has waited.
TEST(EngineOnGpusLetsTheComputationFollowOnTheDevice) {
  RunOnMachine(3, [](const RankContext& self) {
    Told told;
    Machine::Node& node = *Machine::current->nodes[self.rank];
    std::vector<float> values = {0.0f};
    float seen = -1;
    const std::vector<TensorView> views = {ViewOf(&values)};
    OnGpu gpu = told.On(self);
    gpu.precedes = true;
    node.gpu.Enqueue(node.compute, [&] {
      values[0] = static_cast<float>(self.rank + 1);
      return true;
    });
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu).message(), "");
    node.gpu.Enqueue(node.compute, [&] {
      seen = values[0];
      return true;
    });
    EXPECT_EQ(told.Next().message(), "");
    EXPECT(node.gpu.Synchronize());
    EXPECT_EQ(seen, 6.0f);
  });
}

// Sums of several tensors of several types, none of whose sizes can be shared out evenly.
void CheckSums(const RankContext& self, tfdist::Compression compression) {
  Told told;
  const OnGpu gpu = told.On(self);
  for (Reduction reduction : {Reduction::kSum, Reduction::kAverage, Reduction::kMax}) {
    std::vector<float> first(1001), second = {2.0f};
    for (size_t i = 0; i < first.size(); ++i) {
      first[i] = static_cast<float>(i % 50 + 4 * self.rank);
    }
    tfdist::AllreduceOptions options = OptionsFor("grads", 2);
    options.reduction = reduction;
    options.compression = compression;
    const std::vector<TensorView> views = {ViewOf(&first), ViewOf(&second)};
    EXPECT_EQ(self.engine->Allreduce(options, views, views, &gpu).message(), "");
    EXPECT_EQ(told.Next().message(), "");
    for (size_t i = 0; i < first.size(); ++i) {
      const float sum = 4.0f * static_cast<float>(i % 50) + 4.0f * (0 + 1 + 2 + 3);
      const float most = static_cast<float>(i % 50) + 4.0f * 3;
      const float average = sum / 4;
      EXPECT_EQ(first[i], reduction == Reduction::kSum   ? sum
                          : reduction == Reduction::kMax ? most
                                                         : average);
    }
    EXPECT_EQ(second[0], reduction == Reduction::kSum ? 8.0f : 2.0f);
  }
}

TEST(EngineOnGpusReducesByHosts) {
  for (tfdist::Hierarchy hierarchy : {tfdist::Hierarchy::kNccl, tfdist::Hierarchy::kTransport}) {
    for (const Fabric& fabric : FabricsOf(4)) {
      EngineConfig config = TestConfig();
      config.hierarchy = hierarchy;
      RunOnMachine(fabric, config, [](const RankContext& self) {
        for (tfdist::Compression compression :
             {tfdist::Compression::kNone, tfdist::Compression::kFp16}) {
          CheckSums(self, compression);
        }
        CheckAllgather(self);
        ExpectSum(self, self.engine, All(4));
        std::shared_ptr<Engine> set;
        EXPECT_EQ(self.engine->AddProcessSet({0, 1, 2, 3}, 1, &set).message(), "");
        ExpectSum(self, set.get(), All(4));
        EXPECT_EQ(self.engine->Shutdown().message(), "");
      });
    }
  }
}

TEST(EngineOnGpusRefusesUnequalRowsWhereTheyMustBeEqual) {
  RunOnMachine(3, [](const RankContext& self) {
    Told told;
    Results results;
    std::vector<float> input(static_cast<size_t>(self.rank + 1));
    std::vector<int64_t> rows;
    tfdist::GatherOptions options = GatherOptionsFor("gather", 1);
    options.equal_rows = self.rank == 1;  // which is enough
    const OnGpu gpu = told.On(self);
    const Status status =
        self.engine->Allgather(options, {ViewOf(&input)}, results.Allocate(), &rows, &gpu);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInvalidArgument));
    EXPECT_CONTAINS(status.message(), "needs the same number of rows on every rank");
    EXPECT_CONTAINS(status.message(), "by rank: 1, 2, 3.");
    EXPECT_EQ(rows.size(), size_t{3});
    ExpectSum(self, self.engine, All(3));
  });
}

TEST(EngineOnGpusRunsInProcessSets) {
  RunOnMachine(4, [](const RankContext& self) {
    std::shared_ptr<Engine> set;
    EXPECT_EQ(self.engine->AddProcessSet({1, 3}, 1, &set).message(), "");
    if (set != nullptr) ExpectSum(self, set.get(), {1, 3});
    ExpectSum(self, self.engine, All(4));
  });
}

TEST(EngineOnGpusTakesZerosFromRanksThatHaveJoined) {
  RunOnMachine(3, [](const RankContext& self) {
    if (self.rank != 1) {
      ExpectSum(self, self.engine, {0, 2});
      Told told;
      Results results;
      std::vector<float> mine = {static_cast<float>(self.rank)};
      std::vector<int64_t> rows;
      const OnGpu gpu = told.On(self);
      EXPECT_EQ(self.engine
                    ->Allgather(GatherOptionsFor("rest", 1), {ViewOf(&mine)}, results.Allocate(),
                                &rows, &gpu)
                    .message(),
                "");
      EXPECT_EQ(told.Next().message(), "");
      EXPECT_EQ(rows[1], int64_t{0});
      EXPECT_EQ(results.values[0].size(), size_t{2});
      EXPECT_EQ(results.values[0][1], 2.0f);
    }
    int last = -1;
    EXPECT_EQ(self.engine->Join(&last).message(), "");
    ExpectSum(self, self.engine, All(3));
  });
}

TEST(EngineOnGpusThatHasJoinedLearnsThatUnequalRowsAreRefused) {
  RunOnMachine(3, [](const RankContext& self) {
    if (self.rank != 1) {
      Told told;
      Results results;
      std::vector<float> mine(2, static_cast<float>(self.rank));
      std::vector<int64_t> rows;
      tfdist::GatherOptions options = GatherOptionsFor("rest", 1);
      options.equal_rows = true;
      const OnGpu gpu = told.On(self);
      const Status status =
          self.engine->Allgather(options, {ViewOf(&mine)}, results.Allocate(), &rows, &gpu);
      EXPECT_CONTAINS(status.message(), "by rank: 2, 0, 2.");
      ExpectSum(self, self.engine, {0, 2});
    }
    int last = -1;
    EXPECT_EQ(self.engine->Join(&last).message(), "");
    ExpectSum(self, self.engine, All(3));
  });
}

TEST(EngineOnGpusRefusesTensorsOnTheGpuOfSomeRanksOnly) {
  for (int size : {2, 3, 4}) {
    ExpectError(
        size, "placement is GPU on rank 0", [](const RankContext&) {},
        [](const RankContext& self, OnGpu* gpu) { return self.rank == 0 ? gpu : nullptr; });
  }
}

TEST(EngineOnGpusTellsAllWhatOneRankLacks) {
  ExpectError(
      3, "NCCL was not found",
      [](const RankContext& self) {
        if (self.rank == 2) Machine::current->nodes[2]->lacks = "NCCL was not found. Install it.";
      },
      [](const RankContext&, OnGpu* gpu) { return gpu; });
}

TEST(EngineOnGpusTellsAllWhatAJoinedRankLacks) {
  RunOnMachine(3, [](const RankContext& self) {
    int last = -1;
    if (self.rank == 1) {
      Machine::current->nodes[1]->lacks = "no driver";
      EXPECT_CONTAINS(self.engine->Join(&last).message(), "no driver");
      return;
    }
    Told told;
    std::vector<float> values = {1.0f};
    const OnGpu gpu = told.On(self);
    EXPECT_CONTAINS(
        self.engine->Allreduce(OptionsFor("grads", 1), {ViewOf(&values)}, {ViewOf(&values)}, &gpu)
            .message(),
        "no driver");
  });
}

TEST(EngineOnGpusKeepsToOneGpu) {
  RunOnMachine(2, [](const RankContext& self) {
    ExpectSum(self, self.engine, All(2));
    Told told;
    std::vector<float> values = {1.0f};
    const OnGpu other = told.On(self, 5);
    EXPECT_CONTAINS(
        self.engine->Allreduce(OptionsFor("grads", 1), {ViewOf(&values)}, {ViewOf(&values)}, &other)
            .message(),
        "has tensors on GPU 5; expected GPU 0");
    ExpectSum(self, self.engine, All(2));
  });
}

// The same as on the processor, also in a process set and after a rank has joined.
TEST(EngineOnGpusReducesByAdasum) {
  RunOnMachine(4, [](const RankContext& self) {
    std::shared_ptr<Engine> set;
    EXPECT_EQ(self.engine->AddProcessSet({0, 1, 3}, 1, &set).message(), "");
    if (set != nullptr) ExpectAdasumOfHost(self, set.get());
    ExpectAdasumOfHost(self, self.engine);
    if (self.rank != 2) ExpectAdasumOfHost(self, self.engine);
    int last = -1;
    EXPECT_EQ(self.engine->Join(&last).message(), "");
  });
}

// Buffers are reserved before the ranks agree, so all can go on.
TEST(EngineOnGpusTellsAllThatOneRankHasNoMemory) {
  for (Reduction reduction : {Reduction::kSum, Reduction::kAdasum}) {
    ExpectError(
        3, "no memory left on the fake",
        [](const RankContext& self) {
          ExpectSum(self, self.engine, All(3));
          if (self.rank == 1) Machine::current->nodes[1]->gpu.Exhaust();
        },
        [](const RankContext&, OnGpu* gpu) { return gpu; }, 100000, reduction);
  }
}

TEST(EngineOnGpusEndsAdasumWhenARankIsLost) {
  for (const Fabric& fabric : FabricsOf(2)) {
    int done = 0;  // killed, then ended by its own NCCL once the other rank has seen the loss
    const std::vector<Status> statuses =
        RunUnendingAdasum(fabric, TestConfig(), [&done](const RankContext& self, int ended) {
          if (done == 0) {
            self.kill();
            done = 1;
          } else if (done == 1 && ended > 0) {
            Machine::current->nodes[self.rank]->nccl->InjectAsyncError(
                tfdist::NcclResult::kUnhandledCudaError);
            done = 2;
          }
        });
    EXPECT_EQ(CodeOf(statuses[0]), static_cast<int>(StatusCode::kUnavailable));
    EXPECT_CONTAINS(statuses[0].message(), "rank 1 (host localhost)");
    EXPECT_CONTAINS(statuses[1].message(), "NCCL");
  }
}

TEST(EngineOnGpusEndsAdasumAtItsDeadline) {
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  const std::vector<Status> statuses =
      RunUnendingAdasum(FabricsOf(1)[0], config, [](const RankContext&, int) {});
  EXPECT_EQ(CodeOf(statuses[0]), static_cast<int>(StatusCode::kDeadlineExceeded));
  EXPECT_CONTAINS(statuses[0].message(), "allreduce 'grads'");
}

// Rank 0 waits on its GPU for a rank whose computation never gets to the collective, and which is
// killed then: seen by its process where the ranks share a window, else by NCCL.
TEST(EngineOnGpusEndsWhenARankIsLost) {
  std::atomic<int> called{0};
  RunOnMachine(2, [&called](const RankContext& self) {
    ExpectSum(self, self.engine, All(2));
    called = 0;
    EXPECT_EQ(self.engine->Barrier("start").message(), "");
    Told told;
    std::atomic<bool> goes{false};
    std::vector<float> values = {1.0f};
    const std::vector<TensorView> views = {ViewOf(&values)};
    const OnGpu gpu = told.On(self);
    Machine::Node& node = *Machine::current->nodes[self.rank];
    if (self.rank == 1) {
      node.gpu.Enqueue(node.compute, [&] { return goes.load(); });
    }
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("grads", 1), views, views, &gpu).message(), "");
    ++called;
    if (self.rank == 1) {
      while (called < 2) std::this_thread::yield();
      self.kill();
      node.nccl->InjectAsyncError(tfdist::NcclResult::kUnhandledCudaError);
    }
    const Status status = told.Next();
    goes = true;
    EXPECT(node.gpu.Synchronize());
    if (self.rank == 1) {
      EXPECT(!status.ok());
      return;
    }
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
    EXPECT_CONTAINS(status.message(), "rank");
    EXPECT(!self.engine->Allreduce(OptionsFor("grads", 1), views, views, &gpu).ok());
  });
}
