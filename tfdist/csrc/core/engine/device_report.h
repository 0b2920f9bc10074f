// What the GPUs of this machine can be used with, for people to read: the text of `tfdist doctor`.
// An interface: who knows GPUs registers it. Decides nothing for an engine.
#ifndef TFDIST_CORE_ENGINE_DEVICE_REPORT_H_
#define TFDIST_CORE_ENGINE_DEVICE_REPORT_H_

#include <string>

#include "core/value/engine_config.h"

namespace tfdist {

using DeviceReport = std::string (*)(const EngineConfig& config);

// Returns true, so that a namespace-scope variable can hold the call.
bool RegisterDeviceReport(DeviceReport report);

// JSON, an object; an empty one when this build knows no GPU. Of `config` only the paths count.
std::string DescribeDevices(const EngineConfig& config);

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_DEVICE_REPORT_H_
