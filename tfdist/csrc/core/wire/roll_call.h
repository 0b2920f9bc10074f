// Which ranks have come to the agreement that this one waits in: asked only in a stall, since an
// agreement of several stages shows a rank no more than its host and its partners of the round.
//
// A rank asks all others once, shortly before it reports. Who waits too, there or in what follows,
// answers at its next look; nobody waits for an answer. For one thread at a time, that of Exchange.
#ifndef TFDIST_CORE_WIRE_ROLL_CALL_H_
#define TFDIST_CORE_WIRE_ROLL_CALL_H_

#include <cstdint>
#include <vector>

#include "core/place/circle.h"

namespace tfdist {

class Communicator;

class RollCall {
 public:
  // An agreement begins, the next of `communicator` by the count of every rank. Its headers go the
  // way of `circle`, which outlives it.
  void Begin(Communicator* communicator, const Circle* circle);

  // A stage of it begins in the memory of this host, which shows who of its ranks has come.
  void BeginInMemory();

  // A stage by messages begins: the headers of this rank's group and of the `held - 1` that follow
  // it are here, and this stage brings those of `radix` times as many.
  void BeginRound(int held, int radix);

  // All headers are here.
  void End() { is_open_ = false; }

  // Whether an agreement is under way, so that Absent and Pending have a meaning.
  bool is_open() const { return is_open_; }

  // Whether a stage of it is, after the first.
  bool is_later_stage() const { return is_open_ && stages_ > 1; }

  // Answers what has come, at each look while this rank waits.
  void Listen();

  // Asks the others where they are, where neither transport nor memory shows it. Of use once in an
  // agreement.
  void Ask();

  // Those that are not known to have come, ascending; where all are, those that this stage waits
  // for. `missing` are the partners of this round that have delivered nothing, as the transport
  // knows it, or the ranks of this host that have not come.
  std::vector<int> Absent(const std::vector<int>& missing) const;

  // Those whose headers are not here yet, ascending; and the leader, where this rank gets those of
  // other hosts from it.
  std::vector<int> Pending(const std::vector<int>& missing) const;

 private:
  void Note(int peer, int64_t note);
  void TellHeldUp();
  bool ShowsAll() const;

  Communicator* communicator_ = nullptr;
  const Circle* circle_ = nullptr;
  bool is_open_ = false;
  int stages_ = 0;
  int64_t number_ = 0;  // of the agreement, from 1 on
  int64_t asked_ = 0;   // the last number that this rank has asked with; 0: none
  int held_ = 0;        // groups; 0: this one's own is on its way
  int radix_ = 0;
  std::vector<int64_t> seen_;  // by rank: the latest agreement that it is known to have come to
  std::vector<int64_t> told_;  // by rank: the latest one that it was told of unasked
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_ROLL_CALL_H_
