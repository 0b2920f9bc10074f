// Ranks that wait too long: one of them speaks, and says what the missing ones did last.
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/watch/stall_monitor.h"
#include "core/watch/steady_clock.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"
#include "result.h"

using tfdist::Activity;
using tfdist::EngineConfig;
using tfdist::MissingRank;
using tfdist::Speaks;
using tfdist::StallMonitor;
using tfdist::Status;
using tfdist::SteadyNs;
using tfdist::TensorView;
using tfdist::Topology;
using tfdist::Window;

namespace {

constexpr char kStacks[] = ". Its Python stacks: kill -USR1 71 on host localhost\n";

Status Sum(const RankContext& self) {
  std::vector<float> values(10, static_cast<float>(self.rank));
  return self.engine->Allreduce(OptionsFor("grads", 1), {ViewOf(&values)}, {ViewOf(&values)});
}

// "waited 2.0 s in" becomes "waited N s in".
std::string WithoutNumbersOfSeconds(std::string text) {
  for (size_t end = 0; (end = text.find(" s", end)) != std::string::npos;) {
    size_t begin = end;
    while (begin > 0 && (std::isdigit(text[begin - 1]) != 0 || text[begin - 1] == '.')) --begin;
    const bool is_unit = end + 2 == text.size() || std::isalnum(text[end + 2]) == 0;
    if (is_unit && begin < end) {
      text.replace(begin, end - begin, "N");
      end = begin + 1;
    }
    end += 2;
  }
  return text;
}

// The reports of waits in 'grads' for certain ranks, such as "rank 1".
class Reports {
 public:
  explicit Reports(std::string missing) : missing_(std::move(missing)) {}

  // Opens `reported` when the first one comes.
  EngineConfig ConfigFor(Gate* reported) {
    EngineConfig config = TestConfig();
    config.stall_warning_seconds = 0.02;
    config.process = 71;
    config.on_stall = [this, reported](const std::string& report) {
      if (report.find("is over: " + missing_ + " (host localhost) reached ") != std::string::npos) {
        std::lock_guard<std::mutex> lock(mutex_);
        over_.push_back(WithoutNumbersOfSeconds(report));
        return;
      }
      if (report.find("in allreduce 'grads'") == std::string::npos) return;
      if (report.find(" for " + missing_ + " (host") == std::string::npos) return;
      std::lock_guard<std::mutex> lock(mutex_);
      texts_.push_back(WithoutNumbersOfSeconds(report));
      reported->Open();
    };
    return config;
  }

  // By rank 0. `ranks` are the lines about those that are missing.
  void ExpectOne(const std::string& ranks, int call) const {
    EXPECT_EQ(texts_.size(), 1u);
    if (texts_.empty()) return;
    EXPECT_EQ(
        texts_[0],
        "tfdist: stalled: rank 0 (host localhost) has waited N s in allreduce 'grads' (1 "
        "tensor, 'tensor0') for " +
            missing_ + " (host localhost).\n" + ranks + "This is call " + std::to_string(call) +
            ". It fails after N s (TFDIST_STALL_CHECK_SHUTDOWN_TIME). Check that those "
            "processes are still running and what they are doing, and that no rank skips a "
            "collective, for example because it has fewer steps or a branch that depends on its "
            "rank.");
  }

  // By the rank that spoke, when those came for which it waited.
  void ExpectOver() const {
    EXPECT_EQ(over_.size(), 1u);
    if (over_.empty()) return;
    EXPECT_EQ(over_[0], "tfdist: the stall is over: " + missing_ +
                            " (host localhost) reached allreduce 'grads' (1 tensor, 'tensor0') "
                            "after N s; the job continues.");
  }

 private:
  const std::string missing_;
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::vector<std::string> over_;
};

// A host of which some processes have ended.
class Page : public Window {
 public:
  Page(std::shared_ptr<char> memory, int rank, int size, std::vector<int> ended)
      : Window(memory.get(), rank, size, 0), memory_(std::move(memory)), ended_(std::move(ended)) {}

  static std::shared_ptr<char> MemoryFor(int size) {
    const size_t bytes = static_cast<size_t>(Window::Bytes(size, size, 0));
    char* const made = static_cast<char*>(std::aligned_alloc(64, bytes));
    std::memset(made, 0, bytes);
    return {made, std::free};
  }

  std::vector<int> EndedRanks() const override { return ended_; }

