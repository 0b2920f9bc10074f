// Windows in mapped memory, and the watch over their processes.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "core/algorithm/window_collective.h"
#include "expect.h"
#include "rank_team.h"
#include "shm/mapped_window.h"
#include "shm/process_watch.h"
#include "socket_team.h"

using tfdist::FusedView;
using tfdist::Host;
using tfdist::HostTopology;
using tfdist::MapWindow;
using tfdist::ProcessWatch;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::Wait;
using tfdist::Window;
using tfdist::WindowCollective;

namespace {

constexpr int64_t kBytes = 64 << 10;

// The ranks are threads of one process, so each maps the memory for itself.
void CheckSharing(const RankContext& self) {
  const tfdist::EngineConfig config = TestConfig();
  const tfdist::Topology& topology = self.communicator->topology();
  Wait wait(config, topology, [] { return std::string("test"); });
  std::unique_ptr<Window> window;
  EXPECT_EQ(MapWindow(kBytes, self.communicator, &wait, &window).message(), "");
  if (window == nullptr) return;
  EXPECT(window->EndedRanks().empty());
  std::vector<float> values(10'000, static_cast<float>(self.rank + 1));
  FusedView view({});
  view.Add(ViewOf(&values));
  const tfdist::Topology host = HostTopology(topology);
  WindowCollective collective(host, window.get(), &wait);
  EXPECT_EQ(collective.Allreduce({}, view, view).message(), "");
  const int others = window->size();
  const int first = topology.cross_size == 1 ? 0 : self.rank % 2;
  float expected = 0;
  for (int r = 0; r < others; ++r) {
    expected += static_cast<float>(topology.cross_size == 1 ? r + 1 : first + 2 * r + 1);
  }
  for (float value : values) EXPECT_EQ(value, expected);
  // The memory must outlive the others' last look.
  EXPECT(self.engine->Barrier("end").ok());
}

}  // namespace

TEST(MappedWindowIsSharedByTheRanksOfAHost) {
  const int before = OpenDescriptors();
  for (int size : kRankCounts) RunRanks(size, CheckSharing);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(MappedWindowThatIsTooLargeIsAnErrorAndNotTheEnd) {
  RunRanksOn(FabricsOf(2)[0], TestConfig(), [](const RankContext& self) {
    const tfdist::EngineConfig config = TestConfig();
    Wait wait(config, self.communicator->topology(), [] { return std::string("test"); });
    std::unique_ptr<Window> window;
    const int64_t bytes = int64_t{1} << 55;  // more than any address space has
    const Status status = MapWindow(bytes, self.communicator, &wait, &window);
    EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInternal));
    EXPECT_CONTAINS(status.message(), self.rank == 0 ? "bytes of shared memory failed"
                                                     : "the first rank of this host could not");
    EXPECT(window == nullptr);
    ExpectInStep(self);
  });
}

TEST(ProcessWatchNoticesWhoHasEnded) {
  int pipes[2];
  EXPECT_EQ(pipe(pipes), 0);
  const pid_t waits = fork();
  if (waits == 0) {
    close(pipes[1]);
    char byte;
    _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1);  // until the parent closes its end
  }
  close(pipes[0]);
  ProcessWatch watch;
  watch.AddNone();
  EXPECT_EQ(watch.Add(getppid()).message(), "");
  EXPECT_EQ(watch.Add(waits).message(), "");
  EXPECT(watch.Ended().empty());
  close(pipes[1]);
  siginfo_t info = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(waits), &info, WEXITED | WNOWAIT), 0);
  EXPECT(watch.Ended() == std::vector<int>{2});  // not yet reaped
  EXPECT_EQ(waitpid(waits, nullptr, 0), waits);
  EXPECT(watch.Ended() == std::vector<int>{2});
}

TEST(ProcessWatchRefusesAProcessThatIsNotThere) {
  ProcessWatch watch;
  const Status status = watch.Add(0x7ffffffe);
  EXPECT_EQ(CodeOf(status), static_cast<int>(StatusCode::kInternal));
  EXPECT_CONTAINS(status.message(), "watching process 2147483646");
}
