#include "socket_team.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "expect.h"
#include "socket/live_descriptor.h"
#include "socket/socket_communicator.h"

using tfdist::LiveDescriptor;
using tfdist::SocketCommunicator;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// The address of this process and those that it forks: a connection keeps its port for a minute
// after its end, and all ports of one address are not enough for a few runs of the tests.
const uint32_t kAddress = INADDR_LOOPBACK + ((static_cast<uint32_t>(getpid()) & 0x7fff) << 8);

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(kAddress);
  return address;
}

int ListenAnywhere(int* port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool listens = bind(listener, any, length) == 0 && listen(listener, 64) == 0 &&
                       getsockname(listener, any, &length) == 0;
  EXPECT(listens);
  *port = ntohs(address.sin_port);
  return listener;
}

int Dial(int port) {
  const int dialled = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(dialled, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return dialled;
}

}  // namespace

SocketPair MakeSocketPair() {
  int port = 0;
  const int listener = ListenAnywhere(&port);
  SocketPair pair;
  pair.ends[0] = Dial(port);
  pair.ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  close(listener);
  return pair;
}

SocketRank::~SocketRank() { EXPECT_EQ(listening(), 0); }

Status SocketRank::Listen(int channel, int* port) {
  if (channel == failing_listen_) return Status(StatusCode::kInternal, "no port is free");
  const int listener = ListenAnywhere(port);
  std::lock_guard<std::mutex> lock(mutex_);
  listeners_[channel] = listener;
  return Status::Ok();
}

// A rank dials those below it, and says who it is.
Status SocketRank::Connect(int channel, const std::vector<int>& ranks,
                           const std::vector<int>& ports, std::vector<int>* descriptors) {
  int listener = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    listener = listeners_.at(channel);
    listeners_.erase(channel);
  }
  std::map<int, int> found;  // by rank
  for (size_t i = 0; i < ranks.size() && ranks[i] < rank_; ++i) {
    found[ranks[i]] = Dial(ports[i]);
    EXPECT_EQ(send(found[ranks[i]], &rank_, sizeof(rank_), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(rank_)));
  }
  while (found.size() < ranks.size()) {
    const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int rank = -1;
    EXPECT_EQ(recv(accepted, &rank, sizeof(rank), MSG_WAITALL), static_cast<ssize_t>(sizeof(rank)));
    found[rank] = accepted;
  }
  close(listener);
  if (channel == failing_connect_) {
    for (const auto& connection : found) close(connection.second);
    return Status(StatusCode::kUnavailable, "the cable is cut");
  }
  for (const auto& connection : found) {
    descriptors->push_back(connection.second);
    Keep(connection.second);
  }
  return Status::Ok();
}

void SocketRank::Keep(int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  descriptors_.push_back(descriptor);
}

void SocketRank::Kill() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int descriptor : descriptors_) shutdown(descriptor, SHUT_RDWR);
}

int SocketRank::listening() {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(listeners_.size());
}

SocketTeam MakeSocketTeam(const std::vector<int>& host_ids) {
  SocketTeam team;
  const int size = static_cast<int>(host_ids.size());
  std::vector<std::vector<LiveDescriptor>> sockets(host_ids.size());
  for (int rank = 0; rank < size; ++rank) {
    team.ranks.push_back(std::make_shared<SocketRank>(rank));
    sockets[rank].resize(host_ids.size());
    for (int lower = 0; lower < rank; ++lower) {
      const SocketPair pair = MakeSocketPair();
      sockets[lower][rank] = LiveDescriptor(pair.ends[0]);
      sockets[rank][lower] = LiveDescriptor(pair.ends[1]);
      team.ranks[lower]->Keep(pair.ends[0]);
      team.ranks[rank]->Keep(pair.ends[1]);
    }
  }
  const std::vector<std::string> hosts(host_ids.size(), "localhost");
  for (int rank = 0; rank < size; ++rank) {
    team.communicators.emplace_back();
    EXPECT_EQ(
        SocketCommunicator::Open(tfdist::MakeTopology(rank, host_ids, hosts), team.ranks[rank],
                                 std::move(sockets[rank]), &team.communicators.back())
            .message(),
        "");
  }
  return team;
}

std::vector<tfdist::Membership> MakeMemberships(const std::vector<int>& host_ids) {
  const size_t size = host_ids.size();
  std::vector<tfdist::Membership> memberships(size);
  for (size_t r = 0; r < size; ++r) {
    tfdist::SocketMembership sockets;
    sockets.rank = static_cast<int>(r);
    sockets.host_ids = host_ids;
    sockets.hosts.assign(size, "localhost");
    sockets.descriptors.assign(size, -1);
    memberships[r].sockets = std::move(sockets);
    for (size_t other = 0; other < r; ++other) {
      const SocketPair pair = MakeSocketPair();
      memberships[r].sockets->descriptors[other] = pair.ends[0];
      memberships[other].sockets->descriptors[r] = pair.ends[1];
    }
  }
  return memberships;
}

void CloseConnections(const tfdist::Membership& membership) {
  for (int descriptor : membership.sockets->descriptors) {
    if (descriptor >= 0) close(descriptor);
  }
}

void InThreads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

int OpenDescriptors() {
  int count = 0;
  for (int number = 0; number < 1024; ++number) count += fcntl(number, F_GETFD) >= 0 ? 1 : 0;
  return count;
}
