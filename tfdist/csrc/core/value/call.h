// What one rank submits to a collective: the part that all ranks must agree on, as a hash for every
// call and as text for the rare call on which they differ. Not the data.
//
// Refers to the caller's names and tensors, which outlive it. Thread safe to read.
#ifndef TFDIST_CORE_VALUE_CALL_H_
#define TFDIST_CORE_VALUE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/value/calling_thread.h"
#include "core/value/compression.h"
#include "core/value/engine_config.h"
#include "core/value/reduction.h"
#include "core/value/tensor_view.h"

namespace tfdist {

enum class Operation {
  kAllreduce,
  kBroadcast,
  kAllgather,
  kAlltoall,
  kReduceScatter,
  kBarrier,
  kJoin,
  kAddProcessSet,
  kRemoveProcessSet,
  kStartTimeline,
  kTune,
  kShutdown
};
constexpr size_t kOperations = static_cast<size_t>(Operation::kShutdown) + 1;

// "allreduce", ...
const char* NameOf(Operation operation);

// Whether users call it as a collective; the others are agreed on like one.
bool IsCollective(Operation operation);

// Whether its tensors travel in buckets, which a threshold bounds.
bool TravelsInBuckets(Operation operation);

// Whether it is in the table; another build may have written one that this build lacks.
bool IsKnown(Operation operation);

struct Call {
  Operation operation = Operation::kBarrier;
  std::string name;
  std::string thread = CallingThread();
  Reduction reduction = Reduction::kSum;
  Compression compression = Compression::kNone;
  double prescale = 1;
  double postscale = 1;
  bool weighted = false;  // an average in which the ranks count by their weights
  uint32_t weight = 1;    // of this rank; travels beside the hash, since it may differ by rank
  int root = 0;           // by its number among all ranks
  bool on_gpu = false;    // where the tensors are
  Hierarchy hierarchy = Hierarchy::kNone;  // on GPUs
  int64_t fusion_threshold_bytes = 0;  // ranks with unequal thresholds would plan unequal buckets
  const std::vector<std::string>* tensor_names = nullptr;
  const std::vector<TensorView>* tensors = nullptr;
  std::string error;  // not empty: the arguments are wrong on this rank, which all must learn
};

Call CallOf(Operation operation, const std::string& name = "",
            const std::vector<std::string>* tensor_names = nullptr,
            const std::vector<TensorView>* tensors = nullptr);

// "allreduce 'grads' (2 tensors, first 'dense/kernel')", for messages about waiting.
std::string Title(const Call& call);

// "allreduce 'grads'", or the Title of a call without a name.
std::string ShortTitle(const Call& call);

// The hashes of a call whose arguments are wrong, and of a rank that has joined.
constexpr uint64_t kInvalidHash = 0;
constexpr uint64_t kJoinedHash = 1;

// Covers all fields but the weight; dimension 0 of an allgather and an alltoall is left out, since
// it may differ by rank.
uint64_t Hash(const Call& call);

struct Field {
  std::string label;
  std::string value;
};

// Places of the fields that every description has; after them, each operation has its own.
enum FieldIndex : size_t { kOperation = 0, kName, kError, kThread, kFirstAttribute };

// Label and value of everything that Hash covers.
// Ends early, with a field that says so, when more than kMaxDescriptionBytes would be needed.
std::vector<Field> Describe(const Call& call);
constexpr size_t kMaxDescriptionBytes = 64 << 10;

std::string Serialize(const std::vector<Field>& fields);
std::vector<Field> Parse(const std::string& text);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_CALL_H_
