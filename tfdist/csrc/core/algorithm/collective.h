// The algorithms: collectives on contiguous memory, built on Communicator::Exchange alone.
// Checks nothing: all ranks must call the same with matching arguments (header.h sees to that).
//
// Owns nothing; communicator, wait and scratch outlive it. For one thread. Counts and sizes are
// int64 throughout. The first error of an exchange is returned and leaves the output undefined.
#ifndef TFDIST_CORE_ALGORITHM_COLLECTIVE_H_
#define TFDIST_CORE_ALGORITHM_COLLECTIVE_H_

#include <cstdint>
#include <vector>

#include "core/algorithm/adasum.h"
#include "core/algorithm/fusion_buffer.h"
#include "core/value/reduction.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"

namespace tfdist {

class Collective {
 public:
  // Bytes of scratch memory that a reduction takes at most, whatever the size of the buffer.
  static int64_t ScratchBytes(int size);

  // Bytes of memory that Adasum takes for `count` elements of that many tensors.
  static int64_t AdasumBytes(DType dtype, int64_t count, int64_t tensors, int size);

  Collective(Communicator* communicator, Wait* wait, FusionBuffer* scratch)
      : communicator_(communicator), wait_(wait), scratch_(scratch) {}

  // Reduces `count` elements; `output` may be `input`. Results have the same bits on every rank.
  Status Allreduce(const ReduceSpec& spec, const void* input, int64_t count, void* output);

  // `output` gets the parts of all ranks in rank order; part r has bytes[r] bytes.
  Status Allgather(const void* input, const std::vector<int64_t>& bytes, void* output);

  // As Allreduce, and each rank keeps its own elements of the result: rank r those from
  // offsets[r] up to offsets[r + 1]. `output` may be where they are in `input`.
  Status ReduceScatter(const ReduceSpec& spec, const void* input,
                       const std::vector<int64_t>& offsets, void* output);

  // Reduces tensors that lie side by side, in place, each by Adasum (adasum.h) over all ranks.
  // tensor_counts has their elements. `parts` gets what is folded: AdasumBytes.
  Status Adasum(DType dtype, const std::vector<int64_t>& tensor_counts, void* data,
                FusionBuffer* parts);

  // Gives rank r the next send_bytes[r] bytes of `input`; `output` gets receive_bytes[r] bytes from
  // each rank r in turn.
  Status Alltoall(const void* input, const std::vector<int64_t>& send_bytes, void* output,
                  const std::vector<int64_t>& receive_bytes);

  // Overwrites `data` with that of `root`.
  Status Broadcast(int root, void* data, int64_t bytes);

 private:
  struct Segment;

  Status AllreduceSmall(const ReduceSpec& spec, const void* input, int64_t count, void* output);
  Status AllreduceLarge(const ReduceSpec& spec, const char* input, int64_t count, char* output);
  void ScatterSegment(const Segment& segment, const char* input);
  void GatherSegment(const Segment& segment, char* output);
  void ReduceParts(const ReduceSpec& spec, const std::vector<const void*>& parts, int64_t count,
                   void* output);
  void ReduceSegment(const ReduceSpec& spec, const Segment& segment, const char* input,
                     char* output);
  Status FoldParts(DType type, const std::vector<int64_t>& bounds, int64_t own, char* parts,
                   AdasumProducts* products);
  Status BroadcastTree(int root, void* data, int64_t bytes);
  Status BroadcastLarge(int root, char* data, int64_t bytes);
  Status Flush();

  Communicator* const communicator_;
  Wait* const wait_;
  FusionBuffer* const scratch_;
  std::vector<Transfer> sends_;
  std::vector<Transfer> receives_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_COLLECTIVE_H_
