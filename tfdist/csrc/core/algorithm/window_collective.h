// The algorithms for ranks that share a window: each reads what the others show, with no message.
// Checks nothing: all ranks must call the same with matching arguments (header.h sees to that).
//
// Data goes through in chunks that stay in cache. A chunk is posted, reduced and collected in three
// steps, and the steps of neighbouring chunks overlap, so that a rank seldom waits for the others.
// Owns nothing; window, wait and topology outlive it. For one thread.
#ifndef TFDIST_CORE_ALGORITHM_WINDOW_COLLECTIVE_H_
#define TFDIST_CORE_ALGORITHM_WINDOW_COLLECTIVE_H_

#include <cstdint>
#include <vector>

#include "core/algorithm/fused_view.h"
#include "core/place/topology.h"
#include "core/place/window.h"
#include "core/value/reduction.h"
#include "core/value/status.h"
#include "core/wire/wait.h"

namespace tfdist {

class WindowCollective {
 public:
  WindowCollective(const Topology& topology, Window* window, Wait* wait)
      : topology_(topology), window_(window), wait_(wait) {}

  // `output` has as many elements as `input` and may be the same memory. Results have the same bits
  // on every rank.
  Status Allreduce(const ReduceSpec& spec, const FusedView& input, const FusedView& output);

  // As Allreduce, and each rank keeps its own elements: rank r those from offsets[r] up to
  // offsets[r + 1]. `output` has these alone, in memory that `input` has not.
  Status ReduceScatter(const ReduceSpec& spec, const FusedView& input,
                       const std::vector<int64_t>& offsets, const FusedView& output);

  // `output` gets the elements of all ranks: those of rank r from offsets[r] on. `input` has this
  // rank's, also where they are in `output`.
  Status Allgather(const FusedView& input, const std::vector<int64_t>& offsets,
                   const FusedView& output);

  // Overwrites `tensors` with those of `root`.
  Status Broadcast(int root, const FusedView& tensors);

 private:
  struct Slice;
  struct Stream;

  Status AllreduceSmall(const ReduceSpec& spec, const FusedView& input, const FusedView& output);
  Status Run(const Stream& stream);
  Status Post(const Stream& stream, int64_t index);
  void Pack(const Stream& stream, int64_t index, uint64_t chunk);
  Status Reduce(const Stream& stream, int64_t index);
  Status Collect(const Stream& stream, int64_t index);
  void ReduceSlice(const Stream& stream, uint64_t chunk, const Slice& own);
  int FirstLate(Window::Stage stage, uint64_t chunks, int rank) const;
  Status Await(Window::Stage stage, uint64_t chunks);
  Status CheckPeers() const;
  void Publish(Window::Stage stage, uint64_t chunks);

  const Topology& topology_;
  Window* const window_;
  Wait* const wait_;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_WINDOW_COLLECTIVE_H_