 private:
  const std::shared_ptr<char> memory_;
  const std::vector<int> ended_;
};

}  // namespace

TEST(StallOfARankThatSleepsIsToldByTheLowestThatWaits) {
  // The ranks above 1 wait first, so that rank 0 finds rank 1 alone missing.
  for (int size : {2, 3}) {
    Reports reports("rank 1");
    Gate reported;
    Gate others_wait;
    EngineConfig config = reports.ConfigFor(&reported);
    config.on_stall = [&, next = config.on_stall](const std::string& report) {
      if (report.find("in allreduce 'grads'") != std::string::npos) others_wait.Open();
      next(report);
    };
    RunRanksOn(FabricsOf(size)[1], config, [&](const RankContext& self) {
      EXPECT(self.engine->Barrier("start").ok());
      if (self.rank == 0 && size > 2) others_wait.Pass();
      if (self.rank == 1) reported.Pass();
      EXPECT(Sum(self).ok());
    });
    reports.ExpectOne(std::string("  rank 1 finished barrier 'start' (call 1) N s ago") + kStacks,
                      2);
    reports.ExpectOver();
  }
}

TEST(StallOfARankThatHasCalledNothing) {
  Reports reports("rank 1");
  Gate reported;
  RunRanksOn(FabricsOf(2)[1], reports.ConfigFor(&reported), [&](const RankContext& self) {
    if (self.rank == 1) reported.Pass();
    EXPECT(Sum(self).ok());
  });
  reports.ExpectOne(std::string("  rank 1 has not called a collective yet") + kStacks, 1);
}

TEST(StallOfARankThatWaitsInAnotherCollective) {
  Reports reports("ranks 1-2");
  Gate reported;
  Gate rank_1_waits;
  EngineConfig config = reports.ConfigFor(&reported);
  config.on_stall = [&, next = config.on_stall](const std::string& report) {
    if (report.find("rank 1 (host localhost) has waited") != std::string::npos &&
        report.find("in barrier 'b' in process set 1") != std::string::npos) {
      rank_1_waits.Open();
    }
    next(report);
  };
  RunRanksOn(FabricsOf(3)[1], config, [&](const RankContext& self) {
    std::shared_ptr<tfdist::Engine> set;
    EXPECT(self.engine->AddProcessSet({1, 2}, 1, &set).ok());
    if (self.rank == 0) rank_1_waits.Pass();
    if (self.rank == 2) reported.Pass();
    if (self.rank > 0) EXPECT(set->Barrier("b").ok());
    EXPECT(Sum(self).ok());
  });
  reports.ExpectOne(
      std::string(
          "  rank 1 is waiting in another collective: barrier 'b' in process set 1 (ranks 1-2) "
          "(call 1), for N s") +
          kStacks + "  rank 2 finished add_process_set 'ranks 1-2' (call 2) N s ago" + kStacks,
      3);
}

TEST(StallOfRanksThatCannotBeSeen) {
  const std::string elsewhere = " was last seen in barrier 'start' (call 1) N s ago";
  const std::string start = " finished barrier 'start' (call 1) N s ago";
  const std::pair<Fabric, std::vector<std::string>> cases[] = {
      {{{0, 0, 1}, 32 << 10}, {start, elsewhere}},  // unequal numbers of ranks
      {{{0, 1, 2}, 32 << 10}, {elsewhere, elsewhere}},
      {{{0, 0, 0}, 0}, {elsewhere, elsewhere}},  // no memory is shared
  };
  for (const auto& [fabric, said] : cases) {
    Reports reports("ranks 1-2");
    Gate reported;
    RunRanksOn(fabric, reports.ConfigFor(&reported), [&](const RankContext& self) {
      EXPECT(self.engine->Barrier("start").ok());
      if (self.rank > 0) reported.Pass();
      EXPECT(Sum(self).ok());
    });
    reports.ExpectOne("  rank 1" + said[0] + kStacks + "  rank 2" + said[1] + kStacks, 2);
  }
}

TEST(StallNamesNoCallInWhichTheRanksDiffered) {
  Reports reports("rank 1");
  Gate reported;
  RunRanksOn({{0, 1}, 0}, reports.ConfigFor(&reported), [&](const RankContext& self) {
    EXPECT(!self.engine->Barrier(self.rank == 0 ? "this" : "that").ok());
    if (self.rank == 1) reported.Pass();
    EXPECT(Sum(self).ok());
  });
  reports.ExpectOne(std::string("  rank 1 was last seen in call 1 N s ago") + kStacks, 2);
}

