// Ranks whose engines have a fake GPU and a fake NCCL each: gpu_team.h, from the engine down.
#ifndef TESTS_CPP_GPU_MACHINE_H_
#define TESTS_CPP_GPU_MACHINE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "cuda/profiler.h"
#include "gpu_team.h"

// Keeps what it is told of.
class FakeProfiler : public tfdist::Profiler {
 public:
  uint64_t Start(const std::string& name) override;
  void End(uint64_t range) override;
  void Push(const std::string& name) override;
  void Pop() override;

  // All of it so far, in order.
  std::vector<std::string> Seen();

 private:
  void Add(const std::string& event);

  std::mutex mutex_;
  std::vector<std::string> started_, seen_;
};

// The GPUs of a job. They outlive its engines.
struct Machine {
  struct Node {
    // Outlives the thread of the GPU, which may still run a collective.
    std::unique_ptr<FakeNccl> nccl;
    FakeCudaDriver gpu{FakeCudaDriver::kLastStream};
    FakeCompiler compiler;
    FakeProfiler profiler;
    tfdist::CudaStream compute = nullptr;
    std::string lacks;  // what cannot be loaded, in the words of the loader
  };

  explicit Machine(int size);
  ~Machine() { current = nullptr; }

  static Machine* current;
  FakeNcclWorld world;
  std::vector<std::unique_ptr<Node>> nodes;  // by rank
};

// What one rank's calls are told, and when.
class Told {
 public:
  tfdist::OnGpu On(const RankContext& self, int number = 0);

  // The status of the next one; an error if none comes in ten seconds.
  tfdist::Status Next();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t taken_ = 0;
  std::vector<tfdist::Status> statuses_;
};

// Runs `body` as a thread a rank. Afterwards nothing is left open or allocated.
void RunOnMachine(const Fabric& fabric, const tfdist::EngineConfig& config, const RankBody& body);
void RunOnMachine(int size, const RankBody& body);

// A sum on the GPU that must be right.
void ExpectSum(const RankContext& self, tfdist::Engine* engine, const std::vector<int>& ranks);

// 0 to `size` - 1.
std::vector<int> All(int size);

#endif  // TESTS_CPP_GPU_MACHINE_H_
