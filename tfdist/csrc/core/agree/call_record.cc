#include "core/agree/call_record.h"

#include <algorithm>

#include "core/agree/byte_record.h"

namespace tfdist {
namespace {

constexpr size_t kSumBytes = sizeof(uint64_t);

// `body` and its checksum (FNV-1a, in which any one byte that differs makes a difference).
std::string Sealed(const std::string& body) {
  uint64_t sum = 0xcbf29ce484222325ull;
  for (char byte : body) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3ull;
  return body + std::string(reinterpret_cast<const char*>(&sum), kSumBytes);
}

// Whether the engine can run it; another build may have written values that this one lacks.
bool IsKnown(const ReceivedCall& received) {
  const Call& call = received.call;
  const bool has_rows =
      call.operation == Operation::kAllgather || call.operation == Operation::kAlltoall;
  const auto is_tensor = [has_rows](const TensorView& tensor) {
    const bool negative =
        std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t dim) { return dim < 0; });
    return IsKnown(tensor.dtype) && !negative && !(has_rows && tensor.shape.empty());
  };
  return IsKnown(call.operation) && IsKnown(call.reduction) && IsKnown(call.compression) &&
         std::all_of(received.tensors.begin(), received.tensors.end(), is_tensor);
}

// True where `body` is a call from end to end.
bool Read(const std::string& body, ReceivedCall* received) {
  ByteReader reader(body);
  Call& call = received->call;
  call.operation = reader.Next<Operation>();
  call.name = reader.NextText();
  call.reduction = reader.Next<Reduction>();
  call.compression = reader.Next<Compression>();
  call.prescale = reader.Next<double>();
  call.postscale = reader.Next<double>();
  call.weighted = reader.Next<uint8_t>() != 0;
  call.root = reader.Next<int>();
  call.on_gpu = reader.Next<uint8_t>() != 0;
  call.fusion_threshold_bytes = reader.Next<int64_t>();
  const bool has_tensors = reader.Next<uint8_t>() != 0;
  const size_t tensors = reader.NextCount(2 * sizeof(uint64_t));
  for (size_t i = 0; i < tensors; ++i) {
    received->tensor_names.push_back(reader.NextText());
    TensorView tensor;
    tensor.dtype = reader.Next<DType>();
    tensor.shape.resize(reader.NextCount(sizeof(int64_t)));
    for (int64_t& dim : tensor.shape) dim = reader.Next<int64_t>();
    received->tensors.push_back(tensor);
  }
  call.tensor_names = has_tensors ? &received->tensor_names : nullptr;
  call.tensors = has_tensors ? &received->tensors : nullptr;
  return reader.AtEnd() && (has_tensors || tensors == 0);
}

}  // namespace

std::string Encode(const Call& call) {
  ByteWriter writer;
  writer.Add(call.operation);
  writer.Add(call.name);
  writer.Add(call.reduction);
  writer.Add(call.compression);
  writer.Add(call.prescale);
  writer.Add(call.postscale);
  writer.Add(call.weighted);
  writer.Add(call.root);
  writer.Add(call.on_gpu);
  writer.Add(call.fusion_threshold_bytes);
  const size_t tensors = call.tensors == nullptr ? 0 : call.tensors->size();
  writer.Add(call.tensors != nullptr);  // a barrier has none, which is not a list without any
  writer.Add(static_cast<uint64_t>(tensors));
  for (size_t i = 0; i < tensors; ++i) {
    const TensorView& tensor = (*call.tensors)[i];
    writer.Add((*call.tensor_names)[i]);
    writer.Add(tensor.dtype);
    writer.Add(static_cast<uint64_t>(tensor.shape.size()));
    for (int64_t dim : tensor.shape) writer.Add(dim);
  }
  return Sealed(writer.bytes());
}

Status Decode(const std::string& bytes, ReceivedCall* received) {
  const std::string body = bytes.substr(0, std::max(bytes.size(), kSumBytes) - kSumBytes);
  if (Sealed(body) != bytes || !Read(body, received) || !IsKnown(*received)) {
    return Status(StatusCode::kInternal,
                  "a rank that has joined received " + std::to_string(bytes.size()) +
                      " bytes that are not a call. Install the same build of tfdist on all hosts.");
  }
  return Status::Ok();
}

}  // namespace tfdist
