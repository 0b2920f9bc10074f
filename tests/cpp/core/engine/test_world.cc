// The engines of this process: which there are, when they come and go, and what a fork leaves of
// them.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/engine/c_api.h"
#include "core/engine/world.h"
#include "core/wire/loopback_communicator.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"
#include "shm/process_fork.h"

using tfdist::Engine;
using tfdist::LoopbackCommunicator;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::World;

namespace {

using Ranks = std::vector<int>;

std::shared_ptr<Engine> SingleEngine() {
  return std::make_shared<Engine>(std::move(LoopbackCommunicator::Create(1)[0]), TestConfig());
}

void ExpectError(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(CodeOf(status), static_cast<int>(code));
  EXPECT_CONTAINS(status.message(), text);
}

Status FindSet(int number) {
  std::shared_ptr<Engine> engine;
  return World::Find(number, &engine);
}

}  // namespace

TEST(WorldKeepsAnEngineAliveForItsCaller) {
  World::Set(SingleEngine());
  const std::shared_ptr<Engine> held = World::Get();
  EXPECT(World::Set(nullptr) == held);
  EXPECT(World::Get() == nullptr);
  EXPECT(held->Barrier("still here").ok());
}

TEST(WorldWithoutAnEngineHasNothingToFind) {
  int number = -1;
  const std::string text = "before tfdist.init() or after tfdist.shutdown()";
  for (int set : {0, 1}) ExpectError(FindSet(set), StatusCode::kFailedPrecondition, text);
  ExpectError(World::AddProcessSet({0}, &number), StatusCode::kFailedPrecondition, text);
  ExpectError(World::RemoveProcessSet(1), StatusCode::kFailedPrecondition, text);
  EXPECT_EQ(number, -1);
}

TEST(WorldAddsFindsAndRemovesProcessSets) {
  World::Set(SingleEngine());
  int number = -1;
  EXPECT(World::AddProcessSet({0}, &number).ok());
  EXPECT_EQ(number, 1);
  std::shared_ptr<Engine> set;
  EXPECT(World::Find(1, &set).ok());
  EXPECT(set != World::Get());
  EXPECT(set->Barrier("b").ok());
  std::shared_ptr<Engine> whole;
  EXPECT(World::Find(0, &whole).ok());
  EXPECT(whole == World::Get());

  int other = -1;
  ExpectError(World::AddProcessSet({0}, &other), StatusCode::kInvalidArgument,
              "a process set of rank 0 already exists, as number 1. Use that one, or remove it");
  ExpectError(World::AddProcessSet({1}, &other), StatusCode::kInvalidArgument,
              "received the ranks [1]; expected one or more distinct ranks of 0 to 0, ascending.");

  EXPECT(World::RemoveProcessSet(1).ok());
  ExpectError(FindSet(1), StatusCode::kInvalidArgument,
              "there is no process set 1, or it was removed");
  for (int none : {1, 0, -1, 2}) {
    ExpectError(World::RemoveProcessSet(none), StatusCode::kInvalidArgument,
                "there is no process set " + std::to_string(none) + " to remove");
  }
  EXPECT(set->Barrier("who holds it may end what runs").ok());
  EXPECT(World::AddProcessSet({0}, &number).ok());
  EXPECT_EQ(number, 2);  // messages of a removed set must not be taken for those of a new one
  set.reset();
  whole.reset();

  // A new engine starts without process sets and counts them anew.
  World::Set(SingleEngine());
  ExpectError(FindSet(2), StatusCode::kInvalidArgument, "there is no process set 2");
  EXPECT(World::AddProcessSet({0}, &number).ok());
  EXPECT_EQ(number, 1);
  World::Set(nullptr);
}

TEST(WorldSaysWhoIsNotInAProcessSet) {
  // This process is rank 1 of 2; the other rank is a thread that has its engine at hand.
  auto communicators = LoopbackCommunicator::Create(2);
  World::Set(std::make_shared<Engine>(std::move(communicators[1]), TestConfig()));
  std::thread other([&communicators] {
    Engine engine(std::move(communicators[0]), TestConfig());
    std::shared_ptr<Engine> set;
    EXPECT(engine.AddProcessSet({0}, 1, &set).ok());
    EXPECT(set->Barrier("alone").ok());
    EXPECT(engine.RemoveProcessSet(1).ok());
  });
  int number = -1;
  EXPECT(World::AddProcessSet({0}, &number).ok());
  ExpectError(FindSet(number), StatusCode::kInvalidArgument,
              "rank 1 (host localhost) ran a collective in process set 1 (rank 0), to which it "
              "does not belong. Run it only if process_set.included().");
  EXPECT(World::RemoveProcessSet(number).ok());
  other.join();
  World::Set(nullptr);
}

