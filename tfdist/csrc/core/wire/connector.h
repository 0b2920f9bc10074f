// Makes the connections of a channel: the interface to whoever knows addresses and keys. Moves no
// data.
//
// Each end has proven to the other that it belongs to the job before a connection is handed over.
// Thread safe: process sets may connect at the same time.
#ifndef TFDIST_CORE_WIRE_CONNECTOR_H_
#define TFDIST_CORE_WIRE_CONNECTOR_H_

#include <vector>

#include "core/value/status.h"

namespace tfdist {

class Connector {
 public:
  virtual ~Connector() = default;

  // Starts to listen for the connections of `channel`; `port` is what the other ends need.
  virtual Status Listen(int channel, int* port) = 0;

  // Ends what Listen has started, also in an error and with no ranks. descriptors[i] becomes the
  // connection with ranks[i], whose listener has ports[i]; ranks are numbers among all, ascending
  // and without this one. All of them call it at the same time. The caller owns the descriptors;
  // in an error there are none. Waits as long as the implementation lets it.
  virtual Status Connect(int channel, const std::vector<int>& ranks, const std::vector<int>& ports,
                         std::vector<int>* descriptors) = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WIRE_CONNECTOR_H_
