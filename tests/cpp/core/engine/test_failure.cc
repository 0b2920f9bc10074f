// Ranks that die, hang, are late or leave: every wait ends, in time and with the right name.
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "expect.h"
#include "gate.h"
#include "rank_team.h"

using tfdist::EngineConfig;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

Status Sum(const RankContext& self, size_t count) {
  std::vector<float> values(count, 1.0f);
  return self.engine->Allreduce(OptionsFor("grads", 1), {ViewOf(&values)}, {ViewOf(&values)});
}

constexpr int kUnavailable = static_cast<int>(StatusCode::kUnavailable);
constexpr int kDeadlineExceeded = static_cast<int>(StatusCode::kDeadlineExceeded);

}  // namespace

TEST(FailureOfAKilledPeerIsUnavailableOnAllOthersAndStays) {
  for (const Fabric& fabric : {FabricsOf(2)[1], FabricsOf(3)[0], FabricsOf(4)[0], FabricsOf(4)[1],
                               FabricsOf(4)[2], FabricsOf(5)[1], FabricsOf(2)[2], FabricsOf(3)[2],
                               FabricsOf(3)[3], FabricsOf(4)[4], FabricsOf(5)[2]}) {
    const auto start = std::chrono::steady_clock::now();
    const int victim = static_cast<int>(fabric.host_ids.size()) / 2;
    RunRanksOn(fabric, TestConfig(), [victim](const RankContext& self) {
      EXPECT(self.engine->Barrier("start").ok());
      self.meet();  // all have left the barrier
      if (self.rank == victim) return self.kill();
      const Status status = Sum(self, 10);
      ExpectLost(self, status, victim);
      EXPECT_CONTAINS(status.message(), "allreduce 'grads' (1 tensor, 'tensor0')");
      EXPECT_EQ(self.engine->Barrier("later").message(), status.message());
      EXPECT_EQ(self.engine->Shutdown().message(), status.message());
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT(elapsed.count() < 20);  // the deadline is 60 s: the death was noticed, not waited out
  }
}

TEST(FailureInTheMiddleOfALargeBufferEndsAllOthers) {
  RunRanks(3, [](const RankContext& self) {
    Gate under_way;
    std::atomic<bool> dead{false};
    std::thread killer([&] {
      under_way.Pass();
      if (self.rank == 2) self.kill();
      dead = self.rank == 2;
    });
    Status status;
    for (int call = 0; status.ok() && !dead; ++call) {
      if (call == 3) under_way.Open();
      status = Sum(self, 50'000);
    }
    under_way.Open();
    killer.join();
    if (self.rank != 2) EXPECT_EQ(CodeOf(status), kUnavailable);
  });
}

TEST(FailureByDeadlineNamesTheMissingRanks) {
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  RunRanks(4, config, [](const RankContext& self) {
    if (self.rank == 1 || self.rank == 2) return;  // never calls
    const Status status = Sum(self, 10);
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(self.rank) + " (host localhost)");
    if (ExpectDeadline(self, status)) {
      EXPECT_CONTAINS(status.message(), "in allreduce 'grads' (1 tensor, 'tensor0') for ranks 1-2");
      EXPECT_CONTAINS(status.message(), "TFDIST_STALL_CHECK_SHUTDOWN_TIME");
    }
    EXPECT_EQ(self.engine->Barrier("later").message(), status.message());
  });
}

TEST(FailureToArriveInTimeIsReportedOnceAndThenForgiven) {
  std::mutex mutex;
  std::vector<std::string> reports;
  Gate reported;
  EngineConfig config = TestConfig();
  config.stall_warning_seconds = 0.01;
  config.on_stall = [&](const std::string& report) {
    // On a slow machine rank 1 reports too, and the start is reported.
    if (report.find("tfdist: stalled: rank 0 ") != 0) return;
    if (report.find("barrier 'slow'") == std::string::npos) return;
    std::lock_guard<std::mutex> lock(mutex);
    reports.push_back(report);
    reported.Open();
  };
  RunRanksOn(FabricsOf(2)[1], config, [&reported](const RankContext& self) {
    if (self.rank == 1) reported.Pass();
    EXPECT(self.engine->Barrier("slow").ok());
  });
  EXPECT_EQ(reports.size(), 1u);
  EXPECT_CONTAINS(reports[0], "rank 0 (host localhost) has waited");
  EXPECT_CONTAINS(reports[0], "in barrier 'slow' for rank 1 (host localhost)");
  EXPECT_CONTAINS(reports[0], "  rank 1 has not called a collective yet");
}

TEST(FailureAfterShutdownSaysSo) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      ExpectInStep(self);
      EXPECT(self.engine->Shutdown().ok());
      const Status status = self.engine->Barrier("late");
      EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kFailedPrecondition));
      EXPECT_CONTAINS(status.message(), "has been shut down");
    });
  }
}

TEST(FailureOfALateRankDoesNotComeFromMessagesThatWereTakenBack) {
  // Rank 0 gives up before rank 1 calls: its buffers are gone, and rank 1 must not read them.
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = 1;
  Gate gave_up;
  RunRanksOn(FabricsOf(2)[0], config, [&gave_up](const RankContext& self) {
    if (self.rank == 1) gave_up.Pass();
    EXPECT_EQ(CodeOf(Sum(self, 1000)), kDeadlineExceeded);
    if (self.rank == 0) gave_up.Open();
  });
}
