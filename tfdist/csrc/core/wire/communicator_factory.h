// Finds a transport by its name, so that core can start one without including its room.
// Knows only "self"; the other rooms register theirs when the library is loaded.
//
// The registry is written by static initialisers and only read afterwards. Thread safe.
#ifndef TFDIST_CORE_WIRE_COMMUNICATOR_FACTORY_H_
#define TFDIST_CORE_WIRE_COMMUNICATOR_FACTORY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/value/engine_config.h"
#include "core/value/export.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/connector.h"

namespace tfdist {

// The ranks of a transport over connections that are there already.
struct SocketMembership {
  int rank = 0;                    // of this process
  std::vector<int> host_ids;       // by rank; equal exactly where two ranks share a host
  std::vector<std::string> hosts;  // by rank, for messages
  // By rank: its connection, -1 for this one. They stay the caller's: the transport has copies.
  std::vector<int> descriptors;
  std::shared_ptr<Connector> connector;
};

// Which processes of the launched job become the ranks. At most one of the first two is given;
// without, all of them do.
struct Membership {
  std::vector<int> ranks;  // their numbers in the job, this process among them, in rank order
  // The Fortran handle of a communicator of theirs, which is duplicated. It may be negative.
  std::optional<int> mpi_communicator;
  std::optional<SocketMembership> sockets;  // for the transport "socket" alone
};

using CommunicatorFactory = Status (*)(const EngineConfig& config, const Membership& membership,
                                       std::unique_ptr<Communicator>* communicator);

// Returns true, so that a namespace-scope variable can hold the call.
TFDIST_API bool RegisterCommunicatorFactory(const std::string& transport,
                                            CommunicatorFactory factory);

// kUnimplemented when this build has no such transport.
Status MakeCommunicator(const std::string& transport, const EngineConfig& config,
                        const Membership& membership, std::unique_ptr<Communicator>* communicator);

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_COMMUNICATOR_FACTORY_H_
