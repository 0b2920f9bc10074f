// Process sets: collectives among some of the ranks, beside those of all of them.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "expect.h"
#include "gate.h"
#include "rank_team.h"
#include "result.h"

using tfdist::AllreduceOptions;
using tfdist::DType;
using tfdist::Engine;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;
using tfdist::Wait;

namespace {

using Ranks = std::vector<int>;

bool Contains(const Ranks& ranks, int rank) {
  return std::count(ranks.begin(), ranks.end(), rank) > 0;
}

// Adds a process set, as every rank must. Null on ranks that are not in it.
std::shared_ptr<Engine> Add(const RankContext& self, const Ranks& ranks, int number) {
  std::shared_ptr<Engine> set;
  EXPECT_EQ(self.engine->AddProcessSet(ranks, number, &set).message(), "");
  EXPECT_EQ(set != nullptr, Contains(ranks, self.rank));
  return set;
}

// This rank within `set`. Nobody kills it through this.
RankContext Within(const std::shared_ptr<Engine>& set) {
  return {set->communicator().rank(), set->communicator().size(), set.get(), nullptr};
}

Status Sum(Engine* engine, int64_t count, float value, std::vector<float>* values) {
  values->assign(static_cast<size_t>(count), value);
  return engine->Allreduce(OptionsFor("x", 1), {ViewOf(values)}, {ViewOf(values)});
}

// A sum of the members' numbers among all ranks, small and large.
void CheckSum(Engine* set, const Ranks& members, int rank) {
  int64_t total = 0;
  for (int member : members) total += member + 1;
  for (int64_t count : {1, 30'011}) {
    std::vector<float> values;
    EXPECT_EQ(Sum(set, count, static_cast<float>(rank + 1), &values).message(), "");
    EXPECT_EQ(values.front(), static_cast<float>(total));
    EXPECT_EQ(values.back(), static_cast<float>(total));
  }
}

// The root is a number among all ranks.
void CheckBroadcast(Engine* set, const Ranks& members, int rank) {
  for (int root : members) {
    for (size_t count : {1u, 30'011u}) {
      std::vector<float> values(count, static_cast<float>(rank));
      EXPECT_EQ(set->Broadcast(BroadcastOptionsFor("b", 1, root), {ViewOf(&values)}).message(), "");
      EXPECT_EQ(values.front(), static_cast<float>(root));
      EXPECT_EQ(values.back(), static_cast<float>(root));
    }
  }
}

// Member m gives m + 1 rows to an allgather, and every member one to each in an alltoall.
void CheckGathers(Engine* set, const Ranks& members, int rank) {
  std::vector<float> input(static_cast<size_t>(rank + 1), static_cast<float>(rank));
  Results gathered({DType::kFloat32});
  std::vector<int64_t> rows;
  EXPECT(
      set->Allgather(GatherOptionsFor("g", 1), {ViewOf(&input)}, gathered.Allocator(), &rows).ok());
  std::vector<float> given(members.size(), static_cast<float>(rank));
  Results dealt({DType::kFloat32});
  std::vector<int64_t> received;
  EXPECT(set->Alltoall("a", ViewOf(&given), {}, dealt.Allocator(), &received).ok());
  int64_t place = 0;
  for (size_t m = 0; m < members.size(); ++m) {
    EXPECT_EQ(rows[m], members[m] + 1);
    EXPECT_EQ(received[m], 1);
    EXPECT_EQ(dealt[0].Get(static_cast<int64_t>(m)), members[m]);
    for (int i = 0; i <= members[m]; ++i) EXPECT_EQ(gathered[0].Get(place++), members[m]);
  }
  EXPECT_EQ(gathered[0].count(), place);
}

// Equal gradients for Adasum; averages of the members' numbers for ReduceScatter.
void CheckReductions(Engine* set, const Ranks& members, int rank) {
  std::vector<float> equal(100, 5.0f);
  AllreduceOptions options = OptionsFor("adasum", 1);
  options.reduction = Reduction::kAdasum;
  EXPECT(set->Allreduce(options, {ViewOf(&equal)}, {ViewOf(&equal)}).ok());
  for (float value : equal) EXPECT_EQ(value, 5.0f);
  std::vector<float> input(members.size(), static_cast<float>(rank));
  std::vector<float> output(1);
  options.reduction = Reduction::kMax;
  EXPECT(set->ReduceScatter(options, {ViewOf(&input)}, {ViewOf(&output)}).ok());
  EXPECT_EQ(output[0], static_cast<float>(members.back()));
}

// The first member makes one step more than the others, which have joined by then.
void CheckJoin(Engine* set, const Ranks& members, int rank) {
  if (rank == members.front()) {
    std::vector<float> values;
    EXPECT_EQ(Sum(set, 3, 2.5f, &values).message(), "");
    EXPECT_EQ(values[2], 2.5f);
  }
  int last = -1;
  EXPECT_EQ(set->Join(&last).message(), "");
  EXPECT_EQ(last, members.front());
}

void CheckEveryOperation(Engine* set, const Ranks& members, int rank) {
  CheckSum(set, members, rank);
  CheckBroadcast(set, members, rank);
  CheckGathers(set, members, rank);
  CheckReductions(set, members, rank);
  EXPECT(set->Barrier("b").ok());
  CheckJoin(set, members, rank);
}

// Everyone, nobody but one, every other rank, and all but the first.
std::vector<Ranks> SubsetsOf(int size) {
  std::vector<Ranks> subsets(5);
  for (int rank = 0; rank < size; ++rank) {
    subsets[0].push_back(rank);
    if (rank % 2 == 0) subsets[1].push_back(rank);
    if (rank % 2 == 1) subsets[2].push_back(rank);
    if (rank > 0) subsets[3].push_back(rank);
  }
  subsets[4] = {size - 1};
  subsets.erase(std::remove(subsets.begin(), subsets.end(), Ranks()), subsets.end());
  return subsets;
}

// What the members of {1, 3}, as set 7 of 4 ranks, get; the same bytes on both.
void ExpectErrorInSet(StatusCode code, const std::string& text,
                      const std::function<Status(const RankContext& member)>& call) {
  const std::vector<Status> statuses =
      GatherStatuses(4, TestConfig(), [&](const RankContext& self) {
        const std::shared_ptr<Engine> set = Add(self, {1, 3}, 7);
        Status status;
        if (set != nullptr) {
          status = call(Within(set));
          ExpectInStep(Within(set));
        }
        ExpectInStep(self);
        return status;
      });
  EXPECT_EQ(CodeOf(statuses[1]), static_cast<int>(code));
  EXPECT_CONTAINS(statuses[1].message(), text);
  EXPECT_EQ(statuses[3].message(), statuses[1].message());
  EXPECT_EQ(CodeOf(statuses[3]), static_cast<int>(code));
}

Status SumOf(const RankContext& member, size_t count) {
  std::vector<float> values(count);
  return member.engine->Allreduce(OptionsFor("x", 1), {ViewOf(&values)}, {ViewOf(&values)});
}

void ExpectNoSet(const std::string& text, const Ranks& ranks) {
  ExpectSameError(3, StatusCode::kInvalidArgument,
                  "a process set received the ranks [" + text +
                      "]; expected one or more distinct ranks of 0 to 2, ascending.",
                  [&ranks](const RankContext& self) {
                    std::shared_ptr<Engine> set;
                    const Status status = self.engine->AddProcessSet(ranks, 1, &set);
                    EXPECT(set == nullptr);
                    return status;
                  });
}

void CheckKilledMember(const Fabric& fabric) {
  Gate killed;
  RunRanksOn(fabric, TestConfig(), [&](const RankContext& self) {
    const std::shared_ptr<Engine> low = Add(self, {0, 1}, 1);
    const std::shared_ptr<Engine> high = Add(self, {2, 3}, 2);
    self.meet();  // all have left AddProcessSet
    if (self.rank == 3) {
      // After the barrier its peers wait for nothing from here but what it never sends.
      EXPECT(high->Barrier("start").ok());
      self.kill();
      return killed.Open();
    }
    if (self.rank == 2) {
      EXPECT(high->Barrier("start").ok());
      killed.Pass();
      const Status status = high->Barrier("b");
      ExpectLost(self, status, 3);
      EXPECT_CONTAINS(status.message(), "barrier 'b' in process set 2 (ranks 2-3)");
      EXPECT_EQ(high->Barrier("later").message(), status.message());
    } else {
      killed.Pass();
      CheckEveryOperation(low.get(), {0, 1}, self.rank);
    }
    EXPECT_EQ(CodeOf(self.engine->Barrier("all")), static_cast<int>(StatusCode::kUnavailable));
    if (low != nullptr) CheckEveryOperation(low.get(), {0, 1}, self.rank);
  });
}

}  // namespace

TEST(ProcessSetRunsEveryOperation) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      int number = 0;
      for (const Ranks& members : SubsetsOf(self.size)) {
        const std::shared_ptr<Engine> set = Add(self, members, ++number);
        if (set != nullptr) CheckEveryOperation(set.get(), members, self.rank);
        ExpectInStep(self);
      }
    });
  }
}

