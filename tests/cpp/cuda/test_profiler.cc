// What a profiler is shown of collectives on GPUs: each from when all ranks have come to its
// end on the GPU, and in it what is put into the stream, bucket by bucket. NVTX itself is tested in
// tests/gpu.
#include <string>
#include <vector>

#include "cuda/loaded_nvtx.h"
#include "expect.h"
#include "gpu_machine.h"

using tfdist::OnGpu;
using tfdist::Status;
using tfdist::TensorView;

namespace {

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Three tensors of five elements, of which the first four fill a bucket.
void CheckRangesOf(const RankContext& self, tfdist::Compression compression, int bytes) {
  Told told;
  std::vector<float> a = {1, 2}, b = {3, 4}, c = {5};
  const std::vector<TensorView> views = {ViewOf(&a), ViewOf(&b), ViewOf(&c)};
  tfdist::AllreduceOptions options = OptionsFor("grads", 3);
  options.compression = compression;
  const OnGpu gpu = told.On(self);
  EXPECT_EQ(self.engine->Allreduce(options, views, views, &gpu).message(), "");
  EXPECT_EQ(told.Next().message(), "");
  const std::string title = "allreduce 'grads' (3 tensors, first 'tensor0')";
  EXPECT_EQ(Joined(Machine::current->nodes[self.rank]->profiler.Seen()),
            "start " + title + "\npush bucket 0: 2 tensors, " + std::to_string(4 * bytes) +
                " bytes\npop\npush bucket 1: 1 tensor, " + std::to_string(bytes) +
                " bytes\npop\nend " + title + "\n");
}

void RunWithBuckets(int size, int64_t bytes, const RankBody& body) {
  tfdist::EngineConfig config = TestConfig();
  config.fusion_threshold_bytes = bytes;
  for (const Fabric& fabric : FabricsOf(size)) RunOnMachine(fabric, config, body);
}

}  // namespace

TEST(ProfilerSeesCollectivesAndTheirBuckets) {
  for (int size = 1; size <= 4; ++size) {
    RunWithBuckets(size, 16, [](const RankContext& self) {
      CheckRangesOf(self, tfdist::Compression::kNone, 4);
    });
  }
}

TEST(ProfilerSeesBytesAsTheyTravel) {
  RunWithBuckets(
      2, 8, [](const RankContext& self) { CheckRangesOf(self, tfdist::Compression::kFp16, 2); });
}

TEST(ProfilerSeesEveryOtherCollective) {
  RunOnMachine(2, [](const RankContext& self) {
    Told told;
    std::vector<float> values = {1, 2, 3, 4}, part(2);
    const std::vector<TensorView> views = {ViewOf(&values)}, parts = {ViewOf(&part)};
    const OnGpu gpu = told.On(self);
    EXPECT_EQ(self.engine->ReduceScatter(OptionsFor("halves", 1), views, parts, &gpu).message(),
              "");
    EXPECT_EQ(told.Next().message(), "");
    EXPECT_EQ(
        self.engine->Broadcast(BroadcastOptionsFor("start", 1, 0), views, views, &gpu).message(),
        "");
    EXPECT_EQ(told.Next().message(), "");
    const std::string scatter = "reducescatter 'halves' (1 tensor, 'tensor0')\n";
    const std::string broadcast = "broadcast 'start' (1 tensor, 'tensor0')\n";
    EXPECT_EQ(Joined(Machine::current->nodes[self.rank]->profiler.Seen()),
              "start " + scatter + "push bucket 0: 1 tensor, 16 bytes\npop\nend " + scatter +
                  "start " + broadcast + "end " + broadcast);
  });
}

TEST(ProfilerIsNoneWithoutNvtx) {
  EXPECT(tfdist::LoadNvtx({"/nowhere/libnvtx3interop.so.1"}) == nullptr);
  EXPECT(tfdist::LoadNvtx({"libc.so.6"}) == nullptr);
}

// As it is of a collective that NCCL refuses.
TEST(ProfilerSeesTheEndOfWhatFails) {
  RunOnMachine(2, [](const RankContext& self) {
    ExpectSum(self, self.engine, All(2));
    Machine::Node& node = *Machine::current->nodes[self.rank];
    node.nccl->InjectAsyncError(tfdist::NcclResult::kUnhandledCudaError);
    Told told;
    std::vector<float> values = {1.0f};
    const std::vector<TensorView> views = {ViewOf(&values)};
    const OnGpu gpu = told.On(self);
    const Status status = self.engine->Allreduce(OptionsFor("grads", 1), views, views, &gpu);
    if (status.ok()) EXPECT(!told.Next().ok());
    const std::string seen = Joined(node.profiler.Seen());
    const std::string title = " allreduce 'grads' (1 tensor, 'tensor0')\n";
    const bool begun = seen.find("start" + title) != std::string::npos;
    EXPECT_EQ(begun, seen.find("end" + title) != std::string::npos);
  });
}
