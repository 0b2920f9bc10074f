// Calls of the engine on GPUs that are announced before they come: their order, and the computation
// that goes on beside them.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "gpu_machine.h"

using tfdist::OnGpu;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

// What is in the computation's stream before the announcement makes the inputs; what comes after it
// is held up until the sum is there.
TEST(EngineOnGpusOverlapsAnAnnouncedCallWithTheComputation) {
  RunOnMachine(3, [](const RankContext& self) {
    ExpectSum(self, self.engine, All(3));
    Told told;
    Machine::Node& node = *Machine::current->nodes[self.rank];
    std::vector<float> values = {0.0f};
    const std::vector<TensorView> views = {ViewOf(&values)};
    OnGpu gpu = told.On(self);
    node.gpu.Enqueue(node.compute, [&] {
      values[0] = static_cast<float>(self.rank + 1);
      return true;
    });
    self.engine->Announce(&gpu);
    std::atomic<bool> goes{false};
    node.gpu.Enqueue(node.compute, [&] { return goes.load(); });
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu).message(), "");
    EXPECT_EQ(told.Next().message(), "");
    EXPECT_EQ(values[0], 6.0f);
    goes = true;
    EXPECT(node.gpu.Synchronize());
  });
}

// Without an announcement the call takes all that is in the stream, and so does the first one,
// which connects the GPUs.
TEST(EngineOnGpusTakesTheWholeStreamWithoutAMark) {
  RunOnMachine(2, [](const RankContext& self) {
    for (const bool announced : {true, false}) {
      Told told;
      Machine::Node& node = *Machine::current->nodes[self.rank];
      std::vector<float> values = {0.0f};
      const std::vector<TensorView> views = {ViewOf(&values)};
      OnGpu gpu = told.On(self);
      if (announced) self.engine->Announce(&gpu);
      node.gpu.Enqueue(node.compute, [&] {
        values[0] = static_cast<float>(self.rank + 1);
        return true;
      });
      EXPECT(gpu.mark == nullptr);
      EXPECT_EQ(self.engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu).message(), "");
      EXPECT_EQ(told.Next().message(), "");
      EXPECT_EQ(values[0], 3.0f);
    }
  });
}

// Three calls, announced alike on all ranks, come from threads in an order that differs by rank,
// and one that was not announced comes after them.
TEST(EngineOnGpusRunsCallsInTheOrderOfTheirAnnouncement) {
  RunOnMachine(3, [](const RankContext& self) {
    constexpr int kCalls = 3;
    ExpectSum(self, self.engine, All(3));
    Told told;
    std::vector<OnGpu> gpus(kCalls, told.On(self));
    for (OnGpu& gpu : gpus) self.engine->Announce(&gpu);
    std::vector<std::vector<float>> values;
    for (int i = 0; i < kCalls; ++i) values.push_back(std::vector<float>(i + 1, self.rank + 10.0f));
    std::vector<std::thread> threads;
    for (int k = 0; k < kCalls; ++k) {
      const int i = (k + self.rank) % kCalls;
      threads.emplace_back([&, i] {
        const std::vector<TensorView> views = {ViewOf(&values[i])};
        const std::string name = "bucket " + std::to_string(i);
        EXPECT_EQ(self.engine->Allreduce(OptionsFor(name, 1), views, views, &gpus[i]).message(),
                  "");
      });
    }
    EXPECT_EQ(self.engine->Barrier("end").message(), "");
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < kCalls; ++i) EXPECT_EQ(told.Next().message(), "");
    for (const auto& each : values) EXPECT_EQ(each.back(), 33.0f);
  });
}

// An announced call that is refused gives its mark back, and the calls behind it go on.
TEST(EngineOnGpusGoesOnAfterAnAnnouncedCallThatIsRefused) {
  RunOnMachine(2, [](const RankContext& self) {
    ExpectSum(self, self.engine, All(2));
    void* first = nullptr;
    for (int i = 0; i < 3; ++i) {
      Told told;
      std::vector<float> values(static_cast<size_t>(1 + self.rank), 1.0f);
      const std::vector<TensorView> views = {ViewOf(&values)};
      OnGpu gpu = told.On(self);
      self.engine->Announce(&gpu);
      EXPECT(gpu.mark != nullptr);
      if (i == 0) first = gpu.mark;
      EXPECT(gpu.mark == first);
      const Status status = self.engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu);
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kFailedPrecondition));
    }
    ExpectSum(self, self.engine, All(2));
  });
}

// The computation goes on beside the collective, and waits where it is told to.
TEST(EngineOnGpusLetsTheComputationWaitLater) {
  RunOnMachine(3, [](const RankContext& self) {
    Told told;
    Machine::Node& node = *Machine::current->nodes[self.rank];
    const OnGpu gpu = told.On(self);
    EXPECT_EQ(self.engine->Precede(gpu).message(), "");  // nothing to wait for
    std::vector<float> values = {static_cast<float>(self.rank + 1)};
    float seen = -1;
    const std::vector<TensorView> views = {ViewOf(&values)};
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu).message(), "");
    EXPECT_EQ(self.engine->Precede(gpu).message(), "");
    node.gpu.Enqueue(node.compute, [&] {
      seen = values[0];
      return true;
    });
    EXPECT_EQ(told.Next().message(), "");
    EXPECT(node.gpu.Synchronize());
    EXPECT_EQ(seen, 6.0f);
  });
}

// One that is refused leaves another at work, in memory that the computation may get next.
TEST(EngineOnGpusLetsTheComputationWaitAlsoAfterAnError) {
  RunOnMachine(2, [](const RankContext& self) {
    ExpectSum(self, self.engine, All(2));
    Told told;
    Machine::Node& node = *Machine::current->nodes[self.rank];
    const OnGpu gpu = told.On(self);
    std::vector<float> values = {static_cast<float>(self.rank + 1)};
    std::vector<float> others(static_cast<size_t>(1 + self.rank), 1.0f);
    float seen = -1;
    const std::vector<TensorView> views = {ViewOf(&values)};
    const std::vector<TensorView> unequal = {ViewOf(&others)};
    EXPECT_EQ(self.engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu).message(), "");
    EXPECT(!self.engine->Allreduce(OptionsFor("other", 1), unequal, unequal, &gpu).ok());
    EXPECT_EQ(self.engine->Precede(gpu).message(), "");
    node.gpu.Enqueue(node.compute, [&] {
      seen = values[0];
      return true;
    });
    EXPECT_EQ(told.Next().message(), "");
    EXPECT(node.gpu.Synchronize());
    EXPECT_EQ(seen, 3.0f);
  });
}
