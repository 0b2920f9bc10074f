#include "agreement.h"

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
