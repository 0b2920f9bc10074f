#include "core/algorithm/fused_view.h"

#include <algorithm>

#include "core/value/cast.h"

namespace tfdist {

void FusedView::Add(const TensorView& tensor) {
  const int64_t count = tensor.count();
  if (count == 0) return;
  dtype_ = tensor.dtype;
  tensors_.push_back(static_cast<char*>(tensor.data));
  starts_.push_back(starts_.back() + count);
}

size_t FusedView::TensorAt(int64_t element) const {
  return std::upper_bound(starts_.begin(), starts_.end(), element) - starts_.begin() - 1;
}

// visit(memory of the part, its elements, where it begins among the elements asked for)
template <typename Visit>
void FusedView::ForEachPart(int64_t begin, int64_t count, const Visit& visit) const {
  if (count == 0) return;
  const int64_t end = begin + count;
  const int64_t element_bytes = SizeOf(dtype_);
  int64_t at = begin;
  for (size_t t = TensorAt(begin); at < end; ++t) {
    const int64_t elements = std::min(end, starts_[t + 1]) - at;
    visit(tensors_[t] + (at - starts_[t]) * element_bytes, elements, at - begin);
    at += elements;
  }
}

// Whether reading changes nothing. There is a tensor.
bool FusedView::AsTheyAre() const {
  return conversion_.counts && conversion_.pack == 1 && dtype_ == conversion_.wire;
}

char* FusedView::Memory() const {
  return tensors_.size() == 1 && AsTheyAre() ? tensors_[0] : nullptr;
}

const char* FusedView::Read(int64_t begin, int64_t count, char* buffer) const {
  if (count == 0) return buffer;
  const size_t t = TensorAt(begin);
  if (AsTheyAre() && begin + count <= starts_[t + 1]) {
    return tensors_[t] + (begin - starts_[t]) * SizeOf(conversion_.wire);
  }
  Copy(begin, count, buffer);
  return buffer;
}

void FusedView::Copy(int64_t begin, int64_t count, char* target) const {
  const int64_t wire_bytes = SizeOf(conversion_.wire);
  if (!conversion_.counts) {
    std::fill_n(target, count * wire_bytes, '\0');
    return;
  }
  ForEachPart(begin, count, [&](const char* memory, int64_t elements, int64_t offset) {
    CastScaled(dtype_, memory, elements, conversion_.pack, conversion_.wire,
               target + offset * wire_bytes);
  });
}

void FusedView::Write(int64_t begin, int64_t count, const char* source) const {
  const int64_t wire_bytes = SizeOf(conversion_.wire);
  ForEachPart(begin, count, [&](char* memory, int64_t elements, int64_t offset) {
    CastScaled(conversion_.wire, source + offset * wire_bytes, elements, conversion_.unpack, dtype_,
               memory, conversion_.stores);
  });
}

}  // namespace tfdist
