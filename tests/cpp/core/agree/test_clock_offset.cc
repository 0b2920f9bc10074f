// Clocks of ranks that are apart by known amounts: what is measured is right within half of a round
// trip, whatever the round trips are.
#include <string>

#include "core/agree/clock_offset.h"
#include "core/watch/steady_clock.h"
#include "core/wire/wait.h"
#include "expect.h"
#include "rank_team.h"

using tfdist::ClockOffset;
using tfdist::ClockProbe;
using tfdist::SteadyNs;

namespace {

constexpr int64_t kUnixAtZero = 1'700'000'000'000'000'000;

// How far the clock of a rank is ahead: by seconds, more and less, and not by the same.
int64_t AheadNs(int rank) { return (rank % 2 == 0 ? rank : -rank) * int64_t{1'234'567'891}; }

}  // namespace

TEST(ClockOffsetIsThatOfRankZeroWithinHalfARoundTrip) {
  for (int size : kRankCounts) {
    RunRanks(size, [](const RankContext& self) {
      const tfdist::EngineConfig config = TestConfig();
      tfdist::Wait wait(config, self.communicator->topology(), [] { return std::string("test"); });
      const auto clock = [&self] { return SteadyNs() + AheadNs(self.rank); };
      // Only that of rank 0 counts.
      const int64_t unix_at_zero = self.rank == 0 ? kUnixAtZero : 7;
      ClockProbe probe;
      ClockOffset offset;
      EXPECT_EQ(probe.Measure(self.communicator, &wait, clock, unix_at_zero, &offset).message(),
                "");
      const int64_t error = offset.to_unix_ns - (kUnixAtZero - AheadNs(self.rank));
      EXPECT(2 * error <= offset.round_trip_ns + 1);
      EXPECT(-2 * error <= offset.round_trip_ns + 1);
      EXPECT_EQ(offset.round_trip_ns == 0, self.rank == 0);
      ExpectInStep(self);
    });
  }
}

TEST(ClockOffsetOfALostRankIsAnError) {
  RunRanksOn({{0, 0, 0}, 0}, TestConfig(), [](const RankContext& self) {
    if (self.rank == 1) return self.kill();
    const tfdist::EngineConfig config = TestConfig();
    tfdist::Wait wait(config, self.communicator->topology(), [] { return std::string("test"); });
    ClockProbe probe;
    ClockOffset offset;
    const tfdist::Status status = probe.Measure(self.communicator, &wait, SteadyNs, 0, &offset);
    EXPECT_EQ(CodeOf(status), static_cast<int>(tfdist::StatusCode::kUnavailable));
    EXPECT_CONTAINS(status.message(), "rank 1");
  });
}

TEST(UnixTimeIsThatOfTheCalendar) {
  constexpr int64_t kYear2020 = 1'577'836'800'000'000'000;
  EXPECT(SteadyNs() + tfdist::UnixNsAtZero() > kYear2020);
}
