// The check before every collective: do all ranks submit the same? Not the collective itself.
//
// Each rank sends 16 bytes to every other and looks at what they sent, so that a rank that waits
// knows exactly which ranks are missing. Only on a difference do full descriptions travel, and only
// while ranks have joined does one rank send them what the others submit.
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
#include "core/wire/wait.h"

namespace tfdist {

struct Header {
  uint32_t sequence = 0;  // calls made before this one
  uint32_t weight = 0;    // of the call; of a join, the calls it has served so far
  uint64_t hash = 0;      // of the call
};

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

  // Calls that were agreed on, or not, so far; alike on all ranks.
  int64_t calls() const { return sequence_; }

 private:
  Status ExplainDifference(const Call& call, Communicator* communicator, Wait* wait);
  Status ShareRecord(const Call& call, Communicator* communicator, Wait* wait,
                     Agreement* agreement);

  uint32_t sequence_ = 0;
  Header own_;
  std::vector<Header> headers_;      // by rank
  std::vector<int64_t> text_bytes_;  // by rank
  std::vector<std::string> texts_;   // by rank
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_HEADER_H_
