// Ranks on hosts of their own, of which one is killed while NCCL is at work: the others notice
// before any deadline, abort, and go on with new connections and a new communicator.
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/wire/communicator_factory.h"
#include "expect.h"
#include "gpu_machine.h"
#include "socket_team.h"

using tfdist::Engine;
using tfdist::EngineConfig;
using tfdist::Membership;
using tfdist::NcclResult;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

constexpr int kSize = 3;
constexpr int kVictim = kSize - 1;

// A loss is noticed within half a second of the launcher's word, a deadline ends nothing sooner.
EngineConfig Config() {
  EngineConfig config = TestConfig();
  config.window_bytes = 0;
  return config;
}

// The engines of a job, by rank, and their connections as long as they may have to be cut.
class Job {
 public:
  Job() : engines_(kSize) {}
  ~Job() { Disconnect(); }

  Engine* engine(int rank) { return engines_.at(rank).get(); }
  int size() const { return static_cast<int>(engines_.size()); }

  // Has the first `size` go on with new connections; at first, begin.
  void Meet(int size) {
    Disconnect();
    engines_.resize(static_cast<size_t>(size));
    memberships_ = MakeMemberships(All(size));
    InThreads(size, [this](int r) {
      std::shared_ptr<Engine>& engine = engines_[r];
      std::shared_ptr<Engine> next;
      if (engine != nullptr) {
        engine->Part();
        EXPECT_EQ(engine->Meet(memberships_[r], &next).message(), "");
      } else {
        std::unique_ptr<tfdist::Communicator> communicator;
        EXPECT(tfdist::MakeCommunicator("socket", Config(), memberships_[r], &communicator).ok());
        next = std::make_shared<Engine>(std::move(communicator), Config());
        EXPECT_EQ(next->Open().message(), "");
      }
      engine = std::move(next);
    });
  }

  void ExpectSums() {
    InThreads(size(), [this](int r) {
      ExpectSum({r, size(), engine(r), nullptr}, engine(r), All(size()));
    });
  }

  // Its process ends: its connections close, and the launcher says so. What is left of it in this
  // process ends too.
  void Kill(int victim) {
    for (int descriptor : memberships_[victim].sockets->descriptors) {
      if (descriptor >= 0) shutdown(descriptor, SHUT_RDWR);
    }
    for (int r = 0; r < size(); ++r) {
      for (int other = 0; r == victim && other < size(); ++other) {
        if (other != r) engine(r)->NoteEnded(other);
      }
      if (r != victim) engine(r)->NoteEnded(victim);
    }
  }

 private:
  void Disconnect() {
    for (const Membership& membership : memberships_) CloseConnections(membership);
    memberships_.clear();
  }

  std::vector<std::shared_ptr<Engine>> engines_;
  std::vector<Membership> memberships_;
};

// The status of a sum on the GPU, which it has at once or once the GPU has come to its end.
Status SumOf(Engine* engine, int rank) {
  Told told;
  std::vector<float> values = {1.0f};
  const std::vector<TensorView> views = {ViewOf(&values)};
  const RankContext self{rank, 0, engine, nullptr};
  const tfdist::OnGpu gpu = told.On(self);
  const Status status = engine->Allreduce(OptionsFor("sum", 1), views, views, &gpu);
  return status.ok() ? told.Next() : status;
}

// All call a sum while `kill` strikes one of them; those that are left go on.
void LoseIn(Job* job, Machine* machine, int victim, const std::function<void()>& kill) {
  const int aborted = machine->world.aborted();
  const auto start = std::chrono::steady_clock::now();
  InThreads(job->size() + 1, [&](int r) {
    if (r == job->size()) return kill();
    const Status status = SumOf(job->engine(r), r);
    if (r != victim) EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
  });
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT(elapsed.count() < 20);  // the shortest deadline, that of NCCL's opening, is 30 s
  for (int r = 0; r < job->size(); ++r) job->engine(r)->Part();
  EXPECT(machine->world.aborted() >= aborted + job->size() - 1);
}

void Run(const std::function<void(Job* job, Machine* machine)>& body) {
  Machine machine(kSize);
  {
    Job job;
    job.Meet(kSize);
    body(&job, &machine);
    job.Meet(job.size() - 1);
    job.ExpectSums();
  }
  EXPECT_EQ(machine.world.open(), 0);
  for (const auto& node : machine.nodes) EXPECT_EQ(node->gpu.allocated_bytes(), 0);
}

void AwaitOpen(Machine* machine, int communicators) {
  while (machine->world.open() < communicators) std::this_thread::yield();
}

}  // namespace

TEST(LossBeforeACollectiveOnTheGpu) {
  Run([](Job* job, Machine* machine) {
    job->ExpectSums();
    job->Kill(kVictim);
    LoseIn(job, machine, kVictim, [] {});
  });
}

TEST(LossWhileNcclOpens) {
  Run([](Job* job, Machine* machine) {
    machine->nodes[kVictim]->nccl->Break({NcclResult::kSuccess, NcclResult::kSuccess, true});
    LoseIn(job, machine, kVictim, [job, machine] {
      AwaitOpen(machine, kSize);
      job->Kill(kVictim);
    });
  });
}

TEST(LossOfARankWhoseGpuNeverComesToTheCollective) {
  Run([](Job* job, Machine* machine) {
    job->ExpectSums();
    std::atomic<bool> goes{false};
    Machine::Node* const node = machine->nodes[kVictim].get();
    node->gpu.Enqueue(node->compute, [&goes] { return goes.load(); });
    LoseIn(job, machine, kVictim, [job] { job->Kill(kVictim); });
    goes = true;
    EXPECT(node->gpu.Synchronize());
  });
}

TEST(LossOfAnotherOneWhileNcclOpensAgain) {
  Run([](Job* job, Machine* machine) {
    job->ExpectSums();
    job->Kill(kVictim);
    LoseIn(job, machine, kVictim, [] {});
    job->Meet(kSize - 1);
    const int left = machine->world.open();
    machine->nodes[kVictim - 1]->nccl->Break({NcclResult::kSuccess, NcclResult::kSuccess, true});
    LoseIn(job, machine, kVictim - 1, [job, machine, left] {
      AwaitOpen(machine, left + kSize - 1);
      job->Kill(kVictim - 1);
    });
  });
}
