#include "cuda/stream_memory.h"

#include <utility>

namespace tfdist {

// What cannot be given back now is the driver's when the process ends.
StreamMemory::~StreamMemory() {
  for (const Retired& retired : retired_) {
    static_cast<void>(driver_->Free(retired.memory));
    static_cast<void>(driver_->DeleteEvent(retired.after));
  }
  if (memory_ != nullptr) static_cast<void>(driver_->Free(memory_));
}

Status StreamMemory::Reserve(int64_t bytes, CudaStream stream) {
  TFDIST_RETURN_IF_ERROR(FreeRetired());
  if (bytes <= bytes_) return Status::Ok();
  void* larger = nullptr;
  TFDIST_RETURN_IF_ERROR(driver_->Allocate(bytes, &larger));
  void* const smaller = std::exchange(memory_, larger);
  bytes_ = bytes;
  if (smaller == nullptr) return Status::Ok();
  CudaEvent after = nullptr;
  TFDIST_RETURN_IF_ERROR(driver_->NewEvent(&after));
  retired_.push_back({smaller, after});
  return driver_->Record(after, stream);
}

// To free memory that is in use would wait for the device.
Status StreamMemory::FreeRetired() {
  std::vector<Retired> still;
  for (const Retired& retired : retired_) {
    bool happened = false;
    TFDIST_RETURN_IF_ERROR(driver_->HasHappened(retired.after, &happened));
    if (!happened) {
      still.push_back(retired);
      continue;
    }
    TFDIST_RETURN_IF_ERROR(driver_->Free(retired.memory));
    TFDIST_RETURN_IF_ERROR(driver_->DeleteEvent(retired.after));
  }
  retired_ = std::move(still);
  return Status::Ok();
}

}  // namespace tfdist
