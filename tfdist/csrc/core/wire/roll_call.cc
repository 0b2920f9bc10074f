#include "core/wire/roll_call.h"

#include <algorithm>

#include "core/wire/communicator.h"

namespace tfdist {
namespace {

// A note is twice the number of an agreement, and one more in a question.
int64_t Question(int64_t number) { return 2 * number + 1; }
int64_t Answer(int64_t number) { return 2 * number; }

}  // namespace

void RollCall::Begin(Communicator* communicator, const Circle* circle) {
  communicator_ = communicator;
  circle_ = circle;
  seen_.resize(static_cast<size_t>(communicator->size()));
  told_.resize(seen_.size());
  ++number_;
  is_open_ = true;
  stages_ = 0;
}

void RollCall::BeginInMemory() {
  ++stages_;
  held_ = 0;
}

void RollCall::BeginRound(int held, int radix) {
  ++stages_;
  held_ = held;
  radix_ = radix;
}

void RollCall::Listen() {
  int peer = 0;
  int64_t note = 0;
  while (communicator_->TakeNote(&peer, &note)) Note(peer, note);
  if (is_open_) TellHeldUp();
}

// Who has sent a message of a later round is here, and its question may be behind that message.
void RollCall::TellHeldUp() {
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    if (!communicator_->HoldsMessageOf(peer)) continue;
    seen_[peer] = number_;
    if (std::max(asked_, told_[peer]) < number_) communicator_->SendNote(peer, Answer(number_));
    told_[peer] = number_;
  }
}

// A question says where its sender is, too. Whoever has asked later than that has answered.
void RollCall::Note(int peer, int64_t note) {
  const int64_t number = note / 2;
  seen_[peer] = std::max(seen_[peer], number);
  if (note % 2 != 0 && asked_ < number) communicator_->SendNote(peer, Answer(number_));
}

// Whether every rank that has not come is one that this stage waits for.
bool RollCall::ShowsAll() const {
  const int groups = circle_->groups();
  if (held_ == 0) return groups == 1;
  return held_ == 1 && radix_ >= groups && groups == communicator_->size();
}

void RollCall::Ask() {
  if (ShowsAll()) return;
  asked_ = number_;
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    if (peer != communicator_->rank()) communicator_->SendNote(peer, Question(number_));
  }
}

std::vector<int> RollCall::Absent(const std::vector<int>& missing) const {
  std::vector<int> absent;
  for (int r : Pending(missing)) {
    const bool shows = held_ == 0 && circle_->DistanceOf(r) == 0;
    const bool has_come =
        shows ? std::count(missing.begin(), missing.end(), r) == 0 : seen_[r] >= number_;
    if (!has_come) absent.push_back(r);
  }
  if (!absent.empty()) return absent;
  return missing.empty() && held_ == 0 ? std::vector<int>{circle_->LeaderOf(0)} : missing;
}

std::vector<int> RollCall::Pending(const std::vector<int>& missing) const {
  const auto is_missing = [&](int r) { return std::count(missing.begin(), missing.end(), r) > 0; };
  std::vector<int> pending;
  for (int r = 0; r < communicator_->size(); ++r) {
    const int distance = circle_->DistanceOf(r);
    bool is_here = distance < held_;
    if (held_ == 0 && distance == 0) {
      const bool brings = circle_->groups() > 1 && r == circle_->LeaderOf(0);
      is_here = r == communicator_->rank() || (!brings && !is_missing(r));
    } else if (held_ > 0 && distance >= held_ && distance < held_ * radix_) {
      // Some partner of this round brings it.
      is_here = !is_missing(circle_->LeaderOf(distance / held_ * held_));
    }
    if (!is_here) pending.push_back(r);
  }
  return pending;
}

}  // namespace tfdist
