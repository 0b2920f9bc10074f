#include "core/algorithm/collective.h"

#include <algorithm>
#include <cstring>

#include "core/algorithm/phase_scope.h"
#include "core/value/cast.h"

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

// Casts elements to a wider type in the memory where they begin. From the last to the first, so
// that none is overwritten before it is read.
void WidenInPlace(DType from, int64_t count, DType to, char* data) {
  constexpr int64_t kChunkElements = 2048;
  char chunk[kChunkElements * sizeof(double)];
  for (int64_t end = count; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - kChunkElements);
    std::memcpy(chunk, data + begin * SizeOf(from), (end - begin) * SizeOf(from));
    CastScaled(from, chunk, end - begin, 1.0, to, data + begin * SizeOf(to));
    end = begin;
  }
}

// Bytes of what Adasum folds: a slice from each rank, each at most one element longer than an equal
// share; up to where float64 may lie.
int64_t SliceBytes(DType type, int64_t count, int size) {
  constexpr int64_t kAlignment = alignof(double);
  return ((count + 2 * size) * SizeOf(type) + kAlignment - 1) / kAlignment * kAlignment;
}

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

int64_t Collective::AdasumBytes(DType dtype, int64_t count, int64_t tensors, int size) {
  const int64_t pairs = size / 2;
  return SliceBytes(AdasumType(dtype), count, size) +
         pairs * tensors * static_cast<int64_t>(sizeof(AdasumProducts));
}

Status Collective::Flush() {
  const PhaseScope scope(wait_, Phase::kWait);
  const Status status = communicator_->Exchange(sends_, receives_, wait_);
  sends_.clear();
  receives_.clear();
  return status;
}

Status Collective::Allreduce(const ReduceSpec& spec, const void* input, int64_t count,
                             void* output) {
  if (count == 0) return Status::Ok();
  if (communicator_->size() == 1) {
    ReduceParts(spec, {input}, count, output);
    return Status::Ok();
  }
  TFDIST_RETURN_IF_ERROR(scratch_->Reserve(ScratchBytes(communicator_->size())));
  if (count * SizeOf(spec.dtype) <= kSmallBytes) {
    return AllreduceSmall(spec, input, count, output);
  }
  return AllreduceLarge(spec, static_cast<const char*>(input), count, static_cast<char*>(output));
}

void Collective::ReduceParts(const ReduceSpec& spec, const std::vector<const void*>& parts,
                             int64_t count, void* output) {
  const PhaseScope scope(wait_, Phase::kReduce);
  Reduce(spec, parts, count, output);
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
  ReduceParts(spec, parts, count, output);
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
  ReduceParts(spec, parts, own_bytes / segment.element_bytes, output + segment.Offset(rank));
}

void Collective::GatherSegment(const Segment& segment, char* output) {
  const int rank = communicator_->rank();
  for (int peer = 0; peer < segment.size; ++peer) {
    if (peer == rank) continue;
    sends_.push_back({peer, output + segment.Offset(rank), segment.Bytes(rank)});
    receives_.push_back({peer, output + segment.Offset(peer), segment.Bytes(peer)});
  }
}

Status Collective::ReduceScatter(const ReduceSpec& spec, const void* input,
                                 const std::vector<int64_t>& offsets, void* output) {
  const int size = communicator_->size();
  const int rank = communicator_->rank();
  const int64_t element_bytes = SizeOf(spec.dtype);
  TFDIST_RETURN_IF_ERROR(scratch_->Reserve(ScratchBytes(size)));
  const int64_t step = std::max<int64_t>(1, kSegmentBytes / element_bytes / size);
  const auto count_of = [&offsets](int r) { return offsets[r + 1] - offsets[r]; };
  int64_t longest = 0;
  for (int r = 0; r < size; ++r) longest = std::max(longest, count_of(r));
  const auto piece_of = [&](int r, int64_t begin) {
    return std::max<int64_t>(0, std::min(step, count_of(r) - begin));
  };
  const char* source = static_cast<const char*>(input);
  char* target = static_cast<char*>(output);
  for (int64_t begin = 0; begin < longest; begin += step) {
    const int64_t own = piece_of(rank, begin);
    char* received = scratch_->data();
    std::vector<const void*> parts;
    for (int peer = 0; peer < size; ++peer) {
      const char* piece = source + (offsets[peer] + begin) * element_bytes;
      if (peer == rank) {
        parts.push_back(piece);
        continue;
      }
      sends_.push_back({peer, Mutable(piece), piece_of(peer, begin) * element_bytes});
      receives_.push_back({peer, received, own * element_bytes});
      parts.push_back(received);
      received += own * element_bytes;
    }
    TFDIST_RETURN_IF_ERROR(Flush());
    if (own > 0) ReduceParts(spec, parts, own, target + begin * element_bytes);
  }
  return Status::Ok();
}

