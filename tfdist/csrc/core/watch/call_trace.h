// What one collective call does, and when: its phases, in the call and in each of its buckets. Told
// to a Timeline when it is over. Not a file, and not a report on waits that last too long.
//
// A phase inside another one pauses it, so that no time counts twice. Where nothing is recorded
// every function returns at once. Takes no lock and no memory. For one thread at a time.
#ifndef TFDIST_CORE_WATCH_CALL_TRACE_H_
#define TFDIST_CORE_WATCH_CALL_TRACE_H_

#include <cstdint>

#include "core/value/bucket_plan.h"
#include "core/value/call.h"
#include "core/value/dtype.h"

namespace tfdist {

class Timeline;

enum class Phase : int { kNone = -1, kWait, kPack, kReduce, kUnpack };
constexpr int kPhases = 4;

// "wait", "pack", ...
const char* NameOf(Phase phase);

struct PhaseTime {
  int64_t first_ns = 0;  // where it began for the first time
  int64_t total_ns = 0;
  int intervals = 0;
};

// A call, or a part of it. Times are those of the steady clock.
struct TraceRecord {
  enum class Kind : int { kCall, kBucket, kDevice };
  static constexpr int kNames = 3;  // of the first tensors
  static constexpr int kNameBytes = 96;

  Kind kind = Kind::kCall;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kFloat32;
  bool mixed = false;   // tensors of several dtypes
  bool failed = false;  // a call that did not end well, or that the ranks did not agree on
  int process_set = 0;
  int bucket = 0;  // its number in the call
  int last_rank =
      -1;  // whom the longest wait was for, by its number among all; -1: nobody, unknown
  int tensors = 0;
  int64_t call = 0;   // the same number on all ranks
  int64_t bytes = 0;  // as they travel
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t met_ns = 0;     // of a call: when all ranks had come; 0: never
  int64_t waited_ns = 0;  // on the GPU: how long somebody stood still for the results
  PhaseTime phases[kPhases];
  char name[kNameBytes] = {};  // both cut off where they are longer
  char tensor_names[kNames][kNameBytes] = {};
};

class CallTrace {
 public:
  CallTrace(Timeline* timeline, int process_set) : timeline_(timeline), process_set_(process_set) {}

  // The engine is this call's now, and no longer.
  void Begin();
  void End();

  // The call meets the other ranks: from here to Met it waits. `number` is the same on all ranks. A
  // turn may have several calls, as a join has. Returns as current().
  CallTrace* Meet(const Call& call, int64_t number);
  void Met(bool agreed);
  void Fail() { call_.failed = true; }

  // Itself, or null where nothing is recorded.
  CallTrace* current() { return is_open_ ? this : nullptr; }

  // The call as it is, for what goes on after it; with no times where nothing is recorded.
  TraceRecord Started() const { return is_open_ ? call_ : TraceRecord(); }

  void BeginBucket(const Call& call, const Bucket& bucket, int number);
  void EndBucket();

  // Returns the phase that it pauses, for the next Enter.
  Phase Enter(Phase phase);

  // Within a phase of waiting, at its end: `rank` came last, by its number among all.
  void Awaited(int rank);

 private:
  TraceRecord& Open() { return in_bucket_ ? bucket_ : call_; }
  void Charge(int64_t now);
  void Close();

  Timeline* const timeline_;
  const int process_set_;
  bool records_ = false;  // in this turn
  bool is_open_ = false;
  bool in_bucket_ = false;
  Phase phase_ = Phase::kNone;
  int64_t since_ns_ = 0;  // when it began, or went on
  int64_t longest_wait_ns_ = 0;
  TraceRecord call_;
  TraceRecord bucket_;
};

// A bucket of a call, while it is alive. `trace` may be null.
class BucketScope {
 public:
  BucketScope(CallTrace* trace, const Call& call, const Bucket& bucket, int number)
      : trace_(trace) {
    if (trace_ != nullptr) trace_->BeginBucket(call, bucket, number);
  }
  ~BucketScope() {
    if (trace_ != nullptr) trace_->EndBucket();
  }
  BucketScope(const BucketScope&) = delete;
  BucketScope& operator=(const BucketScope&) = delete;

 private:
  CallTrace* const trace_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_CALL_TRACE_H_
