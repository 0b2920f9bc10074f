// Which ranks have come to the agreement that this one waits in: asked only in a stall, since an
// agreement of several rounds shows a rank no more than its partners of the round.
//
// A rank asks all others once, shortly before it reports. Who waits too, there or in what follows,
// answers at its next look; nobody waits for an answer. For one thread at a time, that of Exchange.
#ifndef TFDIST_CORE_WIRE_ROLL_CALL_H_
#define TFDIST_CORE_WIRE_ROLL_CALL_H_

#include <cstdint>
#include <vector>

namespace tfdist {

class Communicator;

class RollCall {
 public:
  // An agreement begins, the next of `communicator` by the count of every rank.
  void Begin(Communicator* communicator);

  // A round of it begins: the headers of this rank and of the `held - 1` that follow it are here,
  // and this round brings those of `radix` times as many.
  void BeginRound(int held, int radix);

  // All headers are here.
  void End() { is_open_ = false; }

  // Whether an agreement is under way, so that Absent has a meaning.
  bool is_open() const { return is_open_; }

  // Whether a round of it is, after the first.
  bool is_later_round() const { return is_open_ && held_ > 1; }

  // Answers what has come, at each look while this rank waits.
  void Listen();

  // Asks the others where they are, where the transport does not see it. Of use once in an
  // agreement.
  void Ask();

  // Those that are not known to have come, ascending. `missing` are the partners of this round that
  // have delivered nothing, as the transport knows it.
  std::vector<int> Absent(const std::vector<int>& missing) const;

 private:
  void Note(int peer, int64_t note);
  void TellHeldUp();

  Communicator* communicator_ = nullptr;
  bool is_open_ = false;
  int64_t number_ = 0;  // of the agreement, from 1 on
  int64_t asked_ = 0;   // the last number that this rank has asked with; 0: none
  int held_ = 0;
  int radix_ = 0;
  std::vector<int64_t> seen_;  // by rank: the latest agreement that it is known to have come to
  std::vector<int64_t> told_;  // by rank: the latest one that it was told of unasked
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_ROLL_CALL_H_
