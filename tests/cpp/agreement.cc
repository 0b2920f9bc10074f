#include "agreement.h"

#include <algorithm>

#include "expect.h"

using tfdist::Call;
using tfdist::EngineConfig;
using tfdist::Status;
using tfdist::Wait;

Member::Member(const RankContext& self, bool in_windows) : communicator(self.communicator) {
  if (!in_windows) return;
  const EngineConfig config = TestConfig();
  Wait wait(config, communicator.topology(), [] { return std::string("init"); });
  EXPECT_EQ(self.communicator->OpenWindow(0, &wait, &window).message(), "");
  check.MeetIn(window.get());
}

Status Member::Agree(const Call& call, const EngineConfig& config) {
  agreement = tfdist::Agreement();
  Wait wait(config, communicator.topology(), [] { return std::string("barrier 'b'"); });
  return check.Agree(call, &communicator, &wait, &agreement);
}

Call BarrierOf(const std::string& name) {
  Call call;
  call.operation = tfdist::Operation::kBarrier;
  call.name = name;
  return call;
}

void RunBothWays(const std::vector<int>& host_ids, const RankBody& body) {
  constexpr size_t kMostBySockets = 17;
  for (bool by_sockets : {false, true}) {
    if (by_sockets && host_ids.size() > kMostBySockets) continue;
    RunRanksOn({host_ids, 0, by_sockets}, TestConfig(), body);
  }
}

void ExpectLateNamed(const std::vector<int>& host_ids, const std::vector<int>& late,
                     bool in_windows) {
  const size_t size = host_ids.size();
  EngineConfig config = TestConfig();
  config.stall_shutdown_seconds = size > 17 ? 4 : 2;  // half of it is for the answers
  std::vector<std::string> messages(size);
  RunBothWays(host_ids, [&](const RankContext& self) {
    Member member(self, in_windows);
    self.meet();
    if (std::count(late.begin(), late.end(), self.rank) == 0) {
      const Status status = member.Agree(BarrierOf("b"), config);
      messages[self.rank] = status.message();
      EXPECT(!status.ok());
    }
    self.meet();
    if (self.rank != 0) return;
    int told = 0;
    for (const std::string& message : messages) {
      if (message.find("has waited") == std::string::npos) continue;
      ++told;
      EXPECT_CONTAINS(message, " for " + tfdist::RankList(late) + " (host localhost).");
    }
    EXPECT(told > 0);
  });
}