TEST(ProcessSetCountsItsRanksAnew) {
  RunRanks(5, [](const RankContext& self) {
    const std::shared_ptr<Engine> set = Add(self, {1, 3, 4}, 1);
    if (set == nullptr) return;
    const tfdist::Topology& topology = set->communicator().topology();
    EXPECT_EQ(topology.rank, self.rank == 1 ? 0 : self.rank - 2);
    EXPECT_EQ(topology.size, 3);
    EXPECT(topology.world_ranks == Ranks({1, 3, 4}));
    EXPECT_EQ(topology.local_rank, topology.rank);
    EXPECT_EQ(topology.local_size, 3);
  });
}

TEST(ProcessSetsThatShareNoRankRunAtTheSameTime) {
  for (int size : {2, 4, 5}) {
    RunRanks(size, [](const RankContext& self) {
      const std::vector<Ranks> subsets = SubsetsOf(self.size);
      const Ranks& own = subsets[1 + self.rank % 2];
      const std::shared_ptr<Engine> sets[] = {Add(self, subsets[1], 1), Add(self, subsets[2], 2)};
      // Unequally many calls, so that the sets go out of step with each other.
      for (int round = 0; round < 20 + 30 * (self.rank % 2); ++round) {
        CheckSum(sets[self.rank % 2].get(), own, self.rank);
        CheckGathers(sets[self.rank % 2].get(), own, self.rank);
      }
      ExpectInStep(self);
    });
  }
}

