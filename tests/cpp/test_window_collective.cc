// A rank that waits in a window for one that will not come.
#include "core/window_collective.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::FusedView;
using tfdist::HostTopology;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Wait;
using tfdist::Window;
using tfdist::WindowCollective;

namespace {

// Rank 1 leaves by `leave`, and rank 0 learns of it long before its deadline.
void CheckLostPeer(const std::string& text,
                   const std::function<void(const RankContext&, Window*)>& leave) {
  RunRanksOn(FabricsOf(2)[0], TestConfig(), [&](const RankContext& self) {
    const tfdist::EngineConfig config = TestConfig();
    const tfdist::Topology& topology = self.communicator->topology();
    Wait wait(config, topology, [] { return std::string("allreduce 'lost'"); });
    std::unique_ptr<Window> window;
    EXPECT(self.communicator->OpenWindow(64 << 10, &wait, &window).ok());
    if (self.rank == 1) return leave(self, window.get());
    std::vector<float> values(10'000, 1.0f);
    FusedView view({});
    view.Add(ViewOf(&values));
    const tfdist::Topology host = HostTopology(topology);
    const Status status = WindowCollective(host, window.get(), &wait).Allreduce({}, view, view);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kUnavailable));
    EXPECT_CONTAINS(status.message(), "rank 0 (host localhost) lost rank 1 (host localhost)");
    EXPECT_CONTAINS(status.message(), text);
    EXPECT_CONTAINS(status.message(), "It was in allreduce 'lost'.");
  });
}

}  // namespace

TEST(WindowWaitEndsWhenAPeersProcessHasEnded) {
  CheckLostPeer(", whose process has ended",
                [](const RankContext& self, Window*) { self.communicator->Kill(); });
}

TEST(WindowWaitEndsWhenAPeerHasGivenUp) {
  CheckLostPeer(", which has given up",
                [](const RankContext&, Window* window) { window->GiveUp(); });
}
