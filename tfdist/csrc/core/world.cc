#include "core/world.h"

#include <mutex>
#include <utility>

namespace tfdist {
namespace {

struct Slot {
  std::mutex mutex;
  std::shared_ptr<Engine> engine;
};

// Never destroyed: a thread of the framework may still ask while the process exits.
Slot& TheSlot() {
  static Slot* const slot = new Slot;
  return *slot;
}

}  // namespace

std::shared_ptr<Engine> World::Get() {
  std::lock_guard<std::mutex> lock(TheSlot().mutex);
  return TheSlot().engine;
}

std::shared_ptr<Engine> World::Set(std::shared_ptr<Engine> engine) {
  std::lock_guard<std::mutex> lock(TheSlot().mutex);
  std::swap(TheSlot().engine, engine);
  return engine;
}

}  // namespace tfdist
