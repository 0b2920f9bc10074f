// Runs collectives over one communicator: ordered, checked on every call, bounded in time.
//
// Every call first compares a 16-byte header with all ranks (sequence number and hash of what was
// submitted). Where the headers differ, full descriptions are gathered and every rank returns the
// same kFailedPrecondition that names the tensor and what each rank submitted; the ranks are then
// in step again and the engine stays usable. Calls run on the caller's thread, one at a time.
// A lost peer or a passed deadline leaves the communicator in an unknown state: that call and all
// later ones return the error.
#ifndef TFDIST_CORE_ENGINE_H_
#define TFDIST_CORE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/bucket_plan.h"
#include "core/call.h"
#include "core/communicator.h"
#include "core/engine_config.h"
#include "core/fusion_buffer.h"
#include "core/header.h"
#include "core/reduction.h"
#include "core/status.h"
#include "core/tensor_view.h"

namespace tfdist {

struct AllreduceOptions {
  std::string name;                       // what the errors call this collective
  std::vector<std::string> tensor_names;  // one a tensor
  Reduction reduction = Reduction::kSum;
  Compression compression = Compression::kNone;
  double prescale = 1.0;   // multiplies each input before the reduction (floating dtypes only)
  double postscale = 1.0;  // multiplies the result
};

struct BroadcastOptions {
  std::string name;
  std::vector<std::string> tensor_names;
  int root = 0;
};

class Engine {
 public:
  Engine(std::unique_ptr<Communicator> communicator, const EngineConfig& config);

  const Communicator& communicator() const { return *communicator_; }

  // Time spent inside calls so far, waiting for peers included. May be read during a call.
  double communication_seconds() const { return static_cast<double>(busy_ns_) * 1e-9; }

  // outputs[i] has dtype and shape of inputs[i] and may be the same memory.
  // kAverage is the sum divided by the number of ranks; floating dtypes only.
  Status Allreduce(const AllreduceOptions& options, const std::vector<TensorView>& inputs,
                   const std::vector<TensorView>& outputs);

  // Overwrites `tensors` with those of rank `options.root`.
  Status Broadcast(const BroadcastOptions& options, const std::vector<TensorView>& tensors);

  // Concatenates along dimension 0, which may differ by rank; a scalar counts as shape [1].
  // `allocate` is called once, when the shape of the result is known.
  using Allocate = std::function<Status(const std::vector<int64_t>& shape, TensorView* output)>;
  Status Allgather(const std::string& name, const TensorView& input, const Allocate& allocate);

  Status Barrier(const std::string& name);

  // Tells the peers that this rank is done and waits until all are. A peer that is still in
  // another collective gets kFailedPrecondition there, and so does this call. After success the
  // transport is closed and every later call fails.
  Status Shutdown();

 private:
  // How one bucket is scaled around its reduction.
  struct BucketScale {
    Scale before_rounding;  // in the accumulator
    double unpack = 1;      // on the way out of a compressed bucket
  };

  Status Agree(const Call& call, Wait* wait);
  Status Keep(const Status& status);
  Status ReserveBuffers(const std::vector<Bucket>& plan, const std::vector<int64_t>& bytes);
  BucketScale ScaleOf(const AllreduceOptions& options, bool compressed) const;
  Status ReduceBucket(const AllreduceOptions& options, const Bucket& bucket,
                      const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs,
                      Wait* wait);
  Status BroadcastBucket(int root, const Bucket& bucket, const std::vector<TensorView>& tensors,
                         Wait* wait);
  Status GatherRows(const TensorView& input, const Allocate& allocate, Wait* wait);

  const std::unique_ptr<Communicator> communicator_;
  const EngineConfig config_;
  std::atomic<int64_t> busy_ns_{0};
  std::mutex mutex_;  // one call at a time; guards all below
  Status end_;        // not ok: why no further call can run
  HeaderCheck header_check_;
  FusionBuffer fusion_;
  FusionBuffer scratch_;
  int64_t own_rows_ = 0;       // rows of the tensor being gathered
  std::vector<int64_t> rows_;  // by rank; a member because a late message may still be written
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_H_
