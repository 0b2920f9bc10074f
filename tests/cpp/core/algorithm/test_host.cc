// Opening the windows of hosts: who gets one, and what happens where a rank cannot have it.
#include <thread>
#include <utility>

#include "core/algorithm/host.h"
#include "core/wire/loopback_communicator.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::Communicator;
using tfdist::Engine;
using tfdist::EngineConfig;
using tfdist::Host;
using tfdist::LoopbackCommunicator;
using tfdist::OpenHost;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Transfer;
using tfdist::Wait;
using tfdist::Window;

namespace {

// A rank whose process cannot share memory.
class Poor : public Communicator {
 public:
  explicit Poor(std::unique_ptr<Communicator> rich)
      : Communicator(rich->topology()), rich_(std::move(rich)) {}

  Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                  Wait* wait) override {
    return rich_->Exchange(sends, receives, wait);
  }
  void SendNote(int peer, int64_t note) override { rich_->SendNote(peer, note); }
  bool TakeNote(int* peer, int64_t* note) override { return rich_->TakeNote(peer, note); }
  Status Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                std::unique_ptr<Communicator>* subset) override {
    return rich_->Subset(ranks, channel, wait, subset);
  }
  Status OpenWindow(int64_t, Wait*, std::unique_ptr<Window>*) override {
    return Status(StatusCode::kInternal, "this rank is poor");
  }
  Status Finalize(bool clean) override { return rich_->Finalize(clean); }

 private:
  const std::unique_ptr<Communicator> rich_;
};

// Runs `body` for each of the communicators in a thread of its own.
void InThreads(std::vector<std::unique_ptr<Communicator>>* communicators,
               const std::function<void(int rank, std::unique_ptr<Communicator>*)>& body) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < communicators->size(); ++rank) {
    threads.emplace_back([&, rank] { body(static_cast<int>(rank), &(*communicators)[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::unique_ptr<Communicator>> CommunicatorsOn(const std::vector<int>& host_ids) {
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (auto& communicator : LoopbackCommunicator::Create(host_ids)) {
    communicators.push_back(std::move(communicator));
  }
  return communicators;
}

// Whether every rank has a window of so many ranks, and peers on so many hosts (1: none).
void CheckHosts(const std::vector<int>& host_ids, int window_ranks, int hosts) {
  auto communicators = CommunicatorsOn(host_ids);
  InThreads(&communicators, [&](int, std::unique_ptr<Communicator>* communicator) {
    const EngineConfig config = TestConfig();
    Wait wait(config, (*communicator)->topology(), [] { return std::string("init"); });
    Host host;
    EXPECT_EQ(OpenHost(config, 1, communicator->get(), &wait, &host).message(), "");
    EXPECT_EQ(host.window == nullptr ? 0 : host.window->size(), window_ranks);
    EXPECT_EQ(host.peers == nullptr ? 1 : host.peers->size(), hosts);
  });
}

}  // namespace

TEST(HostHasAWindowWhereEachHasAsManyRanks) {
  CheckHosts({0, 0}, 2, 1);
  CheckHosts({0, 0, 0, 0, 0}, 5, 1);
  CheckHosts({0, 1, 0, 1}, 2, 2);
  CheckHosts({0, 0, 1, 1, 2, 2}, 2, 3);
  CheckHosts({0}, 0, 1);
  CheckHosts({0, 1, 2}, 0, 1);
  CheckHosts({0, 0, 1}, 0, 1);
}

TEST(HostOfARankThatCannotShareMemoryGoesByMessages) {
  auto communicators = CommunicatorsOn({0, 0, 0});
  communicators[1] = std::make_unique<Poor>(std::move(communicators[1]));
  InThreads(&communicators, [](int rank, std::unique_ptr<Communicator>* communicator) {
    Engine engine(std::move(*communicator), TestConfig());
    EXPECT_EQ(engine.Open().message(), "");
    ExpectInStep({rank, 3, &engine, nullptr});
  });
}

TEST(HostsWithUnequalSettingsAreAnErrorOnEveryRank) {
  auto communicators = CommunicatorsOn({0, 0, 0});
  InThreads(&communicators, [](int rank, std::unique_ptr<Communicator>* communicator) {
    EngineConfig config = TestConfig();
    config.window_bytes = rank == 2 ? 0 : 1 << 20;
    Engine engine(std::move(*communicator), config);
    const Status status = engine.Open();
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInvalidArgument));
    EXPECT_CONTAINS(status.message(), "1048576 bytes on rank 0 and 0 bytes on rank 2");
    EXPECT_CONTAINS(status.message(), "TFDIST_SHARED_MEMORY");
  });
}