// Every rank owns a slice of the elements and holds that slice of all gradients. It folds them
// level by level; the products of a level are summed over the ranks, since each knows its slice.
Status Collective::Adasum(DType dtype, const std::vector<int64_t>& tensor_counts, void* data,
                          FusionBuffer* parts) {
  const int size = communicator_->size();
  int64_t count = 0;
  for (int64_t elements : tensor_counts) count += elements;
  if (count == 0 || size == 1) return Status::Ok();
  const Segment whole{0, count, SizeOf(dtype), size};
  const int rank = communicator_->rank();
  const int64_t begin = whole.Offset(rank) / whole.element_bytes;
  const int64_t own = whole.Bytes(rank) / whole.element_bytes;
  const DType type = AdasumType(dtype);
  const int64_t tensors = static_cast<int64_t>(tensor_counts.size());
  TFDIST_RETURN_IF_ERROR(parts->Reserve(AdasumBytes(dtype, count, tensors, size)));
  TFDIST_RETURN_IF_ERROR(scratch_->Reserve(ScratchBytes(size)));

  char* bytes = static_cast<char*>(data);
  char* incoming = parts->data();
  const int64_t own_bytes = whole.Bytes(rank);
  for (int peer = 0; peer < size; ++peer) {
    char* part = incoming + peer * own * SizeOf(type);
    if (peer == rank) {
      std::memcpy(part, bytes + whole.Offset(rank), static_cast<size_t>(own_bytes));
      continue;
    }
    sends_.push_back({peer, bytes + whole.Offset(peer), whole.Bytes(peer)});
    receives_.push_back({peer, part, own_bytes});
  }
  TFDIST_RETURN_IF_ERROR(Flush());
  for (int part = 0; dtype != type && part < size; ++part) {
    WidenInPlace(dtype, own, type, incoming + part * own * SizeOf(type));
  }

  std::vector<int64_t> bounds = {0};  // of the tensors, within this rank's slice
  int64_t end = 0;
  for (int64_t elements : tensor_counts) {
    end += elements;
    bounds.push_back(std::clamp<int64_t>(end - begin, 0, own));
  }
  char* const products = incoming + SliceBytes(type, count, size);
  TFDIST_RETURN_IF_ERROR(
      FoldParts(type, bounds, own, incoming, reinterpret_cast<AdasumProducts*>(products)));
  CastScaled(type, incoming, own, 1.0, dtype, bytes + whole.Offset(rank));
  GatherSegment(whole, bytes);
  return Flush();
}

// `parts` has one slice of `own` elements a rank; the first becomes the result. `products` is
// memory that outlives a failed exchange, since a late message may still be written there.
Status Collective::FoldParts(DType type, const std::vector<int64_t>& bounds, int64_t own,
                             char* parts, AdasumProducts* products) {
  const int64_t element_bytes = SizeOf(type);
  const size_t tensors = bounds.size() - 1;
  const auto at = [&](int part, size_t tensor) {
    return parts + (part * own + bounds[tensor]) * element_bytes;
  };
  for (int live = communicator_->size(); live > 1; live = (live + 1) / 2) {
    const int pairs = live / 2;
    const int64_t numbers = static_cast<int64_t>(pairs * tensors) * 3;
    {
      const PhaseScope scope(wait_, Phase::kReduce);
      for (int pair = 0; pair < pairs; ++pair) {
        for (size_t t = 0; t < tensors; ++t) {
          products[pair * tensors + t] =
              MultiplyParts(type, at(2 * pair, t), at(2 * pair + 1, t), bounds[t + 1] - bounds[t]);
        }
      }
    }
    const ReduceSpec sum{DType::kFloat64, Reduction::kSum, Scale()};
    TFDIST_RETURN_IF_ERROR(Allreduce(sum, products, numbers, products));
    const PhaseScope scope(wait_, Phase::kReduce);
    for (int pair = 0; pair < pairs; ++pair) {
      for (size_t t = 0; t < tensors; ++t) {
        CombineParts(type, products[pair * tensors + t], at(2 * pair + 1, t),
                     bounds[t + 1] - bounds[t], at(2 * pair, t));
      }
      if (pair > 0) std::memcpy(at(pair, 0), at(2 * pair, 0), own * element_bytes);
    }
    if (live % 2 == 1) std::memcpy(at(pairs, 0), at(live - 1, 0), own * element_bytes);
  }
  return Status::Ok();
}

Status Collective::Alltoall(const void* input, const std::vector<int64_t>& send_bytes, void* output,
                            const std::vector<int64_t>& receive_bytes) {
  const int rank = communicator_->rank();
  const char* source = static_cast<const char*>(input);
  char* target = static_cast<char*>(output);
  for (int peer = 0; peer < communicator_->size(); ++peer) {
    if (peer != rank) {
      sends_.push_back({peer, Mutable(source), send_bytes[peer]});
      receives_.push_back({peer, target, receive_bytes[peer]});
    } else if (send_bytes[peer] > 0) {
      std::memcpy(target, source, static_cast<size_t>(send_bytes[peer]));
    }
    source += send_bytes[peer];
    target += receive_bytes[peer];
  }
  return Flush();
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
