#include "core/value/engine_config.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <locale>
#include <map>
#include <sstream>

#include "core/value/name_table.h"

namespace tfdist {
namespace {

constexpr int64_t kLeastWindowBytes = 64 << 10;
constexpr int64_t kMostWindowBytes = 1 << 30;

struct HierarchyRow {
  const char* name;
};

// In the order of the enumeration.
constexpr HierarchyRow kHierarchyTable[] = {{"off"}, {"nccl"}, {"mpi"}};

constexpr char kOtherBuild[] =
    ". Rebuild tfdist: its library and its Python code are from different builds.";

Status Refused(const std::string& why) { return Status(StatusCode::kInvalidArgument, why); }

// How each type is read; false where the text is no value of it.
template <typename Number>
bool ReadSetting(const std::string& text, Number* value) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());  // whatever the script has set
  stream >> *value;
  return !stream.fail() && stream.peek() == std::istringstream::traits_type::eof();
}

bool ReadSetting(const std::string& text, Hierarchy* value) { return FindHierarchy(text, value); }

bool ReadSetting(const std::string& text, std::string* value) {
  *value = text;
  return true;
}

bool ReadSetting(const std::string& text, Paths* value) {
  if (!text.empty()) value->push_back(text);
  return true;
}

using Given = std::multimap<std::string, std::string>;

template <typename Type>
Status TakeSetting(const std::string& name, Given* given, Type* value) {
  const auto [begin, end] = given->equal_range(name);
  if (begin == end) {
    return Refused("the engine's setting " + name + " is missing" + kOtherBuild);
  }
  for (auto line = begin; line != end; ++line) {
    if (ReadSetting(line->second, value)) continue;
    return Refused("the engine's setting " + name + " is '" + line->second +
                   "'; expected another value.");
  }
  given->erase(begin, end);
  return Status::Ok();
}

}  // namespace

const char* NameOf(Hierarchy hierarchy) {
  return kHierarchyTable[static_cast<size_t>(hierarchy)].name;
}

bool FindHierarchy(const std::string& name, Hierarchy* found) {
  return FindRow(kHierarchyTable, name, found);
}

Status ReadSettings(const std::string& text, EngineConfig* config) {
  Given given;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t end = std::min(line.find('='), line.size());
    given.emplace(line.substr(0, end), line.substr(std::min(end + 1, line.size())));
  }
#define TFDIST_SETTING(type, name) \
  TFDIST_RETURN_IF_ERROR(TakeSetting(#name, &given, &config->name));
  TFDIST_SETTINGS(TFDIST_SETTING)
#undef TFDIST_SETTING
  if (given.empty()) return Status::Ok();
  return Refused("the engine has no setting " + given.begin()->first + kOtherBuild);
}

Status CheckSettings(const EngineConfig& config) {
  if (!std::isfinite(config.stall_shutdown_seconds) || config.stall_shutdown_seconds <= 0) {
    return Refused("stall_shutdown_seconds is " + std::to_string(config.stall_shutdown_seconds) +
                   "; expected a positive number, because no wait may last forever.");
  }
  if (!std::isfinite(config.stall_warning_seconds) || config.stall_warning_seconds < 0) {
    return Refused("stall_warning_seconds is " + std::to_string(config.stall_warning_seconds) +
                   "; expected a number of seconds, or 0 for no warning.");
  }
  if (config.fusion_threshold_bytes < 0) {
    return Refused("fusion_threshold_bytes is " + std::to_string(config.fusion_threshold_bytes) +
                   "; expected a number of bytes, or 0 to send every tensor separately.");
  }
  if (config.window_bytes != 0 &&
      (config.window_bytes < kLeastWindowBytes || config.window_bytes > kMostWindowBytes)) {
    return Refused("the shared memory of a rank is " + std::to_string(config.window_bytes) +
                   " bytes; expected " + std::to_string(kLeastWindowBytes) + " to " +
                   std::to_string(kMostWindowBytes) + ", or 0 for none.");
  }
  return Status::Ok();
}

}  // namespace tfdist
