// A collective on many tensors as few messages: plans buckets, packs, scales, runs the algorithms,
// unpacks. Checks nothing and agrees on nothing: the engine has done both.
//
// Lives for one call; what it is given outlives it. For one thread.
#ifndef TFDIST_CORE_FUSED_COLLECTIVE_H_
#define TFDIST_CORE_FUSED_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/bucket_plan.h"
#include "core/call.h"
#include "core/collective.h"
#include "core/communicator.h"
#include "core/fusion_buffer.h"
#include "core/header.h"
#include "core/status.h"
#include "core/tensor_view.h"

namespace tfdist {

// Memory that the calls of one engine use in turn.
struct Buffers {
  FusionBuffer fusion;   // tensors side by side
  FusionBuffer scratch;  // what has arrived
  FusionBuffer parts;    // gradients that Adasum combines
  std::vector<int64_t> own_rows;
  std::vector<int64_t> rows;  // here, because a late message may still be written
};

// Makes room for the result for tensor `tensor`, once its shape is known.
using Allocate =
    std::function<Status(int tensor, const std::vector<int64_t>& shape, TensorView* output)>;

class FusedCollective {
 public:
  FusedCollective(const Call& call, Communicator* communicator, Wait* wait, Buffers* buffers);

  // Plans, and reserves all memory: before the ranks agree, so that a lack of it on one rank
  // becomes everybody's error instead of a wait. For allreduce, reducescatter and broadcast.
  Status Prepare();

  // outputs[i] has the shape of tensor i and may be the same memory.
  Status Allreduce(const Agreement& agreement, const std::vector<TensorView>& outputs);

  // outputs[i] has this rank's rows of tensor i (OwnRows); not the same memory.
  Status ReduceScatter(const Agreement& agreement, const std::vector<TensorView>& outputs);

  // Overwrites the tensors.
  Status Broadcast();

  // Concatenates along dimension 0. rows[i * size + r] tells what rank r gave of tensor i.
  Status Allgather(const Allocate& allocate, std::vector<int64_t>* rows);

  // Sends splits[r] rows to rank r. The result has received[r] rows from each rank r in turn.
  Status Alltoall(const std::vector<int64_t>& splits, const Allocate& allocate,
                  std::vector<int64_t>* received);

 private:
  struct Scales;

  Scales ScalesFor(const Agreement& agreement, DType dtype) const;
  double ShareOf(const Agreement& agreement) const;
  Status AllreduceBucket(const Scales& scales, const Bucket& bucket,
                         const std::vector<TensorView>& outputs);
  Status ReduceScatterBucket(const Scales& scales, const Bucket& bucket,
                             const std::vector<TensorView>& outputs);
  Status BroadcastBucket(int root, const Bucket& bucket);
  Status ExchangeRows(const std::vector<int64_t>& own);

  const Call& call_;
  Communicator* const communicator_;
  Buffers* const buffers_;
  Collective collective_;
  std::vector<Bucket> plan_;
};

// The rows of `rows` that rank `rank` of `size` keeps of a reducescatter: [begin, end). The lower
// ranks have one more where they do not divide evenly.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};
RowRange OwnRows(int64_t rows, int rank, int size);

}  // namespace tfdist

#endif  // TFDIST_CORE_FUSED_COLLECTIVE_H_
