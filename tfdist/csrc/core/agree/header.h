// The check before every collective: do all ranks submit the same? Not the collective itself.
//
// Each rank gets a header of 24 bytes of every other. The ranks of a host show theirs in the window
// that they share (HostMeeting), one of each host exchanges them with those of the other hosts, and
// tells its own. Without windows each rank is a host of its own. Up to kDirectHosts exchange
// directly, more in rounds of three messages each, passed on by others, as in Bruck et al.,
// "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997),
// with radix 4: 9 messages among 64. Which ranks are missing in a stall is asked then (RollCall).
// Only on a difference do full descriptions travel, and only while ranks have joined does one rank
// send them what the others submit.
// For one thread at a time. Owns the memory that headers arrive in: it must outlive a wait that
// has expired, because a late header may still be written there.
#ifndef TFDIST_CORE_AGREE_HEADER_H_
#define TFDIST_CORE_AGREE_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/place/circle.h"
#include "core/place/window.h"
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

constexpr int kDirectHosts = 8;
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

  // From now on the ranks of this host meet in `window`, which outlives this; all ranks of the
  // communicator call it, before their first agreement there.
  void MeetIn(Window* window) { window_ = window; }

  // Timeline::offset_ns.
  void SetClock(int64_t offset_ns) { offset_ns_ = offset_ns; }

  // Calls that were agreed on, or not, so far; alike on all ranks.
  int64_t calls() const { return sequence_; }

 private:
  Status Gather(Communicator* communicator, Wait* wait);
  Status GatherOfHost(Communicator* communicator, Wait* wait);
  Status Disseminate(Communicator* communicator, Wait* wait);
  int LastRank(const Topology& topology) const;
  Status ExplainDifference(const Call& call, Communicator* communicator, Wait* wait);
  Status ShareRecord(const Call& call, Communicator* communicator, Wait* wait,
                     Agreement* agreement);

  uint32_t sequence_ = 0;
  int64_t offset_ns_ = 0;
  Window* window_ = nullptr;
  const Communicator* met_ = nullptr;  // whose ranks are in the circle
  Circle circle_;
  RollCall roll_;
  std::vector<Header> gathered_;     // by position in the circle
  std::vector<int64_t> text_bytes_;  // by rank
  std::vector<std::string> texts_;   // by rank
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_HEADER_H_
