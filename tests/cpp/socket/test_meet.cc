// Engines that end and go on with other ranks: fewer of them, and more.
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

}  // namespace

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
