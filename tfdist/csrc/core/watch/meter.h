// Counts what the collectives of this process cost: calls, bytes, and where their time goes. Not a
// trace: sums only, which another thread may read at any moment.
#ifndef TFDIST_CORE_WATCH_METER_H_
#define TFDIST_CORE_WATCH_METER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "core/value/call.h"

namespace tfdist {

// Of one operation, since init; the survivors of a lost rank go on counting. Times in nanoseconds.
struct CollectiveCost {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> bytes{0};        // of this rank's tensors
  std::atomic<int64_t> total_ns{0};     // inside calls
  std::atomic<int64_t> wait_ns{0};      // until all ranks had come
  std::atomic<int64_t> exchange_ns{0};  // for data of other ranks, once all had come
  std::atomic<int64_t> pack_ns{0};      // copying, scaling and casting of inputs
  std::atomic<int64_t> reduce_ns{0};
  std::atomic<int64_t> unpack_ns{0};  // of results
};

class Meter {
 public:
  CollectiveCost& of(Operation operation) { return costs_[static_cast<size_t>(operation)]; }

  // {"allreduce": {"calls": 2, "bytes": 8, "total_ns": ..., ...}, ...}, without the operations that
  // start, end and divide a job.
  std::string Json() const;

  // For waits that belong to no call: written, never read.
  static CollectiveCost& Nowhere();

 private:
  std::array<CollectiveCost, kOperations> costs_;
};

// One call at a time, from Begin to End.
class MeteredCall {
 public:
  // Ends the one before.
  void Begin(const Call& call, CollectiveCost* cost);

  // Does nothing where none has begun.
  void End();

 private:
  CollectiveCost* cost_ = nullptr;
  int64_t start_ns_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_METER_H_
