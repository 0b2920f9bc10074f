// Connections for some of the ranks, and a rank that cannot make its own.
#include "core/algorithm/host.h"
#include "expect.h"
#include "rank_team.h"
#include "socket/channel.h"
#include "socket_team.h"

using tfdist::Communicator;
using tfdist::Engine;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Wait;

namespace {

constexpr int kChannelsOfASet = 4;

struct Broken {
  const char* what;
  void (SocketRank::*fail)(int channel);
  const char* text;
};

const Broken kBroken[] = {
    {"listen", &SocketRank::FailListen, "rank 1 (host localhost) could not listen for channel "},
    {"connect", &SocketRank::FailConnect, "rank 1 (host localhost) could not connect for channel "},
};

// Runs `body` as a thread for each rank.
void RunTeam(SocketTeam* team, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(team->ranks.size()); ++rank) {
    threads.emplace_back([rank, &body] { body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST(ChannelThatOneRankCannotMakeIsTheSameErrorOnAllMembers) {
  for (const Broken& broken : kBroken) {
    const int before = OpenDescriptors();
    {
      SocketTeam team = MakeSocketTeam({0, 0, 0, 0});
      (team.ranks[1].get()->*broken.fail)(5);
      std::vector<Status> statuses(4);
      RunTeam(&team, [&](int rank) {
        if (rank == 3) return;
        const tfdist::EngineConfig config = TestConfig();
        Communicator* const whole = team.communicators[rank].get();
        Wait wait(config, whole->topology(), [] { return std::string("test"); });
        std::unique_ptr<Communicator> subset;
        statuses[rank] = whole->Subset({0, 1, 2}, 5, &wait, &subset);
        EXPECT(subset == nullptr);
        EXPECT_EQ(whole->Subset({0, 1, 2}, 6, &wait, &subset).message(), "");
        EXPECT_EQ(subset->size(), 3);
      });
      EXPECT_EQ(CodeOf(statuses[0]), static_cast<int>(StatusCode::kUnavailable));
      EXPECT_CONTAINS(statuses[0].message(), broken.text);
      EXPECT_EQ(statuses[1].message(), statuses[0].message());
      EXPECT_EQ(statuses[2].message(), statuses[0].message());
    }
    EXPECT_EQ(OpenDescriptors(), before);
  }
}

// Those who are in no set count it too: the next one has the same number everywhere.
TEST(ChannelThatFailsIsAnErrorOfAllRanksThatAddAProcessSet) {
  for (const Broken& broken : kBroken) {
    SocketTeam team = MakeSocketTeam({0, 0, 0});
    (team.ranks[1].get()->*broken.fail)(kChannelsOfASet);
    std::vector<Status> statuses(3);
    RunTeam(&team, [&](int rank) {
      Engine engine(std::move(team.communicators[rank]), TestConfig());
      EXPECT_EQ(engine.Open().message(), "");
      std::shared_ptr<Engine> set;
      statuses[rank] = engine.AddProcessSet({0, 1}, 1, &set);
      EXPECT(set == nullptr);
      EXPECT_EQ(engine.AddProcessSet({0, 1}, 2, &set).message(), "");
      ExpectInStep({rank, 3, &engine, nullptr});
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kFailedPrecondition));
      EXPECT_CONTAINS(status.message(), broken.text);
      EXPECT_EQ(status.message(), statuses[0].message());
    }
  }
}

TEST(ChannelBetweenHostsThatFailsLeavesMessages) {
  SocketTeam team = MakeSocketTeam({0, 1, 0, 1});
  team.ranks[1]->FailConnect(1);
  RunTeam(&team, [&](int rank) {
    const tfdist::EngineConfig config = TestConfig();
    Communicator* const whole = team.communicators[rank].get();
    Wait wait(config, whole->topology(), [] { return std::string("init"); });
    tfdist::Host host;
    EXPECT_EQ(OpenHost(config, 1, whole, &wait, &host).message(), "");
    EXPECT(host.window == nullptr);
    EXPECT(host.peers == nullptr);
  });
}

TEST(ChannelOfOneRankNeedsNoConnection) {
  SocketTeam team = MakeSocketTeam({0, 0});
  team.ranks[0]->FailListen(4);
  const tfdist::EngineConfig config = TestConfig();
  Wait wait(config, team.communicators[0]->topology(), [] { return std::string("test"); });
  std::unique_ptr<Communicator> alone;
  EXPECT_EQ(team.communicators[0]->Subset({0}, 4, &wait, &alone).message(), "");
  EXPECT_EQ(alone->size(), 1);
  EXPECT_EQ(alone->Exchange({}, {}, &wait).message(), "");
}
