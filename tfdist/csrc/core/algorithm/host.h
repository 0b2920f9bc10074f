// The host of this rank, as a collective uses it: a window that the host's ranks share, and a way
// to the ranks on other hosts that have the same part of the work. Runs no collective.
//
// Empty where ranks share no memory: alone on their hosts, or unable to map it. In unequal numbers
// they meet in it before a collective, whose data go by messages.
#ifndef TFDIST_CORE_ALGORITHM_HOST_H_
#define TFDIST_CORE_ALGORITHM_HOST_H_

#include <memory>

#include "core/place/topology.h"
#include "core/place/window.h"
#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"

namespace tfdist {

struct Host {
  Topology topology;                    // of the host's ranks alone
  std::shared_ptr<Window> board;        // where they meet; null: by messages
  std::shared_ptr<Window> window;       // the same, or null: collectives go by messages
  std::unique_ptr<Communicator> peers;  // the ranks with this local rank; null on a single host
};

// Opens the window of each host. All ranks of `communicator` call it and all get one, or none does;
// then one rank says why on stderr. `channel` is a number for Communicator::Subset.
// An error is one of the transport.
Status OpenHost(const EngineConfig& config, int channel, Communicator* communicator, Wait* wait,
                Host* host);

// The same with a monitor, a meter and a timeline, where it has none.
EngineConfig Instrumented(EngineConfig config);

// Lets config.monitor see the ranks of this host. All ranks of `communicator` call it. An error is
// one of the transport.
Status OpenMonitor(const EngineConfig& config, const Host& host, Communicator* communicator,
                   Wait* wait);

}  // namespace tfdist

#endif  // TFDIST_CORE_ALGORITHM_HOST_H_
