#include "core/value/calling_thread.h"

namespace tfdist {
namespace {

thread_local std::string calling_thread;

}  // namespace

const std::string& CallingThread() { return calling_thread; }

void SetCallingThread(std::string name) { calling_thread = std::move(name); }

}  // namespace tfdist
