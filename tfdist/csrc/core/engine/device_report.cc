#include "core/engine/device_report.h"

namespace tfdist {
namespace {

DeviceReport& TheReport() {
  static DeviceReport report = nullptr;
  return report;
}

}  // namespace

bool RegisterDeviceReport(DeviceReport report) {
  TheReport() = report;
  return true;
}

std::string DescribeDevices(const EngineConfig& config) {
  return TheReport() == nullptr ? "{}" : TheReport()(config);
}

}  // namespace tfdist
