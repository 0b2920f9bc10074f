#include "core/algorithm/window_collective.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "core/algorithm/phase_scope.h"

namespace tfdist {
namespace {

// Up to here every rank reduces everything, which takes one meeting instead of two.
constexpr int64_t kSmallBytes = 16 << 10;

// What is reduced at a time: the operands stay in the first-level cache.
constexpr int64_t kBlockElements = 2048;
constexpr int64_t kBlockBytes = kBlockElements * static_cast<int64_t>(sizeof(double));

// Slices begin where vector instructions like it.
constexpr int64_t kSliceAlignment = 16;

// Looks at a counter before the thread gives way.
constexpr int kLooks = 4;

// Pauses between two looks at the peers' processes, which cost a system call.
constexpr int kPausesPerCheck = 64;

// Elements of the rank that has most.
int64_t LongestPart(const std::vector<int64_t>& offsets) {
  int64_t longest = 0;
  for (size_t r = 1; r < offsets.size(); ++r) {
    longest = std::max(longest, offsets[r] - offsets[r - 1]);
  }
  return longest;
}

}  // namespace

// Elements of one rank in one chunk.
struct WindowCollective::Slice {
  int64_t begin;  // among all elements
  int64_t count;
  int64_t position;  // in the slot where they are posted
};

// A collective, as the chunks that it takes.
struct WindowCollective::Stream {
  const ReduceSpec* spec;  // null: nothing is reduced
  const FusedView* input;
  const FusedView* output;
  const std::vector<int64_t>* offsets;  // first element of each rank; null: each chunk is shared
  bool collects;                        // results go to every rank
  int size;
  int64_t step;  // elements of a chunk, or of each rank's part of a chunk if there are offsets
  int64_t chunks;
  uint64_t first;  // number of the first chunk in the window

  int64_t element_bytes() const { return SizeOf(input->wire()); }