TEST(ProcessSetsAndAllRanksRunFromSeveralThreads) {
  for (int size : {2, 3}) {
    RunRanks(size, [](const RankContext& self) {
      const std::vector<Ranks> subsets = SubsetsOf(self.size);
      const std::shared_ptr<Engine> whole = Add(self, subsets[0], 1);
      const std::shared_ptr<Engine> even = Add(self, subsets[1], 2);
      std::thread beside([&] {
        for (int round = 0; round < 60; ++round) {
          CheckEveryOperation(whole.get(), subsets[0], self.rank);
        }
      });
      std::thread among_even([&] {
        for (int round = 0; round < 100 && even != nullptr; ++round) {
          CheckSum(even.get(), subsets[1], self.rank);
        }
      });
      for (int round = 0; round < 40; ++round) {
        CheckEveryOperation(self.engine, subsets[0], self.rank);
        EXPECT(whole->communication_seconds() >= 0);
      }
      beside.join();
      among_even.join();
      ExpectInStep(self);
    });
  }
}

TEST(ProcessSetErrorsNameTheSetAndItsRanksAmongAll) {
  const std::string place = " in process set 7 (ranks 1, 3)";
  ExpectErrorInSet(StatusCode::kFailedPrecondition,
                   "allreduce 'x' differs between ranks: shape of tensor 'tensor0' is [4] on rank "
                   "1, [5] on rank 3.",
                   [](const RankContext& member) {
                     return SumOf(member, 4 + static_cast<size_t>(member.rank));
                   });
  ExpectErrorInSet(StatusCode::kFailedPrecondition, "This was" + place + ".",
                   [](const RankContext& member) {
                     return member.rank == 0 ? SumOf(member, 2) : member.engine->Barrier("b");
                   });
  for (int root : {0, 2, 4, -1}) {
    ExpectErrorInSet(
        StatusCode::kInvalidArgument,
        "broadcast 'w' received root " + std::to_string(root) + "; expected one of ranks 1, 3.",
        [root](const RankContext& member) {
          std::vector<float> values(2);
          return member.engine->Broadcast(BroadcastOptionsFor("w", 1, root), {ViewOf(&values)});
        });
  }
  ExpectErrorInSet(StatusCode::kFailedPrecondition,
                   "rank 1 called barrier 'b', rank 3 called barrier 'c'.",
                   [](const RankContext& member) {
                     return member.engine->Barrier(member.rank == 0 ? "b" : "c");
                   });
  ExpectErrorInSet(StatusCode::kFailedPrecondition,
                   "broadcast 'w' (1 tensor, 'tensor0')" + place + " ran after rank 3 had joined",
                   [](const RankContext& member) {
                     int last = -1;
                     if (member.rank == 1) return member.engine->Join(&last);
                     std::vector<float> values(2);
                     return member.engine->Broadcast(BroadcastOptionsFor("w", 1, 1),
                                                     {ViewOf(&values)});
                   });
}

