// Engines that end and go on with other ranks: fewer of them, and more.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/wire/communicator_factory.h"
#include "expect.h"
#include "rank_team.h"
#include "socket_team.h"

using tfdist::Engine;
using tfdist::Membership;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// Of so many ranks of one host.
std::vector<Membership> MembershipsOf(int size) {
  return MakeMemberships(std::vector<int>(static_cast<size_t>(size), 0));
}

Status Sum(Engine* engine, float own, float* sum) {
  std::vector<float> values = {own};
  const Status status =
      engine->Allreduce(OptionsFor("grads", 1), {ViewOf(&values)}, {ViewOf(&values)});
  *sum = values[0];
  return status;
}

// Has the engines go on as ranks of these; those that are null are made.
void MeetAll(std::vector<std::shared_ptr<Engine>>* engines, std::vector<Membership> memberships) {
  InThreads(static_cast<int>(engines->size()), [&](int r) {
    std::shared_ptr<Engine>& engine = (*engines)[r];
    if (engine == nullptr) {
      std::unique_ptr<tfdist::Communicator> communicator;
      EXPECT(tfdist::MakeCommunicator("socket", TestConfig(), memberships[r], &communicator).ok());
      engine = std::make_shared<Engine>(std::move(communicator), TestConfig());
      EXPECT_EQ(engine->Open().message(), "");
    } else {
      std::shared_ptr<Engine> next;
      EXPECT_EQ(engine->Meet(memberships[r], &next).message(), "");
      engine = std::move(next);
    }
    CloseConnections(memberships[r]);
    float sum = 0;
    EXPECT_EQ(Sum(engine.get(), 1, &sum).message(), "");
    EXPECT_EQ(sum, static_cast<float>(engines->size()));
  });
}

// What a rank gives that has agreed and comes no further: reading it raises a signal, in whose
// handler the thread waits.
constexpr size_t kHeldBytes = 4096;
char* held = nullptr;
int door[2];  // a pipe

void Hold(int /*signum*/) {
  char released = 0;
  EXPECT_EQ(read(door[0], &released, 1), static_cast<ssize_t>(1));
  mprotect(held, kHeldBytes, PROT_READ | PROT_WRITE);
}

}  // namespace

// Rank 3 gives up rank 2 in the window of their host. Rank 1 waits for rank 3 alone.
TEST(MeetIsNotKeptWaitingByRanksThatFailInTheWindowOfAnotherHost) {
  held =
      static_cast<char*>(mmap(nullptr, kHeldBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT(held != MAP_FAILED);
  EXPECT_EQ(pipe(door), 0);
  struct sigaction before = {};
  struct sigaction action = {};
  action.sa_handler = Hold;
  EXPECT(sigaction(SIGSEGV, &action, &before) == 0);
  SocketTeam team = MakeSocketTeam({0, 0, 1, 1});
  std::vector<Status> statuses(4);
  std::vector<std::unique_ptr<Engine>> engines(4);  // they stay until the ranks meet again
  InThreads(4, [&](int r) {
    tfdist::EngineConfig config = TestConfig();
    config.stall_shutdown_seconds = r == 3 ? 3 : 20;
    engines[r] = std::make_unique<Engine>(std::move(team.communicators[r]), config);
    EXPECT_EQ(engines[r]->Open().message(), "");
    std::vector<float> own(kHeldBytes / sizeof(float), 1);
    tfdist::TensorView input = ViewOf(&own);
    if (r == 2) input.data = held;
    statuses[r] = engines[r]->Allreduce(OptionsFor("grads", 1), {input}, {ViewOf(&own)});
    if (r == 1) EXPECT_EQ(write(door[1], "", 1), static_cast<ssize_t>(1));
  });
  EXPECT_EQ(CodeOf(statuses[3]), CodeOf(Status(StatusCode::kDeadlineExceeded, "")));
  EXPECT_EQ(CodeOf(statuses[1]), CodeOf(Status(StatusCode::kUnavailable, "")));
  sigaction(SIGSEGV, &before, nullptr);
  munmap(held, kHeldBytes);
  for (int end : door) close(end);
}

TEST(MeetGoesOnWithFewerAndMoreRanksAgainAndAgain) {
  std::vector<std::shared_ptr<Engine>> engines(3);
  MeetAll(&engines, MembershipsOf(3));
  const int before = OpenDescriptors();
  for (int round = 0; round < 20; ++round) {
    for (const auto& engine : engines) engine->Part();
    engines.pop_back();
    MeetAll(&engines, MembershipsOf(2));
    for (const auto& engine : engines) engine->Part();
    engines.emplace_back();
    MeetAll(&engines, MembershipsOf(3));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(MeetIsAfterOneHasPartedAndTheOthersHaveFailed) {
  std::vector<std::shared_ptr<Engine>> engines(3);
  MeetAll(&engines, MembershipsOf(3));
  std::vector<Status> statuses(3);
  engines[2]->Part();
  InThreads(2, [&](int r) {
    float sum = 0;
    statuses[r] = Sum(engines[r].get(), 1, &sum);
    engines[r]->Part();
  });
  for (int r = 0; r < 2; ++r)
    EXPECT_EQ(CodeOf(statuses[r]), CodeOf(Status(StatusCode::kUnavailable, "")));
  float sum = 0;
  EXPECT_CONTAINS(Sum(engines[2].get(), 1, &sum).message(), "continues with other ranks");
  MeetAll(&engines, MembershipsOf(3));
}

TEST(MeetFailsWhereOneOfTheRanksIsGoneAndMayBeTriedAgain) {
  std::vector<std::shared_ptr<Engine>> engines(3);
  MeetAll(&engines, MembershipsOf(3));
  for (const auto& engine : engines) engine->Part();
  std::vector<Membership> memberships = MembershipsOf(3);
  CloseConnections(memberships[2]);
  InThreads(2, [&](int r) {
    std::shared_ptr<Engine> next;
    EXPECT_EQ(CodeOf(engines[r]->Meet(memberships[r], &next)),
              CodeOf(Status(StatusCode::kUnavailable, "")));
    EXPECT(next == nullptr);
    CloseConnections(memberships[r]);
  });
  engines.pop_back();
  MeetAll(&engines, MembershipsOf(2));
}
