// A rank that waits in a window for one that will not come.
#include <chrono>

#include "core/algorithm/window_collective.h"
#include "expect.h"
#include "gate.h"
#include "rank_team.h"

using tfdist::EngineConfig;
using tfdist::FusedView;
using tfdist::HostTopology;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Wait;
using tfdist::Window;
using tfdist::WindowCollective;

namespace {

// An allreduce in the window of this rank's host.
Status ReduceInWindow(const RankContext& self, Window* window, Wait* wait) {
  std::vector<float> values(10'000, 1.0f);
  FusedView view({});
  view.Add(ViewOf(&values));
  const tfdist::Topology host = HostTopology(self.communicator->topology());
  return WindowCollective(host, window, wait).Allreduce({}, view, view);
}

// Rank 1 leaves by `leave`, and rank 0 learns of it long before its deadline.
void CheckLostPeer(const std::string& text,
                   const std::function<void(const RankContext&, Window*)>& leave) {
  RunRanksOn(FabricsOf(2)[0], TestConfig(), [&](const RankContext& self) {
    const EngineConfig config = TestConfig();
    const tfdist::Topology& topology = self.communicator->topology();
    Wait wait(config, topology, [] { return std::string("allreduce 'lost'"); });
    std::unique_ptr<Window> window;
    EXPECT(self.communicator->OpenWindow(64 << 10, &wait, &window).ok());
    if (self.rank == 1) return leave(self, window.get());
    const Status status = ReduceInWindow(self, window.get(), &wait);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
    EXPECT_CONTAINS(status.message(), "rank 0 (host localhost) lost rank 1 (host localhost)");
    EXPECT_CONTAINS(status.message(), text);
    EXPECT_CONTAINS(status.message(), "It was in allreduce 'lost'.");
  });
}

}  // namespace

TEST(WindowWaitEndsWhenAPeersProcessHasEnded) {
  CheckLostPeer(", whose process has ended", [](const RankContext& self, Window*) { self.kill(); });
}

TEST(WindowWaitEndsWhenAPeerHasGivenUp) {
  CheckLostPeer(", which has failed", [](const RankContext&, Window* window) { window->GiveUp(); });
}

TEST(WindowWaitNamesTheMissingRankOfItsHostByItsNumberAmongAll) {
  RunRanksOn({{0, 0, 1, 1}, 0}, TestConfig(), [](const RankContext& self) {
    EngineConfig config = TestConfig();
    const auto context = [] { return std::string("allreduce"); };
    Wait opening(config, self.communicator->topology(), context);
    std::unique_ptr<Window> window;
    EXPECT(self.communicator->OpenWindow(64 << 10, &opening, &window).ok());
    if (self.rank != 2) return;  // rank 3 does not come
    config.stall_shutdown_seconds = 0.2;
    Wait wait(config, self.communicator->topology(), context);
    const Status status = ReduceInWindow(self, window.get(), &wait);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kDeadlineExceeded));
    EXPECT_CONTAINS(status.message(), "in allreduce for rank 3 (host localhost)");
  });
}

// Rank 1 comes when rank 0 complains, at a third of the deadline, and rank 2 never does.
TEST(WindowWaitHasOneDeadlineForAllRanksThatAreLate) {
  Gate complained;
  RunRanksOn({{0, 0, 0}, 0}, TestConfig(), [&complained](const RankContext& self) {
    EngineConfig config = TestConfig();
    const auto context = [] { return std::string("allreduce"); };
    Wait opening(config, self.communicator->topology(), context);
    std::unique_ptr<Window> window;
    EXPECT(self.communicator->OpenWindow(64 << 10, &opening, &window).ok());
    self.meet();
    if (self.rank == 2) return;
    config.stall_warning_seconds = 1;
    config.stall_shutdown_seconds = 3;
    const auto start = std::chrono::steady_clock::now();
    std::chrono::duration<double> rank_1_came{0};
    config.on_stall = [&](const std::string&) {
      if (rank_1_came.count() == 0) rank_1_came = std::chrono::steady_clock::now() - start;
      complained.Open();
    };
    Wait wait(config, self.communicator->topology(), context);
    if (self.rank == 1) {
      complained.Pass();
      EXPECT(!ReduceInWindow(self, window.get(), &wait).ok());
      return;
    }
    const Status status = ReduceInWindow(self, window.get(), &wait);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    EXPECT_CONTAINS(status.message(), "in allreduce for rank 2 (host localhost)");
    EXPECT(rank_1_came.count() > 0);
    EXPECT(waited <
           rank_1_came + std::chrono::seconds(3));  // so long if the clock had started again
  });
}
