#include "core/engine/device.h"

namespace tfdist {
namespace {

DeviceFactory& TheFactory() {
  static DeviceFactory factory = nullptr;
  return factory;
}

}  // namespace

bool RegisterDeviceFactory(DeviceFactory factory) {
  TheFactory() = factory;
  return true;
}

Status MakeDevice(const DeviceSpec& spec, std::unique_ptr<Device>* device) {
  if (TheFactory() == nullptr) {
    return Status(StatusCode::kUnimplemented,
                  "this build of tfdist does not support collectives on GPUs. Set "
                  "TFDIST_GPU_OPERATIONS=mpi.");
  }
  return TheFactory()(spec, device);
}

}  // namespace tfdist
