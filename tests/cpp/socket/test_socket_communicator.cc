// Ranks that exchange messages over TCP: much at once, late, and with peers that are lost.
#include <fcntl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "core/wire/communicator_factory.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"
#include "socket_team.h"

using tfdist::Communicator;
using tfdist::EngineConfig;
using tfdist::Membership;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Transfer;
using tfdist::Wait;

namespace {

struct Member {
  int rank;
  Communicator* communicator;
  SocketRank* connections;
};

// Runs `body` as a thread for each rank, all on one host.
void RunMembers(int size, const std::function<void(const Member& self)>& body) {
  SocketTeam team = MakeSocketTeam(std::vector<int>(static_cast<size_t>(size), 0));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    const Member self{rank, team.communicators[rank].get(), team.ranks[rank].get()};
    threads.emplace_back([self, &body] { body(self); });
  }
  for (std::thread& thread : threads) thread.join();
}

Status Exchange(const Member& self, const std::vector<Transfer>& sends,
                const std::vector<Transfer>& receives, const EngineConfig& config = TestConfig()) {
  Wait wait(config, self.communicator->topology(), [] { return std::string("allreduce 'x'"); });
  return self.communicator->Exchange(sends, receives, &wait);
}

Status Receive(const Member& self, int from) {
  char byte = 0;
  return Exchange(self, {}, {{from, &byte, 1}});
}

Status Send(const Member& self, int to) {
  char byte = 0;
  return Exchange(self, {{to, &byte, 1}}, {});
}

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

TEST(SocketsCarryLargeMessagesBothWaysAtOnce) {
  constexpr size_t kBytes = 100 << 20;
  std::vector<uint32_t> sent(kBytes / sizeof(uint32_t));
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint32_t>(i * 2654435761u);
  RunMembers(2, [&sent](const Member& self) {
    std::vector<uint32_t> received(sent.size());
    const int other = 1 - self.rank;
    EXPECT_EQ(Exchange(self, {{other, sent.data(), kBytes}}, {{other, received.data(), kBytes}})
                  .message(),
              "");
    EXPECT(received == sent);
  });
}

TEST(SocketsKeepTheOrderOfManySmallMessages) {
  RunMembers(3, [](const Member& self) {
    constexpr int kAtOnce = 5;
    for (int round = 0; round < 500; ++round) {
      std::vector<Transfer> sends;
      std::vector<Transfer> receives;
      std::vector<std::string> outgoing;
      std::vector<std::string> incoming;
      outgoing.reserve(3 * kAtOnce);
      incoming.reserve(3 * kAtOnce);
      const auto text = [round](int from, int i) {
        return std::string(static_cast<size_t>((round + i) % 40), static_cast<char>(i)) +
               std::to_string(from) + "#" + std::to_string(round);
      };
      for (int peer = 0; peer < 3; ++peer) {
        for (int i = 0; peer != self.rank && i < kAtOnce; ++i) {
          outgoing.push_back(text(self.rank, i));
          const int64_t bytes = static_cast<int64_t>(outgoing.back().size());
          sends.push_back({peer, &outgoing.back()[0], bytes});
          incoming.emplace_back(outgoing.back().size(), ' ');
          receives.push_back({peer, &incoming.back()[0], bytes});
          sends.push_back({peer, nullptr, 0});
        }
      }
      EXPECT_EQ(Exchange(self, sends, receives).message(), "");
      size_t next = 0;
      for (int peer = 0; peer < 3; ++peer) {
        for (int i = 0; peer != self.rank && i < kAtOnce; ++i) {
          EXPECT_EQ(incoming[next++], text(peer, i));
        }
      }
    }
  });
}

TEST(SocketsOfALatePeerAreWaitedForWithoutTheProcessor) {
  Gate reported;
  EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0.5;
  config.on_stall = [&reported](const std::string&) { reported.Open(); };
  RunMembers(2, [&](const Member& self) {
    if (self.rank == 1) {
      reported.Pass();
      EXPECT_EQ(Send(self, 0).message(), "");
      return;
    }
    const double before = ThreadSeconds();
    char byte = 0;
    EXPECT_EQ(Exchange(self, {}, {{1, &byte, 1}}, config).message(), "");
    EXPECT(ThreadSeconds() - before < 0.1);  // of 0.5 s or more
  });
}

TEST(SocketsNameTheRankThatDoesNotComeInTime) {
  Gate over;
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 0.2;
  RunMembers(3, [&](const Member& self) {
    if (self.rank == 0) {
      char bytes[2] = {};
      const Status status = Exchange(self, {}, {{1, bytes, 1}, {2, bytes + 1, 1}}, config);
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kDeadlineExceeded));
      EXPECT_CONTAINS(status.message(), "in allreduce 'x' for rank 1 (host localhost)");
      EXPECT_EQ(Send(self, 1).message(), status.message());
      over.Open();
      return;
    }
    if (self.rank == 2) EXPECT_EQ(Send(self, 0).message(), "");
    over.Pass();
    EXPECT_EQ(
        Receive(self, 3 - self.rank).message(),
        "rank " + std::to_string(self.rank) +
            " (host localhost) was notified by rank 0 (host localhost) that it has failed. It "
            "was in allreduce 'x'. See the logs of the ranks named here for the first "
            "failure.");
  });
}

