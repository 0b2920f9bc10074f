// What is recorded, as events of the Chrome trace format (JSON objects). Pure.
//
// A process of the trace is a rank. A thread is a process set, and another one has what its calls
// leave to the GPU. Times are microseconds of the rank's steady clock.
#ifndef TFDIST_CORE_WATCH_TRACE_EVENT_H_
#define TFDIST_CORE_WATCH_TRACE_EVENT_H_

#include <cstdint>
#include <string>

#include "core/watch/call_trace.h"
#include "core/watch/steady_clock.h"

namespace tfdist {

// Where a rank's events come from.
struct TraceSource {
  int rank = 0;
  int size = 1;
  std::string host;
  ClockOffset clock;
  bool mark_cycles = false;  // an instant where all ranks have come to a call
};

// Each appends events to `text`, with commas between all that are there.

// Who the rank is, and how its clock stands to that of rank 0.
void AppendSource(const TraceSource& source, std::string* text);

// The names of the threads of a process set.
void AppendThreads(int rank, int process_set, std::string* text);

void AppendRecord(const TraceSource& source, const TraceRecord& record, std::string* text);

// From here on this process is rank `rank` of `size`.
void AppendRenumbering(int pid, int rank, int size, int64_t now_ns, std::string* text);

// Here `records` were lost, since they came faster than they are written.
void AppendLoss(int pid, int64_t records, int64_t now_ns, std::string* text);

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_TRACE_EVENT_H_
