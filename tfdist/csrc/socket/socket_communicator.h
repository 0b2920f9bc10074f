// A transport over TCP: one connection for each pair of ranks and channel, made by others (a
// launcher and a Connector), who have also made sure who is at the other end.
//
// Owns its connections, and so does each subset. After an error the peers are told, so that they
// fail at once and name the rank that was lost, and every later Exchange returns that error.
// Different communicators may be used by different threads at the same time.
#ifndef TFDIST_SOCKET_SOCKET_COMMUNICATOR_H_
#define TFDIST_SOCKET_SOCKET_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/wire/communicator.h"
#include "core/wire/communicator_factory.h"
#include "core/wire/connector.h"
#include "socket/connection.h"
#include "socket/live_descriptor.h"

namespace tfdist {

class SocketCommunicator : public Communicator {
 public:
  // Of membership.sockets. Waits for nobody.
  static Status Create(const EngineConfig& config, const Membership& membership,
                       std::unique_ptr<Communicator>* communicator);

  // Over connections by rank, none at its own. kInternal where one is no TCP connection.
  static Status Open(Topology topology, std::shared_ptr<Connector> connector,
                     std::vector<LiveDescriptor> sockets,
                     std::unique_ptr<Communicator>* communicator);

  Status Exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                  Wait* wait) override;
  Status CheckPeers(const std::vector<int>& ranks, int* lost) override;
  Status GiveUp(const Status& status, int lost, const Wait& wait) override;
  void SendNote(int peer, int64_t note) override;
  bool TakeNote(int* peer, int64_t* note) override;
  bool HoldsMessageOf(int peer) override;
  Status Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                std::unique_ptr<Communicator>* subset) override;
  Status OpenWindow(int64_t bytes, Wait* wait, std::unique_ptr<Window>* window) override;
  Status Finalize(bool clean) override;

 private:
  SocketCommunicator(Topology topology, std::shared_ptr<Connector> connector);

  Status Add(int rank, LiveDescriptor socket);
  Connection* Busy(int peer);
  Status Complete(Wait* wait);
  Status Sleep(Wait* wait);
  bool MoveAll();
  void AwaitEvents(int milliseconds);
  bool HasEnded(const Connection& connection) const;
  bool AnyIdleHasEnded();
  std::vector<int> Missing() const;
  Status Cause(const std::vector<int>& awaited, int* lost);
  bool HasClosed(int rank) const;
  Status Notified(const std::vector<int>& by, int* lost) const;
  std::string Named(int rank) const;

  const std::shared_ptr<Connector> connector_;
  LiveDescriptor events_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank; null: this one
  std::vector<int> busy_;                                 // ranks with a transfer under way
  int latest_ = -1;                                       // whose transfers were complete last
  Status end_;                                            // not ok: why nothing can be exchanged
};

}  // namespace tfdist

#endif  // TFDIST_SOCKET_SOCKET_COMMUNICATOR_H_