TEST(StallTellsSinceWhenNothingHasComeFromARank) {
  // Both calls are long, and it came at the end of the first.
  Gate first;
  Gate second;
  std::string told;
  int64_t told_ns = 0;
  int64_t came_ns = 0;
  EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0.3;
  config.on_stall = [&](const std::string& report) {
    if (report.find("barrier 'start' for rank 1") != std::string::npos) first.Open();
    if (report.find("in allreduce 'grads'") == std::string::npos) return;
    told = report;
    told_ns = SteadyNs();
    second.Open();
  };
  RunRanksOn({{0, 1}, 0}, config, [&](const RankContext& self) {
    if (self.rank == 1) {
      first.Pass();
      came_ns = SteadyNs();
    }
    EXPECT(self.engine->Barrier("start").ok());
    if (self.rank == 1) second.Pass();
    EXPECT(Sum(self).ok());
  });
  const std::string before = "rank 1 was last seen in barrier 'start' (call 1) ";
  EXPECT_CONTAINS(told, before);
  const size_t at = told.find(before);
  if (at == std::string::npos) return;
  const double seconds = std::strtod(told.c_str() + at + before.size(), nullptr);
  const double rounding = 0.05;
  EXPECT(seconds <= static_cast<double>(told_ns - came_ns) * 1e-9 + rounding);
}

TEST(StallWithinACollectiveToWhichAllHaveCome) {
  Gate reported;
  std::string told;
  EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0.02;
  config.on_stall = [&](const std::string& report) {
    if (report.find("rank 0 (host localhost) has waited") == std::string::npos) return;
    told = report;
    reported.Open();
  };
  RunRanksOn({{0, 1}, 0}, config, [&](const RankContext& self) {
    Results results({tfdist::DType::kFloat32});
    const tfdist::Allocate allocate = results.Allocator();
    const auto late = [&](int tensor, const std::vector<int64_t>& shape, TensorView* output) {
      if (self.rank == 1) reported.Pass();
      return allocate(tensor, shape, output);
    };
    std::vector<float> row(1, static_cast<float>(self.rank));
    std::vector<int64_t> rows;
    EXPECT(self.engine->Allgather(GatherOptionsFor("rows", 1), {ViewOf(&row)}, late, &rows).ok());
  });
  EXPECT_CONTAINS(told, "\n  rank 1 has reached this collective. Its stacks: py-spy dump");
}

TEST(StallErrorSaysWhatTheMissingRankDidLast) {
  for (int size : {2, 3}) {
    EngineConfig config = TestConfig();
    config.stall_shutdown_seconds = 1;
    config.process = 71;
    std::atomic<int> told{0};
    RunRanksOn(FabricsOf(size)[1], config, [&](const RankContext& self) {
      EXPECT(self.engine->Barrier("start").ok());
      if (self.rank == 1) return;
      const Status status = Sum(self);
      const std::string text = WithoutNumbersOfSeconds(status.message());
      const std::string expected =
          "rank " + std::to_string(self.rank) +
          " (host localhost) has waited N s in allreduce 'grads' (1 tensor, 'tensor0') for rank 1 "
          "(host localhost).\n  rank 1 finished barrier 'start' (call 1) N s ago" +
          kStacks +
          "This is call 2. It has failed after N s (TFDIST_STALL_CHECK_SHUTDOWN_TIME; raise it if "
          "those ranks are only slow). Check that those processes are still running and what "
          "they are doing, and that no rank skips a collective, for example because it has fewer "
          "steps or a branch that depends on its rank.";
      EXPECT_EQ(text, expected);
      ++told;
    });
    EXPECT_EQ(told, size - 1);
  }
}

TEST(StallErrorSaysThatTheMissingRankLeftWithAnError) {
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  for (const std::vector<int>& host_ids : {std::vector<int>{0, 0}, {0, 0, 1}}) {
    RunRanksOn({host_ids, 32 << 10}, config, [&](const RankContext& self) {
      EXPECT(!self.engine->Barrier(self.rank == 0 ? "this" : "that").ok());
      if (self.rank != 1) return;
      EXPECT_CONTAINS(Sum(self).message(), "rank 0 left barrier 'this' (call 1) with an error");
    });
  }
}

