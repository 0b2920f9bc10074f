// Connects some of the ranks for themselves, so that what they send is apart from what all send.
// The connections are made by a Connector; here is the agreement on them. Moves no other data.
#ifndef TFDIST_SOCKET_CHANNEL_H_
#define TFDIST_SOCKET_CHANNEL_H_

#include <functional>
#include <memory>
#include <vector>

#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/connector.h"
#include "core/wire/wait.h"
#include "socket/live_descriptor.h"

namespace tfdist {

// Of one communicator's Subset, with its arguments.
struct ChannelSpec {
  const std::vector<int>& ranks;
  int channel;
  Connector* connector;
  Communicator* over;  // where the ranks exchange their ports
  Wait* wait;
};

// Calls `use` with this rank's connections, by its place in spec.ranks, none at its own. An error
// of a Connector or of `use` is the error of all the ranks, which names the first that has one, if
// `spec.over` itself has not failed.
Status OpenChannel(const ChannelSpec& spec,
                   const std::function<Status(std::vector<LiveDescriptor>)>& use);

}  // namespace tfdist

#endif  // TFDIST_SOCKET_CHANNEL_H_
