// What the calls of this process did and when, on its way to a file: a queue of fixed size and a
// thread that empties it at least every second. Measures nothing itself: call_trace.h does.
//
// Add may be called by any thread, takes no lock and no memory and never waits; where the queue is
// full, records are lost and the file says how many. The rest is thread safe, too.
#ifndef TFDIST_CORE_WATCH_TIMELINE_H_
#define TFDIST_CORE_WATCH_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/watch/call_trace.h"
#include "core/watch/steady_condition.h"
#include "core/watch/trace_event.h"
#include "core/watch/trace_file.h"

namespace tfdist {

class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Makes the file, and refuses a second one. Nothing is recorded yet.
  Status Open(const std::string& path);

  // From now on, after Open; does nothing where it was stopped meanwhile.
  void Start(const TraceSource& source);

  // Writes what is there and closes the file; does nothing where none is open.
  void Stop();

  // What to add to this rank's steady clock so that those of all ranks show the same, also of
  // process sets and after the ranks were counted anew; 0 before the first Start.
  int64_t offset_ns() const { return offset_ns_.load(std::memory_order_relaxed); }

  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  void Add(const TraceRecord& record);

  // What a call has left to the GPU is done now, and somebody has stood still for it for so long;
  // negative: all of the time. `started` is as CallTrace::Started says.
  void AddDevice(TraceRecord started, bool ok, int64_t waited_ns);

  // The ranks are counted anew, and this process goes on as `rank` of `size`.
  void Renumber(int rank, int size);

 private:
  struct Slot {
    std::atomic<uint64_t> turn;  // as Vyukov's bounded queue: who may use it next
    TraceRecord record;
  };

  void Run();
  bool Take(TraceRecord* record);
  void Write(const std::string& text);
  void Flush();

  std::mutex controlling_;  // Open, Start and Stop; guards file_ while no thread writes
  TraceFile file_;
  bool is_open_ = false;
  std::thread writer_;
  std::atomic<bool> recording_{false};
  std::atomic<int64_t> offset_ns_{0};

  std::unique_ptr<Slot[]> slots_;  // made by the first Start, and kept
  std::atomic<uint64_t> head_{0};  // of those who add
  uint64_t tail_ = 0;              // of the writer
  std::atomic<int64_t> lost_{0};

  std::mutex mutex_;  // guards what follows
  SteadyCondition stopping_;
  bool stop_ = false;
  std::string remarks_;  // events that are not records

  // Of the writer.
  TraceSource source_;
  std::set<int> named_;  // process sets whose threads have names
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_TIMELINE_H_
