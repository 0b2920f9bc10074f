#include "core/watch/meter.h"

#include <utility>

#include "core/watch/steady_clock.h"

namespace tfdist {
namespace {

constexpr std::pair<const char*, std::atomic<int64_t> CollectiveCost::*> kFields[] = {
    {"calls", &CollectiveCost::calls},
    {"bytes", &CollectiveCost::bytes},
    {"total_ns", &CollectiveCost::total_ns},
    {"wait_ns", &CollectiveCost::wait_ns},
    {"exchange_ns", &CollectiveCost::exchange_ns},
    {"pack_ns", &CollectiveCost::pack_ns},
    {"reduce_ns", &CollectiveCost::reduce_ns},
    {"unpack_ns", &CollectiveCost::unpack_ns}};

}  // namespace

std::string Meter::Json() const {
  std::string text;
  for (size_t i = 0; i < kOperations; ++i) {
    const Operation operation = static_cast<Operation>(i);
    if (!IsCollective(operation)) continue;
    const CollectiveCost& cost = costs_[i];
    std::string fields;
    for (const auto& field : kFields) {
      const int64_t value = (cost.*field.second).load(std::memory_order_relaxed);
      fields += (fields.empty() ? "\"" : ", \"") + std::string(field.first) +
                "\": " + std::to_string(value);
    }
    text +=
        (text.empty() ? "{\"" : ", \"") + std::string(NameOf(operation)) + "\": {" + fields + "}";
  }
  return text + "}";
}

CollectiveCost& Meter::Nowhere() {
  static CollectiveCost* const nowhere = new CollectiveCost;
  return *nowhere;
}

void MeteredCall::Begin(const Call& call, CollectiveCost* cost) {
  End();
  cost_ = cost;
  start_ns_ = SteadyNs();
  int64_t bytes = 0;
  if (call.tensors != nullptr) {
    for (const TensorView& tensor : *call.tensors) bytes += tensor.bytes();
  }
  cost->calls.fetch_add(1, std::memory_order_relaxed);
  cost->bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void MeteredCall::End() {
  if (cost_ == nullptr) return;
  cost_->total_ns.fetch_add(SteadyNs() - start_ns_, std::memory_order_relaxed);
  cost_ = nullptr;
}

}  // namespace tfdist
