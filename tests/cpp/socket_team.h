// Ranks as threads of one process, with real TCP connections over 127.0.0.1 between them. They are
// made without keys: who is who is known here.
#ifndef TESTS_CPP_SOCKET_TEAM_H_
#define TESTS_CPP_SOCKET_TEAM_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/wire/communicator.h"
#include "core/wire/communicator_factory.h"
#include "core/wire/connector.h"

// Both ends of a TCP connection that is made for the caller, who owns them.
struct SocketPair {
  int ends[2];
};
SocketPair MakeSocketPair();

// The connections of one rank's process.
class SocketRank : public tfdist::Connector {
 public:
  explicit SocketRank(int rank) : rank_(rank) {}
  ~SocketRank() override;

  tfdist::Status Listen(int channel, int* port) override;
  tfdist::Status Connect(int channel, const std::vector<int>& ranks, const std::vector<int>& ports,
                         std::vector<int>* descriptors) override;

  // From any thread: what the others see when the process of this rank is killed.
  void Kill();

  // Counts a connection as one of this rank.
  void Keep(int descriptor);

  // What the next Listen or Connect of `channel` fails with, while it still ends what it should.
  void FailListen(int channel) { failing_listen_ = channel; }
  void FailConnect(int channel) { failing_connect_ = channel; }

  // Of Listen, those that no Connect has ended.
  int listening();

 private:
  const int rank_;
  int failing_listen_ = -1;
  int failing_connect_ = -1;
  std::mutex mutex_;
  std::map<int, int> listeners_;  // by channel
  std::vector<int> descriptors_;  // that connections have had
};

struct SocketTeam {
  std::vector<std::shared_ptr<SocketRank>> ranks;
  std::vector<std::unique_ptr<tfdist::Communicator>> communicators;  // by rank
};

// A rank on each of these hosts.
SocketTeam MakeSocketTeam(const std::vector<int>& host_ids);

// A rank on each of these hosts, each with connections to the others that the caller owns.
std::vector<tfdist::Membership> MakeMemberships(const std::vector<int>& host_ids);
void CloseConnections(const tfdist::Membership& membership);

// Runs `body` in a thread for each of so many ranks.
void InThreads(int size, const std::function<void(int rank)>& body);

// Descriptors that this process has open.
int OpenDescriptors();

#endif  // TESTS_CPP_SOCKET_TEAM_H_
