// A collective on many tensors as a few runs of elements: plans buckets, chooses between the window
// of the host and messages, packs, scales, runs the algorithms, unpacks. Checks nothing and agrees
// on nothing: the engine has done both.
//
// Lives for one call; what it is given outlives it. For one thread.
#ifndef TFDIST_CORE_ALGORITHM_FUSED_COLLECTIVE_H_
#define TFDIST_CORE_ALGORITHM_FUSED_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/agree/header.h"
#include "core/algorithm/collective.h"
#include "core/algorithm/fused_view.h"
#include "core/algorithm/fusion_buffer.h"
#include "core/algorithm/host.h"
#include "core/algorithm/plan_cache.h"
#include "core/algorithm/window_collective.h"
#include "core/value/bucket_plan.h"
#include "core/value/call.h"
#include "core/value/export.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "core/watch/call_trace.h"
#include "core/wire/communicator.h"

namespace tfdist {

// Memory that the calls of one engine use in turn, and what they have planned.
struct Buffers {
  FusionBuffer fusion;   // tensors side by side
  FusionBuffer scratch;  // what has arrived
  FusionBuffer parts;    // gradients that Adasum combines
  std::vector<int64_t> own_rows;
  std::vector<int64_t> rows;  // here, because a late message may still be written
  PlanCache plans;
};

// Makes room for the result for tensor `tensor`, once its shape is known.
using Allocate =
    std::function<Status(int tensor, const std::vector<int64_t>& shape, TensorView* output)>;

class FusedCollective {
 public:
  FusedCollective(const Call& call, Communicator* communicator, const Host& host, Wait* wait,
                  Buffers* buffers);

  // The part of a weighted average that is this rank's; negative where all count alike.
  static double ShareOf(const Call& call, const Agreement& agreement, int rank);

  // Plans, and reserves all memory: before the ranks agree, so that a lack of it on one rank
  // becomes everybody's error instead of a wait. Does nothing where no buckets travel.
  Status Prepare();

  // outputs[i] has the shape of tensor i and may be the same memory.
  Status Allreduce(const Agreement& agreement, const std::vector<TensorView>& outputs);

  // outputs[i] has this rank's rows of tensor i (OwnRows); not the same memory.
  Status ReduceScatter(const Agreement& agreement, const std::vector<TensorView>& outputs);

  // outputs[i] has the shape of tensor i and may be the same memory.
  Status Broadcast(int root, const std::vector<TensorView>& outputs);

  // The rows that each rank gives, which is all that Allgather and Alltoall need to know of the
  // others: rows[i * size + r] of tensor i, and received[r] for this rank. `equal` tells whether
  // this rank needs equally many from all, and then whether any rank does.
  Status GatherRows(bool* equal, std::vector<int64_t>* rows);
  Status GatherSplits(const std::vector<int64_t>& splits, std::vector<int64_t>* received);

  // Concatenates along dimension 0. `rows` as gathered.
  Status Allgather(const std::vector<int64_t>& rows, const Allocate& allocate);

  // Sends splits[r] rows to rank r. The result has received[r] rows, as gathered, from each rank r
  // in turn.
  Status Alltoall(const std::vector<int64_t>& splits, const std::vector<int64_t>& received,
                  const Allocate& allocate);

 private:
  struct Arithmetic;
  struct Steps {
    ReduceSpec within;
    ReduceSpec between;
  };

  bool OnOneHost() const { return host_.window != nullptr && host_.peers == nullptr; }
  BucketScope Recorded(const Bucket& bucket) const;
  void Pack(const FusedView& input, char* target) const;
  void Unpack(const FusedView& output, const char* source) const;
  Arithmetic ArithmeticFor(const Agreement& agreement, DType dtype) const;
  Status AllreduceBucket(const Arithmetic& arithmetic, const Bucket& bucket,
                         const std::vector<TensorView>& outputs);
  Status AllreduceMessages(const ReduceSpec& spec, const Bucket& bucket, const FusedView& input,
                           const FusedView& output);
  Steps StepsOf(const ReduceSpec& spec) const;
  Status AllreduceHosts(const ReduceSpec& spec, const FusedView& input, const FusedView& output);
  Status ReduceScatterBucket(const Arithmetic& arithmetic, const Bucket& bucket,
                             const std::vector<TensorView>& outputs);
  Status ReduceScatterHosts(const ReduceSpec& spec, const FusedView& input,
                            const std::vector<int64_t>& offsets, const FusedView& output);
  Status BroadcastBucket(int root, const Bucket& bucket, const std::vector<TensorView>& outputs);
  Status AllgatherTensor(const TensorView& input, const std::vector<int64_t>& bytes, void* output);
  Status ExchangeRows(const std::vector<int64_t>& own);

  const Call& call_;
  Communicator* const communicator_;
  const Host& host_;
  Wait* const wait_;
  Buffers* const buffers_;
  Collective collective_;
  WindowCollective window_;  // where the host has one
  SharedPlan plan_;
  Stores stores_ = Stores::kCached;  // how results are written
};

// The rows of `rows` that rank `rank` of `size` keeps of a reducescatter: [begin, end). The lower
// ranks have one more where they do not divide evenly.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};
TFDIST_API RowRange OwnRows(int64_t rows, int rank, int size);

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_FUSED_COLLECTIVE_H_
