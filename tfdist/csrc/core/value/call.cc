#include "core/value/call.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/value/name_table.h"

namespace tfdist {
namespace {

struct OperationRow {
  const char* name;
  bool collective;
  bool in_buckets;
};

// In the order of the enumeration.
constexpr OperationRow kOperationTable[] = {
    {"allreduce", true, true},
    {"broadcast", true, true},
    {"allgather", true, false},
    {"alltoall", true, false},
    {"reducescatter", true, true},
    {"barrier", true, false},
    {"join", true, false},
    {"add_process_set", false, false},
    {"remove_process_set", false, false},
    {"start_timeline", false, false},
    {"tune", false, false},
    {"shutdown", false, false},
};
static_assert(std::size(kOperationTable) == kOperations, "each operation has a row");

// Multiplies and folds eight bytes at a time (the scheme of FNV-1a, a word for a byte).
class Hasher {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15ull;
    state_ ^= state_ >> 29;
  }

  void Add(double value) {
    uint64_t word;
    std::memcpy(&word, &value, sizeof(word));
    Add(word);
  }

  void Add(const std::string& text) {
    Add(static_cast<uint64_t>(text.size()));  // so that neighbouring texts cannot flow together
    for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      Add(word);
    }
  }

  // The two hashes with a meaning are left free.
  uint64_t value() const { return state_ <= kJoinedHash ? state_ + 2 : state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

size_t FirstFixedDimension(const Call& call) {
  const bool free =
      call.operation == Operation::kAllgather || call.operation == Operation::kAlltoall;
  return free ? 1 : 0;
}

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

std::string TensorName(const Call& call, size_t i) {
  return i < call.tensor_names->size() ? (*call.tensor_names)[i] : std::to_string(i);
}

// "[*,3]" where dimension 0 may differ.
std::string AgreedShape(const Call& call, const TensorView& tensor) {
  if (FirstFixedDimension(call) == 0) return ShapeString(tensor.shape);
  std::string text = "[*";
  for (size_t d = 1; d < tensor.shape.size(); ++d) text += "," + std::to_string(tensor.shape[d]);
  return text + "]";
}

void DescribeTensors(const Call& call, std::vector<Field>* fields) {
  if (call.tensors == nullptr) return;
  fields->push_back({"placement", call.on_gpu ? "GPU" : "CPU"});
  if (call.on_gpu) fields->push_back({"hierarchy of hosts", NameOf(call.hierarchy)});
  fields->push_back({"number of tensors", std::to_string(call.tensors->size())});
  size_t bytes = 0;
  for (size_t i = 0; i < call.tensors->size(); ++i) {
    const TensorView& tensor = (*call.tensors)[i];
    const std::string name = Quoted(TensorName(call, i));
    const Field added[] = {{"name of tensor " + std::to_string(i), name},
                           {"dtype of tensor " + name, NameOf(tensor.dtype)},
                           {"shape of tensor " + name, AgreedShape(call, tensor)}};
    for (const Field& field : added) bytes += field.label.size() + field.value.size() + 2;
    if (bytes > kMaxDescriptionBytes) {
      fields->push_back({"description", "cut off"});
      return;
    }
    fields->insert(fields->end(), std::begin(added), std::end(added));
  }
}

void Append(const std::string& text, std::string* result) {
  // A zero byte separates; one inside a name would shift all that follows.
  for (char c : text) result->push_back(c == '\0' ? '?' : c);
  result->push_back('\0');
}

}  // namespace

const char* NameOf(Operation operation) {
  return kOperationTable[static_cast<size_t>(operation)].name;
}

bool IsCollective(Operation operation) {
  return kOperationTable[static_cast<size_t>(operation)].collective;
}

bool TravelsInBuckets(Operation operation) {
  return kOperationTable[static_cast<size_t>(operation)].in_buckets;
}

bool IsKnown(Operation operation) { return HasRow(kOperationTable, operation); }

Call CallOf(Operation operation, const std::string& name,
            const std::vector<std::string>* tensor_names, const std::vector<TensorView>* tensors) {
  Call call;
  call.operation = operation;
  call.name = name;
  call.tensor_names = tensor_names;
  call.tensors = tensors;
  return call;
}

std::string Title(const Call& call) {
  std::string title = NameOf(call.operation);
  if (!call.name.empty()) title += " " + Quoted(call.name);
  if (call.tensors == nullptr) return title;
  const size_t count = call.tensors->size();
  if (count == 0) return title + " (no tensors)";
  return title + " (" + std::to_string(count) + (count == 1 ? " tensor, " : " tensors, first ") +
         Quoted(TensorName(call, 0)) + ")";
}

std::string ShortTitle(const Call& call) {
  return call.name.empty() ? Title(call) : NameOf(call.operation) + (" " + Quoted(call.name));
}

uint64_t Hash(const Call& call) {
  if (!call.error.empty()) return kInvalidHash;
  if (call.operation == Operation::kJoin) return kJoinedHash;
  Hasher hasher;
  hasher.Add(static_cast<uint64_t>(call.operation));
  hasher.Add(call.name);
  hasher.Add(call.thread);
  hasher.Add(static_cast<uint64_t>(call.reduction));
  hasher.Add(static_cast<uint64_t>(call.compression));
  hasher.Add(call.prescale);
  hasher.Add(call.postscale);
  hasher.Add(static_cast<uint64_t>(call.weighted));
  hasher.Add(static_cast<uint64_t>(call.root));
  hasher.Add(static_cast<uint64_t>(call.on_gpu));
  hasher.Add(static_cast<uint64_t>(call.hierarchy));
  hasher.Add(static_cast<uint64_t>(call.fusion_threshold_bytes));
  if (call.tensors == nullptr) return hasher.value();
  hasher.Add(static_cast<uint64_t>(call.tensors->size()));
  for (size_t i = 0; i < call.tensors->size(); ++i) {
    const TensorView& tensor = (*call.tensors)[i];
    hasher.Add((*call.tensor_names)[i]);
    hasher.Add(static_cast<uint64_t>(tensor.dtype));
    hasher.Add(static_cast<uint64_t>(tensor.shape.size()));
    for (size_t d = FirstFixedDimension(call); d < tensor.shape.size(); ++d) {
      hasher.Add(static_cast<uint64_t>(tensor.shape[d]));
    }
  }
  return hasher.value();
}

std::vector<Field> Describe(const Call& call) {
  std::vector<Field> fields = {{"operation", NameOf(call.operation)},
                               {"name", call.name},
                               {"error", call.error},
                               {"thread", call.thread}};
  if (call.operation == Operation::kAllreduce || call.operation == Operation::kReduceScatter) {
    fields.push_back({"reduction", NameOf(call.reduction)});
    fields.push_back({"compression", NameOf(call.compression)});
    fields.push_back({"prescale", Number(call.prescale)});
    fields.push_back({"postscale", Number(call.postscale)});
    fields.push_back({"weights", call.weighted ? "yes" : "no"});
  }
  if (call.operation == Operation::kBroadcast) {
    fields.push_back({"root", std::to_string(call.root)});
  }
  fields.push_back({"fusion threshold", std::to_string(call.fusion_threshold_bytes)});
  DescribeTensors(call, &fields);
  return fields;
}

std::string Serialize(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) {
    Append(field.label, &text);
    Append(field.value, &text);
  }
  return text;
}

std::vector<Field> Parse(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<Field> fields;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) {
    fields.push_back({std::move(parts[i]), std::move(parts[i + 1])});
  }
  return fields;
}

}  // namespace tfdist