  Slice Of(int64_t index, int rank) const {
    if (offsets == nullptr) {
      const int64_t begin = index * step;
      const int64_t count = std::min(step, input->count() - begin);
      const auto lower = [&](int r) {
        return r == size ? count : count * r / size / kSliceAlignment * kSliceAlignment;
      };
      return {begin + lower(rank), lower(rank + 1) - lower(rank), lower(rank)};
    }
    const int64_t begin = (*offsets)[rank] + index * step;
    const int64_t count = std::clamp<int64_t>((*offsets)[rank + 1] - begin, 0, step);
    return {begin, count, spec == nullptr ? 0 : rank * step};
  }
};

Status WindowCollective::Allreduce(const ReduceSpec& spec, const FusedView& input,
                                   const FusedView& output) {
  const int64_t element_bytes = SizeOf(input.wire());
  if (input.count() * element_bytes <= std::min(kSmallBytes, window_->chunk_bytes())) {
    return AllreduceSmall(spec, input, output);
  }
  const int64_t step = window_->chunk_bytes() / element_bytes;
  const int64_t chunks = (input.count() + step - 1) / step;
  return Run({&spec, &input, &output, nullptr, true, window_->size(), step, chunks,
              window_->next_chunk()});
}

Status WindowCollective::AllreduceSmall(const ReduceSpec& spec, const FusedView& input,
                                        const FusedView& output) {
  const int64_t count = input.count();
  if (count == 0) return Status::Ok();
  const uint64_t chunk = window_->next_chunk();
  if (chunk >= Window::kSlots) {
    TFDIST_RETURN_IF_ERROR(Await(Window::kDone, chunk - Window::kSlots + 1));
  }
  {
    const PhaseScope scope(wait_, Phase::kPack);
    input.Copy(0, count, window_->posted(window_->rank(), chunk));
  }
  Publish(Window::kPosted, chunk + 1);
  TFDIST_RETURN_IF_ERROR(Await(Window::kPosted, chunk + 1));
  std::vector<const void*> parts;
  for (int r = 0; r < window_->size(); ++r) parts.push_back(window_->posted(r, chunk));
  alignas(64) char result[kSmallBytes];
  {
    const PhaseScope scope(wait_, Phase::kReduce);
    tfdist::Reduce(spec, parts, count, result);
  }
  {
    const PhaseScope scope(wait_, Phase::kUnpack);
    output.Write(0, count, result);
  }
  Publish(Window::kReduced, chunk + 1);
  Publish(Window::kDone, chunk + 1);
  window_->Advance(1);
  return Status::Ok();
}

Status WindowCollective::ReduceScatter(const ReduceSpec& spec, const FusedView& input,
                                       const std::vector<int64_t>& offsets,
                                       const FusedView& output) {
  const int size = window_->size();
  const int64_t step = window_->chunk_bytes() / SizeOf(input.wire()) / size;
  const int64_t chunks = (LongestPart(offsets) + step - 1) / step;
  return Run({&spec, &input, &output, &offsets, false, size, step, chunks, window_->next_chunk()});
}

Status WindowCollective::Allgather(const FusedView& input, const std::vector<int64_t>& offsets,
                                   const FusedView& output) {
  const int size = window_->size();
  const int64_t step = window_->chunk_bytes() / SizeOf(output.wire());
  const int64_t chunks = (LongestPart(offsets) + step - 1) / step;
  return Run({nullptr, &input, &output, &offsets, true, size, step, chunks, window_->next_chunk()});
}

Status WindowCollective::Broadcast(int root, const FusedView& tensors) {
  std::vector<int64_t> offsets;
  for (int r = 0; r <= window_->size(); ++r) offsets.push_back(r <= root ? 0 : tensors.count());
  return Allgather(tensors, offsets, tensors);
}

// Chunks are posted two ahead of what is collected, so a slot is free again when its turn comes.
Status WindowCollective::Run(const Stream& stream) {
  for (int64_t turn = 0; turn < stream.chunks + 2; ++turn) {
    if (turn < stream.chunks) TFDIST_RETURN_IF_ERROR(Post(stream, turn));
    if (turn >= 1 && turn <= stream.chunks) TFDIST_RETURN_IF_ERROR(Reduce(stream, turn - 1));
    if (turn >= 2) TFDIST_RETURN_IF_ERROR(Collect(stream, turn - 2));
  }
  window_->Advance(stream.chunks);
  return Status::Ok();
}

Status WindowCollective::Post(const Stream& stream, int64_t index) {
  const uint64_t chunk = stream.first + index;
  if (chunk >= Window::kSlots) {
    TFDIST_RETURN_IF_ERROR(Await(Window::kDone, chunk - Window::kSlots + 1));
  }
  Pack(stream, index, chunk);
  Publish(Window::kPosted, chunk + 1);
  return Status::Ok();
}

void WindowCollective::Pack(const Stream& stream, int64_t index, uint64_t chunk) {
  const PhaseScope scope(wait_, Phase::kPack);
  const int rank = window_->rank();
  char* const slot = window_->posted(rank, chunk);
  if (stream.spec == nullptr) {
    const Slice own = stream.Of(index, rank);
    stream.input->Copy(own.begin - (*stream.offsets)[rank], own.count, slot);
  }
  for (int r = 0; stream.spec != nullptr && r < stream.size; ++r) {
    if (r == rank) continue;
    const Slice slice = stream.Of(index, r);
    stream.input->Copy(slice.begin, slice.count, slot + slice.position * stream.element_bytes());
  }
}

Status WindowCollective::Reduce(const Stream& stream, int64_t index) {
  const uint64_t chunk = stream.first + index;
  if (stream.spec != nullptr) {
    TFDIST_RETURN_IF_ERROR(Await(Window::kPosted, chunk + 1));
    ReduceSlice(stream, chunk, stream.Of(index, window_->rank()));
  }
  Publish(Window::kReduced, chunk + 1);
  return Status::Ok();
}

void WindowCollective::ReduceSlice(const Stream& stream, uint64_t chunk, const Slice& own) {
  const PhaseScope scope(wait_, Phase::kReduce);
  const int rank = window_->rank();
  const int64_t element_bytes = stream.element_bytes();
  // Where the output begins: it has this rank's elements alone if they are not for all.
  const int64_t output_begin = stream.collects ? 0 : (*stream.offsets)[rank];
  alignas(64) char operand[kBlockBytes];
  alignas(64) char kept[kBlockBytes];
  std::vector<const void*> parts(static_cast<size_t>(stream.size));
  for (int64_t done = 0; done < own.count; done += kBlockElements) {
    const int64_t count = std::min(kBlockElements, own.count - done);
    for (int r = 0; r < stream.size; ++r) {
      parts[r] = r == rank ? stream.input->Read(own.begin + done, count, operand)
                           : window_->posted(r, chunk) + (own.position + done) * element_bytes;
    }
    char* const result =
        stream.collects ? window_->reduced(rank, chunk) + done * element_bytes : kept;
    tfdist::Reduce(*stream.spec, parts, count, result);
    stream.output->Write(own.begin + done - output_begin, count, result);
  }
}

Status WindowCollective::Collect(const Stream& stream, int64_t index) {
  const uint64_t chunk = stream.first + index;
  const bool gathers = stream.spec == nullptr;
  if (stream.collects) {
    TFDIST_RETURN_IF_ERROR(Await(gathers ? Window::kPosted : Window::kReduced, chunk + 1));
    const PhaseScope scope(wait_, Phase::kUnpack);
    for (int r = 0; r < stream.size; ++r) {
      const bool is_there = !gathers || stream.input == stream.output;
      if (r == window_->rank() && is_there) continue;
      const Slice slice = stream.Of(index, r);
      stream.output->Write(slice.begin, slice.count,
                           gathers ? window_->posted(r, chunk) : window_->reduced(r, chunk));
    }
  }
  Publish(Window::kDone, chunk + 1);
  return Status::Ok();
}

// The first rank from `rank` on that is another one and has fewer than `chunks` chunks behind
// `stage`; the number of ranks if there is none.
int WindowCollective::FirstLate(Window::Stage stage, uint64_t chunks, int rank) const {
  for (; rank < window_->size(); ++rank) {
    if (rank == window_->rank()) continue;
    if (window_->counters(rank).chunks[stage].load(std::memory_order_acquire) < chunks) break;
  }
  return rank;
}

// Waits until every other rank has `chunks` chunks behind `stage`.
Status WindowCollective::Await(Window::Stage stage, uint64_t chunks) {
  const int size = window_->size();
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = FirstLate(stage, chunks, 0); r < size; r = FirstLate(stage, chunks, r + 1)) {
      ranks.push_back(r);
    }
    return ranks;
  };
  int late = FirstLate(stage, chunks, 0);
  if (late == size) return Status::Ok();
  const PhaseScope scope(wait_, Phase::kWait);
  int last = late;
  wait_->Begin();
  for (int pauses = 1; late < size; ++pauses) {
    Status status = wait_->Pause(topology_, missing);
    if (status.ok() && pauses % kPausesPerCheck == 0) status = CheckPeers();
    for (int look = 0; look < kLooks && late < size; ++look) {
      Relax();
      last = late;
      late = FirstLate(stage, chunks, late);
    }
    // What a rank has shown counts, also if it ended right after.
    if (!status.ok() && late < size) return status;
  }
  wait_->Ended(topology_, last);
  return Status::Ok();
}

Status WindowCollective::CheckPeers() const {
  std::vector<int> ranks = window_->EndedRanks();
  std::string what = ", whose process has ended";
  for (int r = 0; ranks.empty() && r < window_->size(); ++r) {
    if (window_->HasGivenUp(r)) {
      ranks.push_back(r);
      what = ", which has failed";
    }
  }
  if (ranks.empty()) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                RankListWithHosts(topology_, {window_->rank()}) + " lost " +
                    RankListWithHosts(topology_, ranks) + what + ". It was in " +
                    wait_->Describe() +
                    ". See the logs of the ranks named here for the first failure.");
}

void WindowCollective::Publish(Window::Stage stage, uint64_t chunks) {
  window_->counters(window_->rank()).chunks[stage].store(chunks, std::memory_order_release);
}

}  // namespace tfdist
