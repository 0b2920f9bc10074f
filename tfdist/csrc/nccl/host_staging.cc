#include "nccl/host_staging.h"

#include <utility>

namespace tfdist {

HostStaging::HostStaging(CudaDriver* driver, const Topology& topology, Check check)
    : driver_(driver), topology_(topology), check_(std::move(check)) {}

// What cannot be given back now is the driver's when the process ends.
HostStaging::~HostStaging() {
  if (memory_ != nullptr) static_cast<void>(driver_->FreeHost(memory_));
  if (copied_ != nullptr) static_cast<void>(driver_->DeleteEvent(copied_));
}

// No copy is under way when it grows.
Status HostStaging::Reserve(int64_t bytes) {
  if (copied_ == nullptr) TFDIST_RETURN_IF_ERROR(driver_->NewEvent(&copied_));
  if (bytes <= bytes_) return Status::Ok();
  if (memory_ != nullptr) TFDIST_RETURN_IF_ERROR(driver_->FreeHost(memory_));
  memory_ = nullptr;
  bytes_ = 0;
  TFDIST_RETURN_IF_ERROR(driver_->AllocateHost(bytes, &memory_));
  bytes_ = bytes;
  return Status::Ok();
}

Status HostStaging::Run(char* data, int64_t bytes, const Work& work, CudaStream stream,
                        Wait* wait) {
  TFDIST_RETURN_IF_ERROR(Reserve(bytes));
  TFDIST_RETURN_IF_ERROR(driver_->Copy(memory_, data, bytes, stream));
  TFDIST_RETURN_IF_ERROR(AwaitCopies(stream, wait));
  TFDIST_RETURN_IF_ERROR(work(static_cast<char*>(memory_)));
  TFDIST_RETURN_IF_ERROR(driver_->Copy(data, memory_, bytes, stream));
  return AwaitCopies(stream, wait);  // the memory is used again, or grows
}

Status HostStaging::AwaitCopies(CudaStream stream, Wait* wait) {
  TFDIST_RETURN_IF_ERROR(driver_->Record(copied_, stream));
  wait->Begin();
  while (true) {
    bool happened = false;
    TFDIST_RETURN_IF_ERROR(driver_->HasHappened(copied_, &happened));
    if (happened) return Status::Ok();
    TFDIST_RETURN_IF_ERROR(check_(*wait));
    TFDIST_RETURN_IF_ERROR(wait->Pause(topology_, Nobody));
  }
}

}  // namespace tfdist