// Rank 0 waits for rank 1 alone, and that for rank 2.
TEST(SocketsNameTheLostRankThroughAThirdOne) {
  RunMembers(3, [](const Member& self) {
    if (self.rank == 2) return self.connections->Kill();
    const Status status = Receive(self, self.rank + 1);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
    const std::string rest =
        " It was in allreduce 'x'. See the logs of the ranks named here for the first failure.";
    EXPECT_EQ(status.message(),
              (self.rank == 0 ? "rank 0 (host localhost) was notified by rank 1 (host localhost) "
                                "that rank 2 (host localhost) is lost."
                              : "rank 1 (host localhost) lost its connection to rank 2 (host "
                                "localhost): the other end closed it.") +
                  rest);
    EXPECT_EQ(Receive(self, 1 - self.rank).message(), status.message());
  });
}

TEST(SocketsOfAPeerThatHasEndedAreNoErrorWithoutNeed) {
  Gate closed;
  RunMembers(3, [&closed](const Member& self) {
    if (self.rank == 2) {
      EXPECT_EQ(Send(self, 0).message(), "");
      EXPECT_EQ(self.communicator->Finalize(true).message(), "");
      EXPECT_CONTAINS(Send(self, 0).message(),
                      "rank 2 (host localhost) has closed its connections");
      return closed.Open();
    }
    closed.Pass();
    if (self.rank == 0) EXPECT_EQ(Receive(self, 2).message(), "");  // it sent that before
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ((self.rank == 0 ? Send(self, 1) : Receive(self, 0)).message(), "");
      EXPECT_EQ((self.rank == 1 ? Send(self, 0) : Receive(self, 1)).message(), "");
    }
    if (self.rank == 1) return;
    EXPECT_CONTAINS(Receive(self, 2).message(),
                    "rank 0 (host localhost) lost its connection to rank 2 (host localhost)");
  });
}

TEST(SocketsWithMessagesOfUnequalLengthsAreAnErrorOfBoth) {
  RunMembers(2, [](const Member& self) {
    char bytes[16] = {};
    const int other = 1 - self.rank;
    const int64_t own = self.rank == 0 ? 16 : 8;
    const Status status = Exchange(self, {{other, bytes, own}}, {{other, bytes, own}});
    EXPECT(!status.ok());
    if (status.code() == StatusCode::kUnavailable) {
      EXPECT_CONTAINS(status.message(), "was notified by rank " + std::to_string(other));
      return;
    }
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInternal));
    EXPECT_CONTAINS(status.message(),
                    "rank " + std::to_string(self.rank) + " (host localhost) received " +
                        std::to_string(24 - own) + " bytes from rank " + std::to_string(other) +
                        " (host localhost); expected " + std::to_string(own) + " bytes.");
  });
}

TEST(SocketsLeaveNoDescriptorOpen) {
  const int before = OpenDescriptors();
  for (const Fabric& fabric : FabricsOf(4)) {
    RunRanksOn(fabric, TestConfig(), [](const RankContext& self) {
      std::shared_ptr<tfdist::Engine> set;
      EXPECT_EQ(self.engine->AddProcessSet({0, 2, 3}, 1, &set).message(), "");
      ExpectInStep(self);
      self.meet();  // all are out of their collective
      if (self.rank == 1) self.kill();
      EXPECT(self.rank == 1 || !self.engine->Barrier("lost").ok());
    });
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(SocketsRefuseWhatIsNoConnection) {
  const int before = OpenDescriptors();
  int pipes[2];
  EXPECT_EQ(pipe(pipes), 0);
  Membership membership;
  std::unique_ptr<Communicator> communicator;
  const auto make = [&] {
    return MakeCommunicator("socket", TestConfig(), membership, &communicator);
  };
  EXPECT_CONTAINS(make().message(), "received no connections");
  membership.sockets = tfdist::SocketMembership{1, {0, 0}, {"a", "a"}, {pipes[0], -1}, nullptr};
  EXPECT_CONTAINS(make().message(), "as a TCP connection failed");
  membership.sockets->descriptors[0] = -1;
  EXPECT_CONTAINS(make().message(), "using descriptor -1 as the connection to rank 0 failed");
  for (int wrong : {-1, 2}) {
    membership.sockets->rank = wrong;
    EXPECT_EQ(CodeOf(make()), static_cast<int>(StatusCode::kInvalidArgument));
  }
  membership.sockets->rank = 1;
  membership.sockets->hosts.pop_back();
  EXPECT_CONTAINS(make().message(), "rank 1 of 2, 1 hosts and 2 connections");
  EXPECT(communicator == nullptr);
  close(pipes[0]);
  close(pipes[1]);
  EXPECT_EQ(OpenDescriptors(), before);
}
