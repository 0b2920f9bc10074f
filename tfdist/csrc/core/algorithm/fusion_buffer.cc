#include "core/algorithm/fusion_buffer.h"

#include <string>

namespace tfdist {
namespace {

constexpr int64_t kAlignmentBytes = 64;

}  // namespace

Status FusionBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) return Status::Ok();
  const int64_t rounded = (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  memory_.reset();  // first, so that old and new do not exist side by side
  capacity_bytes_ = 0;
  memory_.reset(static_cast<char*>(
      std::aligned_alloc(static_cast<size_t>(kAlignmentBytes), static_cast<size_t>(rounded))));
  if (memory_ == nullptr) {
    return Status(StatusCode::kInternal,
                  "no memory for a buffer of " + std::to_string(rounded) +
                      " bytes. Lower the fusion threshold or give the process more memory.");
  }
  capacity_bytes_ = rounded;
  return Status::Ok();
}

}  // namespace tfdist
