#include "core/wire/roll_call.h"

#include <algorithm>

#include "core/wire/communicator.h"

namespace tfdist {
namespace {

// A note is twice the number of an agreement, and one more in a question.
int64_t Question(int64_t number) { return 2 * number + 1; }
int64_t Answer(int64_t number) { return 2 * number; }

}  // namespace

void RollCall::Begin(Communicator* communicator) {
  communicator_ = communicator;
  seen_.resize(static_cast<size_t>(communicator->size()));
  told_.resize(seen_.size());
  ++number_;
  is_open_ = true;
  held_ = 1;
}

void RollCall::BeginRound(int held, int radix) {
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

void RollCall::Ask() {
  if (held_ == 1 && radix_ >= communicator_->size()) return;  // all others are partners
  asked_ = number_;
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    if (peer != communicator_->rank()) communicator_->SendNote(peer, Question(number_));
  }
}

std::vector<int> RollCall::Absent(const std::vector<int>& missing) const {
  const int size = communicator_->size();
  std::vector<int> absent;
  for (int r = 0; r < size; ++r) {
    const int distance = (r - communicator_->rank() + size) % size;
    bool has_come = distance < held_ || seen_[r] >= number_;
    if (distance >= held_ && distance < held_ * radix_) {  // some partner of this round brings it
      const int partner = (communicator_->rank() + distance / held_ * held_) % size;
      has_come = has_come || std::count(missing.begin(), missing.end(), partner) == 0;
    }
    if (!has_come) absent.push_back(r);
  }
  return absent;
}

}  // namespace tfdist
