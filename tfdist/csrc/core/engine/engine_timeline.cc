#include <string>

#include "core/engine/engine.h"
#include "core/watch/steady_clock.h"
#include "core/watch/timeline.h"
#include "core/wire/wait.h"

// The engine's part in recording its calls, beside core/engine/engine.cc.
namespace tfdist {

Status Engine::StartTimeline(const std::string& path, bool mark_cycles) {
  const Turn turn(this, nullptr);
  TFDIST_RETURN_IF_ERROR(CheckUsable());
  Timeline* const timeline = config_.timeline.get();
  const Topology& topology = communicator_->topology();
  Call call;
  call.operation = Operation::kStartTimeline;
  call.error = timeline->Open(path).message();
  const bool opened = call.error.empty();
  Wait wait(config_, topology, [&] { return TitleOf(call); });
  Agreement agreement;
  TraceSource source{topology.rank, topology.size, topology.hosts[topology.rank], {}, mark_cycles};
  Status status = Agree(call, &wait, &agreement);
  if (status.ok()) {
    status = Keep(
        clock_probe_.Measure(communicator_.get(), &wait, SteadyNs, UnixNsAtZero(), &source.clock));
  }
  if (status.ok()) {
    timeline->Start(source);
  } else if (opened) {
    timeline->Stop();
  }
  return status;
}

}  // namespace tfdist
