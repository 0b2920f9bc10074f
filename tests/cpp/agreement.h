// Ranks that only agree, for tests of the agreement: over messages, or first in the windows of
// their hosts. No engine of theirs takes part.
#ifndef TESTS_CPP_AGREEMENT_H_
#define TESTS_CPP_AGREEMENT_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/agree/header.h"
#include "core/place/window.h"
#include "core/wire/communicator.h"
#include "rank_team.h"

// Counts what a rank sends, and calls `before` with the number of each exchange.
class Observed : public tfdist::Communicator {
 public:
  explicit Observed(tfdist::Communicator* real) : Communicator(real->topology()), real_(real) {}

  tfdist::Status Exchange(const std::vector<tfdist::Transfer>& sends,
                          const std::vector<tfdist::Transfer>& receives,
                          tfdist::Wait* wait) override {
    before(exchanges++);
    messages += static_cast<int>(sends.size());
    return real_->Exchange(sends, receives, wait);
  }
  tfdist::Status CheckPeers(const std::vector<int>& ranks, int* lost) override {
    return real_->CheckPeers(ranks, lost);
  }
  tfdist::Status GiveUp(const tfdist::Status& status, int lost, const tfdist::Wait& wait) override {
    return real_->GiveUp(status, lost, wait);
  }
  void SendNote(int peer, int64_t note) override {
    ++notes;
    real_->SendNote(peer, note);
  }
  bool TakeNote(int* peer, int64_t* note) override { return real_->TakeNote(peer, note); }
  bool HoldsMessageOf(int peer) override { return real_->HoldsMessageOf(peer); }
  tfdist::Status Subset(const std::vector<int>& ranks, int channel, tfdist::Wait* wait,
                        std::unique_ptr<tfdist::Communicator>* subset) override {
    return real_->Subset(ranks, channel, wait, subset);
  }
  tfdist::Status Finalize(bool clean) override { return real_->Finalize(clean); }

  std::function<void(int)> before = [](int) {};
  int exchanges = 0;
  int messages = 0;
  int notes = 0;

 private:
  tfdist::Communicator* const real_;
};

// What a rank agrees with.
class Member {
 public:
  // All ranks make one. `in_windows`: the ranks of a host meet there.
  Member(const RankContext& self, bool in_windows);

  tfdist::Status Agree(const tfdist::Call& call) { return Agree(call, TestConfig()); }
  tfdist::Status Agree(const tfdist::Call& call, const tfdist::EngineConfig& config);

  Observed communicator;
  std::unique_ptr<tfdist::Window> window;
  tfdist::HeaderCheck check;
  tfdist::Agreement agreement;  // the last one
};

tfdist::Call BarrierOf(const std::string& name);

// Runs `body` on hosts with these ranks, in memory and, where they are not too many, over sockets.
void RunBothWays(const std::vector<int>& host_ids, const RankBody& body);

// That nobody but those that are `late` is named in the errors of the others, whoever waits, both
// ways.
void ExpectLateNamed(const std::vector<int>& host_ids, const std::vector<int>& late,
                     bool in_windows);

#endif  // TESTS_CPP_AGREEMENT_H_
