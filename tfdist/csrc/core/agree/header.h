// The check before every collective: do all ranks submit the same? Not the collective itself.
//
// Each rank gets a header of 24 bytes from every other: directly up to kDirectRanks ranks, else in
// rounds of three messages each, passed on by others, as in Bruck et al., "Efficient algorithms for
// all-to-all communications in multiport message-passing systems" (1997), with radix 4: 9 messages
// a rank among 64. Which ranks are missing in a stall is asked then (RollCall). Only on a
// difference do full descriptions travel, and only while ranks have joined does one rank send them
// what the others submit.
// For one thread at a time. Owns the memory that headers arrive in: it must outlive a wait that
// has expired, because a late header may still be written there.
#ifndef TFDIST_CORE_AGREE_HEADER_H_
#define TFDIST_CORE_AGREE_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/value/call.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/roll_call.h"
#include "core/wire/wait.h"

namespace tfdist {

struct Header {
  uint32_t sequence = 0;  // calls made before this one
  uint32_t weight = 0;    // of the call; of a join, the calls it has served so far
  uint64_t hash = 0;      // of the call
  int64_t came_ns = 0;    // when; while a timeline is recorded, by one clock
};

constexpr int kDirectRanks = 8;
constexpr int kRadix = 4;  // with more

// What a rank knows about the others once they agree.
struct Agreement {
  std::vector<char> joined;       // by rank: 1 when it has joined
  std::vector<uint32_t> weights;  // by rank, as in the headers
  std::string record;  // to a rank that has joined: the call of the others (call_record.h)

  bool AnyJoined() const;
  bool AllJoined() const;
};

class HeaderCheck {
 public:
  // Ok when all ranks that have not joined have submitted the same valid call. Else every rank
  // returns the same error, after which the ranks are in step for the next call; or the error of a
  // failed exchange.
  Status Agree(const Call& call, Communicator* communicator, Wait* wait, Agreement* agreement);

  // What to add to this rank's steady clock so that those of all ranks show the same.
  void SetClock(int64_t offset_ns) { offset_ns_ = offset_ns; }

  // Calls that were agreed on, or not, so far; alike on all ranks.
  int64_t calls() const { return sequence_; }

 private:
  Status Gather(Communicator* communicator, Wait* wait);
  int LastRank(const Topology& topology) const;
  Status ExplainDifference(const Call& call, Communicator* communicator, Wait* wait);
  Status ShareRecord(const Call& call, Communicator* communicator, Wait* wait,
                     Agreement* agreement);

  uint32_t sequence_ = 0;
  int64_t offset_ns_ = 0;
  RollCall roll_;
  std::vector<Header> gathered_;     // of this rank, and of those that follow it in a circle
  std::vector<int64_t> text_bytes_;  // by rank
  std::vector<std::string> texts_;   // by rank
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_HEADER_H_
