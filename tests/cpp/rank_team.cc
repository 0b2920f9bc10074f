#include "rank_team.h"

#include <thread>
#include <utility>

#include "core/wire/loopback_communicator.h"
#include "expect.h"
#include "gate.h"
#include "socket_team.h"

using tfdist::AllreduceOptions;
using tfdist::BroadcastOptions;
using tfdist::Engine;
using tfdist::EngineConfig;
using tfdist::GatherOptions;
using tfdist::LoopbackCommunicator;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

struct Team {
  std::vector<std::unique_ptr<tfdist::Communicator>> communicators;  // by rank
  std::vector<std::function<void()>> kill;                           // by rank
};

Team InMemory(const std::vector<int>& host_ids) {
  Team team;
  for (auto& communicator : LoopbackCommunicator::Create(host_ids)) {
    team.kill.push_back([killed = communicator.get()] { killed->Kill(); });
    team.communicators.push_back(std::move(communicator));
  }
  return team;
}

Team OfSockets(const std::vector<int>& host_ids) {
  Team team;
  SocketTeam sockets = MakeSocketTeam(host_ids);
  team.communicators = std::move(sockets.communicators);
  for (const auto& rank : sockets.ranks) team.kill.push_back([rank] { rank->Kill(); });
  return team;
}

}  // namespace

EngineConfig TestConfig() {
  EngineConfig config;
  config.stall_warning_seconds = 0;
  config.stall_shutdown_seconds = 60;
  config.fusion_threshold_bytes = 8 << 20;
  config.window_bytes = 1 << 20;
  return config;
}

std::vector<Fabric> FabricsOf(int size) {
  constexpr int64_t kWindowBytes = 32 << 10;  // slots of 4 KiB: collectives take several chunks
  const std::vector<int> one_host(static_cast<size_t>(size), 0);
  std::vector<Fabric> fabrics = {{one_host, 0}};
  if (size > 1) fabrics.push_back({one_host, kWindowBytes});
  if (size == 4) fabrics.push_back({{0, 1, 0, 1}, kWindowBytes});
  if (size > 1) fabrics.push_back({one_host, 0, true});
  if (size == 3) fabrics.push_back({one_host, kWindowBytes, true});
  if (size == 4) fabrics.push_back({{0, 1, 0, 1}, kWindowBytes, true});
  return fabrics;
}

void RunRanksOn(const Fabric& fabric, const EngineConfig& config, const RankBody& body) {
  Team team = fabric.by_sockets ? OfSockets(fabric.host_ids) : InMemory(fabric.host_ids);
  EngineConfig changed = config;
  changed.window_bytes = fabric.window_bytes;
  const int size = static_cast<int>(team.communicators.size());
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::thread> threads;
  ThreadBarrier all(size);
  for (int rank = 0; rank < size; ++rank) {
    tfdist::Communicator* const communicator = team.communicators[rank].get();
    engines.push_back(std::make_unique<Engine>(std::move(team.communicators[rank]), changed));
    const RankContext self{
        rank, size, engines.back().get(), communicator, fabric.by_sockets, team.kill[rank], [&all] {
          all.Pass();
        }};
    threads.emplace_back([self, &body] {
      self.meet();
      EXPECT_EQ(self.engine->Open().message(), "");
      self.meet();
      body(self);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void RunRanks(int size, const EngineConfig& config, const RankBody& body) {
  for (const Fabric& fabric : FabricsOf(size)) RunRanksOn(fabric, config, body);
}

void RunRanks(int size, const RankBody& body) { RunRanks(size, TestConfig(), body); }

std::vector<Status> GatherStatuses(int size, const EngineConfig& config,
                                   const std::function<Status(const RankContext& self)>& body) {
  std::vector<Status> statuses(static_cast<size_t>(size));
  RunRanks(size, config, [&](const RankContext& self) { statuses[self.rank] = body(self); });
  return statuses;
}

void ExpectLost(const RankContext& self, const Status& status, int rank) {
  EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
  const std::string name = "rank " + std::to_string(rank) + " (host localhost)";
  if (!self.by_sockets) return EXPECT_CONTAINS(status.message(), name + " was killed");
  const std::string& text = status.message();
  const bool direct = text.find("lost its connection to") != std::string::npos;
  const bool told = text.find("was notified by") != std::string::npos;
  EXPECT(direct || told);
  EXPECT_CONTAINS(text, told ? name + " is lost." : name + ": the other end closed it.");
}

bool ExpectDeadline(const RankContext& self, const Status& status) {
  if (self.by_sockets && status.code() == StatusCode::kUnavailable) {
    EXPECT_CONTAINS(status.message(), "was notified by rank");
    EXPECT_CONTAINS(status.message(), "that it has failed.");
    return false;
  }
  EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kDeadlineExceeded));
  return true;
}

AllreduceOptions OptionsFor(const std::string& name, size_t tensors) {
  AllreduceOptions options;
  options.name = name;
  for (size_t i = 0; i < tensors; ++i) options.tensor_names.push_back("tensor" + std::to_string(i));
  return options;
}

BroadcastOptions BroadcastOptionsFor(const std::string& name, size_t tensors, int root) {
  BroadcastOptions options;
  options.name = name;
  options.tensor_names = OptionsFor(name, tensors).tensor_names;
  options.root = root;
  return options;
}

GatherOptions GatherOptionsFor(const std::string& name, size_t tensors) {
  GatherOptions options;
  options.name = name;
  options.tensor_names = OptionsFor(name, tensors).tensor_names;
  return options;
}

void ExpectInStep(const RankContext& self) {
  std::vector<float> values = {static_cast<float>(self.rank + 1)};
  const Status status =
      self.engine->Allreduce(OptionsFor("in step", 1), {ViewOf(&values)}, {ViewOf(&values)});
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(values[0], static_cast<float>(self.size * (self.size + 1) / 2));
}

void ExpectSameError(int size, StatusCode code, const std::string& text,
                     const std::function<Status(const RankContext& self)>& call) {
  const std::vector<Status> statuses =
      GatherStatuses(size, TestConfig(), [&call](const RankContext& self) {
        const Status status = call(self);
        ExpectInStep(self);
        return status;
      });
  for (const Status& status : statuses) {
    EXPECT_EQ(CodeOf(status), static_cast<int>(code));
    EXPECT_CONTAINS(status.message(), text);
    EXPECT_EQ(status.message(), statuses[0].message());
  }
}
