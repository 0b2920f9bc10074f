#include "core/wire/communicator_factory.h"

#include <map>
#include <mutex>
#include <utility>

#include "core/wire/loopback_communicator.h"

namespace tfdist {
namespace {

Status MakeSelf(const EngineConfig& /*config*/, const Membership& membership,
                std::unique_ptr<Communicator>* communicator) {
  const bool whole = membership.ranks.empty() || membership.ranks == std::vector<int>{0};
  if (!whole || membership.mpi_communicator.has_value()) {
    return Status(StatusCode::kInvalidArgument,
                  "init received a communicator, but this process was started without a launcher "
                  "and is a world of one. Start it with tfdistrun, or omit the communicator.");
  }
  *communicator = std::move(LoopbackCommunicator::Create(1)[0]);
  return Status::Ok();
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, CommunicatorFactory> factories = {{"self", MakeSelf}};
};

// A function, because static initialisers of other files may run first; never destroyed.
Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

bool RegisterCommunicatorFactory(const std::string& transport, CommunicatorFactory factory) {
  std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  TheRegistry().factories[transport] = factory;
  return true;
}

Status MakeCommunicator(const std::string& transport, const EngineConfig& config,
                        const Membership& membership, std::unique_ptr<Communicator>* communicator) {
  CommunicatorFactory factory = nullptr;
  std::string known;
  {
    std::lock_guard<std::mutex> lock(TheRegistry().mutex);
    for (const auto& entry : TheRegistry().factories) {
      known += (known.empty() ? "'" : ", '") + entry.first + "'";
      if (entry.first == transport) factory = entry.second;
    }
  }
  if (factory == nullptr) {
    return Status(StatusCode::kUnimplemented, "transport '" + transport +
                                                  "' is not in this build, which has " + known +
                                                  ". Use one of those, or rebuild with the other.");
  }
  return factory(config, membership, communicator);
}

}  // namespace tfdist