namespace {

// Bits of the exit status of a forked process that asks for what it may have, and may not.
enum Found { kRefused = 1, kAnswered = 2, kKept = 4, kRefusedByC = 8, kNamed = 16 };

int AskInChild(const Engine* engine) {
  std::shared_ptr<Engine> found;
  const Status status = World::Find(0, &found);
  char message[1024] = "";
  int answer = status.code() == StatusCode::kInvalidArgument && found == nullptr ? kRefused : 0;
  if (status.message().find("forked from rank 1 (host localhost)") != std::string::npos) {
    answer |= kNamed;
  }
  if (tfdist_barrier("b", message, sizeof(message)) == 3) answer |= kRefusedByC;
  if (tfdist_rank() == 1 && tfdist_size() == 2) answer |= kAnswered;
  tfdist_timeline_stop();
  // Would wait for the other rank, which calls nothing.
  const bool ended = tfdist_shutdown(1, message, sizeof(message)) == 0;
  return answer | (ended && World::Get().get() == engine ? kKept : 0);
}

int ExitStatusOf(const std::function<int()>& child) {
  const pid_t process = fork();
  if (process == 0) _exit(child());
  int status = 0;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST(WorldOfAForkedProcessIsTheParents) {
  tfdist::WatchForks();
  tfdist::WatchForks();
  auto communicators = LoopbackCommunicator::Create(2);
  World::Set(std::make_shared<Engine>(std::move(communicators[1]), TestConfig()));
  const Engine* const engine = World::Get().get();
  EXPECT_EQ(ExitStatusOf([engine] { return AskInChild(engine); }), 31);
  EXPECT_EQ(ExitStatusOf([engine] {  // and one that it forks in turn
              return ExitStatusOf([engine] { return AskInChild(engine); });
            }),
            31);
  EXPECT(!World::IsForked());
  EXPECT(FindSet(0).ok());

  // A world of one has nobody whom its copy could disturb; before there is an engine, the child may
  // become the rank.
  World::Set(SingleEngine());
  EXPECT_EQ(ExitStatusOf([] { return FindSet(0).ok() && World::IsForked() ? 0 : 1; }), 0);
  World::Set(nullptr);
  EXPECT_EQ(ExitStatusOf([] { return World::IsForked() ? 1 : 0; }), 0);
}

TEST(WorldGivesProcessSetsOfSeveralThreadsNumbersOfTheirOwn) {
  World::Set(SingleEngine());
  std::atomic<int> added{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&added, &refused] {
      for (int round = 0; round < 50; ++round) {
        int number = -1;
        if (!World::AddProcessSet({0}, &number).ok()) {
          ++refused;
          continue;
        }
        ++added;
        EXPECT(FindSet(number).ok());  // no other thread has taken its place
        EXPECT(World::RemoveProcessSet(number).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(added + refused, 8 * 50);
  int number = -1;
  EXPECT(World::AddProcessSet({0}, &number).ok());
  EXPECT_EQ(number, added + 1);
  World::Set(nullptr);
}

TEST(WorldDropsAProcessSetOfAnEngineThatIsGone) {
  // Rank 0 restarts while it waits for rank 1 in add_process_set.
  auto communicators = LoopbackCommunicator::Create(2);
  Gate waits;
  tfdist::EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0.01;
  config.on_stall = [&waits](const std::string&) { waits.Open(); };
  World::Set(std::make_shared<Engine>(std::move(communicators[0]), config));
  std::thread adds([] {
    int number = -1;
    ExpectError(World::AddProcessSet({0, 1}, &number), StatusCode::kFailedPrecondition,
                "tfdist was shut down or restarted while a process set of ranks 0-1 was added.");
  });
  waits.Pass();
  const std::shared_ptr<Engine> old = World::Set(SingleEngine());
  Engine other(std::move(communicators[1]), TestConfig());
  std::shared_ptr<Engine> set;
  EXPECT(other.AddProcessSet({0, 1}, 1, &set).ok());
  adds.join();
  ExpectError(FindSet(1), StatusCode::kInvalidArgument, "there is no process set 1");
  int number = -1;
  EXPECT(World::AddProcessSet({0}, &number).ok());
  EXPECT_EQ(number, 1);
  World::Set(nullptr);
}
