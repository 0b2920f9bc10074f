// What a rank that waits too long says of those it waits for. Pure: text from values.
#ifndef TFDIST_CORE_WATCH_STALL_REPORT_H_
#define TFDIST_CORE_WATCH_STALL_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/place/activity.h"

namespace tfdist {

struct MissingRank {
  int rank = 0;  // its number among all
  std::string host;
  int64_t process = 0;   // that prints its stacks on SIGUSR1; 0: none does
  bool is_here = false;  // on the host of the rank that waits
  bool has_ended = false;
  Activity activity;  // kUnknown where it cannot be seen
};

struct Stall {
  std::string waiter;     // "rank 0 (host a)"
  std::string title;      // "allreduce 'grads' (1 tensor, 'w')"
  std::string missing;    // "rank 1 (host a), rank 4 (host b)"
  Activity own;           // the call of the rank that waits; kUnknown outside of one
  bool all_came = false;  // to that call: the wait is for what follows
  Activity before;        // the last call to which all came, at `since_ns`; call 0: none yet
  int64_t now_ns = 0;
  double waited_seconds = 0;
  double limit_seconds = 0;
  std::vector<MissingRank> ranks;
};

// To be read while the rank goes on waiting.
std::string StallReport(const Stall& stall);

// The same, of the rank that has given up.
std::string StallError(const Stall& stall);

// One line, of a stall that was reported: `missing` came to `title` after all.
std::string StallOver(const std::string& missing, const std::string& title, double waited_seconds);

// "rank 1 finished allreduce 'grads' (call 12) 61 s ago. Its Python stacks: kill -USR1 71 on host
// a". Of a rank that cannot be seen: what it has sent to this one.
std::string LastSeen(const MissingRank& missing, const Stall& stall);

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_STALL_REPORT_H_
