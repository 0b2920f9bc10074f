#include "gpu_machine.h"

#include <chrono>

#include "expect.h"
#include "nccl/nccl_device.h"

using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

Status Make(const tfdist::DeviceSpec& spec, std::unique_ptr<tfdist::Device>* device) {
  const int rank = spec.topology.world_ranks[spec.topology.rank];
  Machine::Node* const node = Machine::current->nodes.at(rank).get();
  *device = std::make_unique<tfdist::NcclDevice>(
      spec, [node](const tfdist::EngineConfig&, tfdist::GpuLibraries* libraries) {
        if (!node->lacks.empty()) return Status(StatusCode::kUnimplemented, node->lacks);
        *libraries = {&node->gpu, node->nccl.get(), &node->compiler, &node->profiler};
        return Status::Ok();
      });
  return Status::Ok();
}

}  // namespace

Machine* Machine::current = nullptr;

Machine::Machine(int size) {
  tfdist::RegisterDeviceFactory(Make);
  for (int rank = 0; rank < size; ++rank) {
    nodes.push_back(std::make_unique<Node>());
    nodes.back()->nccl = world.Rank();
    nodes.back()->nccl->UseGpu(&nodes.back()->gpu);
    EXPECT(nodes.back()->gpu.NewStream(false, &nodes.back()->compute).ok());
  }
  current = this;
}

uint64_t FakeProfiler::Start(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  started_.push_back(name);
  seen_.push_back("start " + name);
  return started_.size();
}

void FakeProfiler::End(uint64_t range) {
  std::lock_guard<std::mutex> lock(mutex_);
  seen_.push_back("end " + started_.at(range - 1));
}

void FakeProfiler::Push(const std::string& name) { Add("push " + name); }

void FakeProfiler::Pop() { Add("pop"); }

void FakeProfiler::Add(const std::string& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  seen_.push_back(event);
}

std::vector<std::string> FakeProfiler::Seen() {
  std::lock_guard<std::mutex> lock(mutex_);
  return seen_;
}

tfdist::OnGpu Told::On(const RankContext& self, int number) {
  tfdist::OnGpu gpu;
  gpu.number = number;
  gpu.stream = Machine::current->nodes.at(self.rank)->compute;
  gpu.done = [this](const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    statuses_.push_back(status);
    changed_.notify_all();
  };
  return gpu;
}

Status Told::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  const size_t count = ++taken_;
  const bool came =
      changed_.wait_for(lock, std::chrono::seconds(10), [&] { return statuses_.size() >= count; });
  return came ? statuses_[count - 1] : Status(StatusCode::kInternal, "nothing was told");
}

void RunOnMachine(const Fabric& fabric, const tfdist::EngineConfig& config, const RankBody& body) {
  Machine machine(static_cast<int>(fabric.host_ids.size()));
  RunRanksOn(fabric, config, body);
  EXPECT_EQ(machine.world.open(), 0);
  for (const auto& node : machine.nodes) EXPECT_EQ(node->gpu.allocated_bytes(), 0);
}

void RunOnMachine(int size, const RankBody& body) {
  for (const Fabric& fabric : FabricsOf(size)) RunOnMachine(fabric, TestConfig(), body);
}

void ExpectSum(const RankContext& self, tfdist::Engine* engine, const std::vector<int>& ranks) {
  Told told;
  std::vector<float> values = {static_cast<float>(self.rank + 1), 10.0f};
  const std::vector<TensorView> views = {ViewOf(&values)};
  const tfdist::OnGpu gpu = told.On(self);
  EXPECT_EQ(engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu).message(), "");
  EXPECT_EQ(told.Next().message(), "");
  float expected = 0;
  for (int rank : ranks) expected += static_cast<float>(rank + 1);
  EXPECT_EQ(values[0], expected);
  EXPECT_EQ(values[1], 10.0f * static_cast<float>(ranks.size()));
}

std::vector<int> All(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}
