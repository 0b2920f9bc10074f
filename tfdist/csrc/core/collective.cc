#include "core/collective.h"

#include <algorithm>
#include <cstring>

namespace tfdist {
namespace {

// Up to here one message to everybody is faster than two rounds of smaller ones.
constexpr int64_t kSmallBytes = 16 << 10;

// The part of a large buffer that is under way at a time: bounds the scratch memory and keeps the
// received parts in cache until they are reduced.
constexpr int64_t kSegmentBytes = 8 << 20;

// Larger broadcasts are spread over all ranks, so that the root does not send everything n times.
constexpr int64_t kTreeBytes = 64 << 10;

void* Mutable(const void* data) { return const_cast<void*>(data); }

}  // namespace

// A run of elements, cut into one slice a rank.
struct Collective::Segment {
  int64_t begin;
  int64_t count;
  int64_t element_bytes;
  int size;

  // First byte of slice `rank`, from the start of the buffer.
  int64_t Offset(int rank) const { return (begin + count * rank / size) * element_bytes; }
  int64_t Bytes(int rank) const { return Offset(rank + 1) - Offset(rank); }
};

int64_t Collective::ScratchBytes(int size) {
  // A slice is at most one element longer than an equal share.
  return std::max(kSmallBytes * size, kSegmentBytes + int64_t{8} * size);
}

Status Collective::Flush() {
  const Status status = communicator_->Exchange(sends_, receives_, wait_);
  sends_.clear();
  receives_.clear();
  return status;
}

Status Collective::Allreduce(const ReduceSpec& spec, const void* input, int64_t count,
                             void* output) {
  if (count == 0) return Status::Ok();
  if (communicator_->size() == 1) {
    Reduce(spec, {input}, count, output);
    return Status::Ok();
  }
  TFDIST_RETURN_IF_ERROR(scratch_->Reserve(ScratchBytes(communicator_->size())));
  if (count * SizeOf(spec.dtype) <= kSmallBytes) {
    return AllreduceSmall(spec, input, count, output);
  }
  return AllreduceLarge(spec, static_cast<const char*>(input), count, static_cast<char*>(output));
}

Status Collective::AllreduceSmall(const ReduceSpec& spec, const void* input, int64_t count,
                                  void* output) {
  const int64_t bytes = count * SizeOf(spec.dtype);
  std::vector<const void*> parts(communicator_->size(), input);
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    if (peer == communicator_->rank()) continue;
    char* part = scratch_->data() + peer * kSmallBytes;
    parts[peer] = part;
    sends_.push_back({peer, Mutable(input), bytes});
    receives_.push_back({peer, part, bytes});
  }
  TFDIST_RETURN_IF_ERROR(Flush());
  Reduce(spec, parts, count, output);
  return Status::Ok();
}

// Reduce-scatter, then allgather, both direct; rank r owns slice r of each segment. The gather of
// one segment shares a round with the scatter of the next, which halves the number of rounds.
Status Collective::AllreduceLarge(const ReduceSpec& spec, const char* input, int64_t count,
                                  char* output) {
  const int64_t element_bytes = SizeOf(spec.dtype);
  const int64_t step = kSegmentBytes / element_bytes;
  Segment segment{0, 0, element_bytes, communicator_->size()};
  for (int64_t begin = 0; begin < count; begin += step) {
    const Segment previous = segment;
    segment.begin = begin;
    segment.count = std::min(step, count - begin);
    ScatterSegment(segment, input);
    GatherSegment(previous, output);
    TFDIST_RETURN_IF_ERROR(Flush());
    ReduceSegment(spec, segment, input, output);
  }
  GatherSegment(segment, output);
  return Flush();
}

void Collective::ScatterSegment(const Segment& segment, const char* input) {
  const int rank = communicator_->rank();
  const int64_t own_bytes = segment.Bytes(rank);
  char* part = scratch_->data();
  for (int peer = 0; peer < segment.size; ++peer) {
    if (peer == rank) continue;
    sends_.push_back({peer, Mutable(input + segment.Offset(peer)), segment.Bytes(peer)});
    receives_.push_back({peer, part, own_bytes});
    part += own_bytes;
  }
}

void Collective::ReduceSegment(const ReduceSpec& spec, const Segment& segment, const char* input,
                               char* output) {
  const int rank = communicator_->rank();
  const int64_t own_bytes = segment.Bytes(rank);
  const char* received = scratch_->data();
  std::vector<const void*> parts;
  for (int peer = 0; peer < segment.size; ++peer) {
    if (peer == rank) {
      parts.push_back(input + segment.Offset(rank));
    } else {
      parts.push_back(received);
      received += own_bytes;
    }
  }
  Reduce(spec, parts, own_bytes / segment.element_bytes, output + segment.Offset(rank));
}

void Collective::GatherSegment(const Segment& segment, char* output) {
  const int rank = communicator_->rank();
  for (int peer = 0; peer < segment.size; ++peer) {
    if (peer == rank) continue;
    sends_.push_back({peer, output + segment.Offset(rank), segment.Bytes(rank)});
    receives_.push_back({peer, output + segment.Offset(peer), segment.Bytes(peer)});
  }
}

Status Collective::Allgather(const void* input, const std::vector<int64_t>& bytes, void* output) {
  const int rank = communicator_->rank();
  char* part = static_cast<char*>(output);
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    if (peer != rank) {
      sends_.push_back({peer, Mutable(input), bytes[rank]});
      receives_.push_back({peer, part, bytes[peer]});
    } else if (bytes[rank] > 0) {
      std::memmove(part, input, static_cast<size_t>(bytes[rank]));
    }
    part += bytes[peer];
  }
  return Flush();
}

Status Collective::Broadcast(int root, void* data, int64_t bytes) {
  if (bytes == 0 || communicator_->size() == 1) return Status::Ok();
  if (bytes <= kTreeBytes) return BroadcastTree(root, data, bytes);
  return BroadcastLarge(root, static_cast<char*>(data), bytes);
}

// Binomial tree over ranks counted from the root: rank v hears from v without its lowest bit.
Status Collective::BroadcastTree(int root, void* data, int64_t bytes) {
  const int size = communicator_->size();
  const int place = (communicator_->rank() - root + size) % size;
  int bit = 1;
  while (bit < size && (place & bit) == 0) bit <<= 1;
  if (place != 0) {
    receives_.push_back({(place - bit + root) % size, data, bytes});
    TFDIST_RETURN_IF_ERROR(Flush());
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (place + bit < size) sends_.push_back({(place + bit + root) % size, data, bytes});
  }
  return Flush();
}

// The root hands slice p to rank p, and everybody passes its slice on.
Status Collective::BroadcastLarge(int root, char* data, int64_t bytes) {
  const Segment whole{0, bytes, 1, communicator_->size()};
  const int rank = communicator_->rank();
  if (rank == root) {
    for (int peer = 0; peer < whole.size; ++peer) {
      if (peer != root) sends_.push_back({peer, data + whole.Offset(peer), whole.Bytes(peer)});
    }
  } else {
    receives_.push_back({root, data + whole.Offset(rank), whole.Bytes(rank)});
    TFDIST_RETURN_IF_ERROR(Flush());
  }
  for (int peer = 0; peer < whole.size; ++peer) {
    if (peer == rank) continue;
    // The root already has every slice, and nobody needs to hear from it twice but for its own.
    if (peer != root) sends_.push_back({peer, data + whole.Offset(rank), whole.Bytes(rank)});
    if (rank != root) receives_.push_back({peer, data + whole.Offset(peer), whole.Bytes(peer)});
  }
  return Flush();
}

}  // namespace tfdist