TEST(ProcessSetRefusesWrongRanks) {
  ExpectNoSet("", {});
  ExpectNoSet("1, 0", {1, 0});
  ExpectNoSet("0, 0", {0, 0});
  ExpectNoSet("0, 1, 1", {0, 1, 1});
  ExpectNoSet("0, 3", {0, 3});
  ExpectNoSet("-1, 0", {-1, 0});
}

TEST(ProcessSetsThatDifferBetweenRanksAreAMismatch) {
  ExpectSameError(3, StatusCode::kFailedPrecondition,
                  "the ranks are out of step: ranks 0, 2 called add_process_set 'ranks 0-1', rank "
                  "1 called add_process_set 'ranks 0, 2'.",
                  [](const RankContext& self) {
                    std::shared_ptr<Engine> set;
                    const Ranks ranks = {0, self.rank == 1 ? 2 : 1};
                    const Status status = self.engine->AddProcessSet(ranks, 1, &set);
                    EXPECT(set == nullptr);
                    return status;
                  });
  ExpectSameError(
      2, StatusCode::kFailedPrecondition,
      "rank 0 called remove_process_set '1', rank 1 called remove_process_set '2'.",
      [](const RankContext& self) { return self.engine->RemoveProcessSet(self.rank + 1); });
  RunRanks(3, [](const RankContext& self) {
    EXPECT_EQ(self.engine->RemoveProcessSet(5).message(), "");
    ExpectInStep(self);
  });
}

TEST(ProcessSetEndsWithAKilledMemberAndTheOthersGoOn) {
  const auto start = std::chrono::steady_clock::now();
  for (const Fabric& fabric : FabricsOf(4)) CheckKilledMember(fabric);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT(elapsed.count() < 20);  // the deadline is 60 s
}

TEST(ProcessSetWhoseMemberDoesNotComeLeavesAllRanksUsable) {
  Gate gave_up;
  RunRanksOn(FabricsOf(3)[1], TestConfig(), [&gave_up](const RankContext& self) {
    if (self.rank != 1) {
      gave_up.Pass();
    } else {
      // Made by hand, since its deadline is shorter than that of all ranks.
      tfdist::EngineConfig config = TestConfig();
      config.stall_shutdown_seconds = 0.3;
      std::unique_ptr<tfdist::Communicator> subset;
      Wait wait(config, self.communicator->topology(), [] { return std::string("test"); });
      EXPECT(self.communicator->Subset({1, 2}, 4, &wait, &subset).ok());
      Engine set(std::move(subset), config, 4);
      const Status status = set.Barrier("b");
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kDeadlineExceeded));
      EXPECT_CONTAINS(status.message(), "rank 1 (host localhost) has waited");
      EXPECT_CONTAINS(status.message(),
                      "in barrier 'b' in process set 4 (ranks 1-2) for rank 2 (host localhost)");
      EXPECT_EQ(set.Barrier("later").message(), status.message());
      gave_up.Open();
    }
    ExpectInStep(self);
  });
}