TEST(StallMonitorSeesWhatOthersDoAndWhoHasEnded) {
  const std::shared_ptr<char> memory = Page::MemoryFor(2);
  const Topology whole[] = {tfdist::MakeTopology(0, {0, 0, 1}, {"a", "a", "b"}),
                            tfdist::MakeTopology(1, {0, 0, 1}, {"a", "a", "b"})};
  StallMonitor monitors[2];
  for (int rank : {0, 1}) {
    auto page = std::make_shared<Page>(memory, rank, 2, std::vector<int>{1});
    monitors[rank].Open(page, tfdist::HostTopology(whole[rank]), {70, 71, 72});
  }
  const auto last = [&] { return monitors[0].Look(whole[0], {1})[0].activity; };
  EXPECT_EQ(last().state, Activity::kIdle);
  monitors[1].Enter(0, "allreduce 'a'", 1, /*on_gpu=*/false);
  monitors[1].Enter(3, "barrier 'b'", 1, /*on_gpu=*/false);  // from another thread
  EXPECT_EQ(std::string(last().title), "barrier 'b'");
  monitors[1].Leave(3, /*failed=*/false);
  EXPECT_EQ(std::string(last().title), "allreduce 'a'");
  EXPECT_EQ(last().state, Activity::kInside);
  monitors[1].Leave(0, /*failed=*/true);
  EXPECT_EQ(last().state, Activity::kFailed);
  monitors[1].Leave(0, /*failed=*/false);  // is in none
  EXPECT_EQ(last().state, Activity::kFailed);

  const std::vector<MissingRank> seen = monitors[0].Look(whole[0], {1, 2});
  EXPECT_EQ(seen[0].host, "a");
  EXPECT(seen[0].is_here);
  EXPECT(seen[0].has_ended);
  EXPECT_EQ(seen[0].process, 71);
  EXPECT_EQ(seen[1].host, "b");
  EXPECT(!seen[1].is_here);
  EXPECT(!seen[1].has_ended);
  EXPECT_EQ(seen[1].process, 72);
  EXPECT_EQ(seen[1].activity.state, Activity::kUnknown);
  EXPECT(monitors[0].Ended(whole[0], {1, 2}) == std::vector<int>{1});
  monitors[0].NoteEnded(2);  // by whoever sees other hosts
  EXPECT(monitors[0].Ended(whole[0], {1, 2}) == (std::vector<int>{1, 2}));
  EXPECT(monitors[0].Ended(whole[0], {0}).empty());
}

TEST(StallEndsEarlyWhereTheMissingRankHasEnded) {
  for (const Fabric& fabric : FabricsOf(3)) {
    Gate all_know;
    std::atomic<int> waiting{2};
    RunRanksOn(fabric, TestConfig(), [&](const RankContext& self) {
      EXPECT(self.engine->Barrier("all are here").ok());
      if (self.rank == 1) return all_know.Pass();
      self.engine->NoteEnded(1);
      const Status status = self.engine->Barrier("after it");
      EXPECT_EQ(CodeOf(status), static_cast<int>(tfdist::StatusCode::kUnavailable));
      // By sockets the first of the two tells the other.
      const bool told = status.message().find("was notified by") != std::string::npos;
      EXPECT(!told || self.by_sockets);
      EXPECT_CONTAINS(status.message(),
                      told ? "that rank 1 (host localhost) is lost."
                           : "lost rank 1 (host localhost), whose process has ended.");
      if (--waiting == 0) all_know.Open();
    });
  }
}

TEST(StallMonitorThatIsNotOpenKnowsNothing) {
  StallMonitor monitor;
  monitor.Enter(0, "barrier 'b'", 1, /*on_gpu=*/false);
  const std::vector<MissingRank> seen =
      monitor.Look(tfdist::MakeTopology(0, {0, 0}, {"a", "a"}), {1});
  EXPECT_EQ(seen[0].activity.state, Activity::kUnknown);
  EXPECT_EQ(seen[0].process, 0);
}

TEST(StallIsToldByTheLowestRankThatIsNotMissing) {
  const auto of = [](int rank) {
    return tfdist::MakeTopology(rank, {0, 0, 0, 0}, std::vector<std::string>(4, "a"));
  };
  EXPECT(Speaks(of(0), {1, 3}));
  EXPECT(!Speaks(of(2), {1, 3}));
  EXPECT(Speaks(of(2), {0, 1}));
  EXPECT(!Speaks(of(3), {0, 1}));
  EXPECT(Speaks(of(3), {}));  // nobody knows who is missing
}
