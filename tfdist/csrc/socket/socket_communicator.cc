#include "socket/socket_communicator.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "shm/mapped_window.h"
#include "shm/process_fork.h"
#include "socket/channel.h"

namespace tfdist {
namespace {

[[maybe_unused]] const bool kSocketRegistered =
    RegisterCommunicatorFactory("socket", SocketCommunicator::Create);

Status SystemFailure(const std::string& doing) {
  return Status(StatusCode::kInternal, doing + " failed: " + std::strerror(errno) + ".");
}

Status CheckMembership(const SocketMembership& sockets) {
  const int size = static_cast<int>(sockets.host_ids.size());
  const auto fits = [size](size_t count) { return count == static_cast<size_t>(size); };
  if (size > 0 && sockets.rank >= 0 && sockets.rank < size && fits(sockets.hosts.size()) &&
      fits(sockets.descriptors.size())) {
    return Status::Ok();
  }
  return Status(StatusCode::kInvalidArgument,
                "a transport over sockets received rank " + std::to_string(sockets.rank) + " of " +
                    std::to_string(size) + ", " + std::to_string(sockets.hosts.size()) +
                    " hosts and " + std::to_string(sockets.descriptors.size()) +
                    " connections; expected a rank below the number of ranks, and a host and a "
                    "connection for each.");
}

// Small messages leave at once, and no call waits.
Status Prepare(int descriptor) {
  const int now = 1;
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0 ||
      setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now)) != 0) {
    return SystemFailure("using descriptor " + std::to_string(descriptor) + " as a TCP connection");
  }
  return Status::Ok();
}

}  // namespace

Status SocketCommunicator::Create(const EngineConfig& /*config*/, const Membership& membership,
                                  std::unique_ptr<Communicator>* communicator) {
  if (!membership.sockets.has_value()) {
    return Status(StatusCode::kInvalidArgument,
                  "the transport 'socket' received no connections. Start it with "
                  "tfdist_init_sockets.");
  }
  const SocketMembership& given = *membership.sockets;
  TFDIST_RETURN_IF_ERROR(CheckMembership(given));
  std::vector<LiveDescriptor> sockets(given.descriptors.size());
  for (int r = 0; r < static_cast<int>(sockets.size()); ++r) {
    if (r == given.rank) continue;
    sockets[r] = LiveDescriptor(fcntl(given.descriptors[r], F_DUPFD_CLOEXEC, 0));
    if (sockets[r].get() < 0) {
      return SystemFailure("using descriptor " + std::to_string(given.descriptors[r]) +
                           " as the connection to rank " + std::to_string(r));
    }
  }
  WatchForks();
  return Open(MakeTopology(given.rank, given.host_ids, given.hosts), given.connector,
              std::move(sockets), communicator);
}

Status SocketCommunicator::Open(Topology topology, std::shared_ptr<Connector> connector,
                                std::vector<LiveDescriptor> sockets,
                                std::unique_ptr<Communicator>* communicator) {
  std::unique_ptr<SocketCommunicator> made(
      new SocketCommunicator(std::move(topology), std::move(connector)));
  made->events_ = LiveDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (made->events_.get() < 0) return SystemFailure("epoll_create1");
  for (int r = 0; r < made->size(); ++r) {
    if (r != made->rank()) TFDIST_RETURN_IF_ERROR(made->Add(r, std::move(sockets[r])));
  }
  *communicator = std::move(made);
  return Status::Ok();
}

SocketCommunicator::SocketCommunicator(Topology topology, std::shared_ptr<Connector> connector)
    : Communicator(std::move(topology)),
      connector_(std::move(connector)),
      connections_(static_cast<size_t>(size())) {}

Status SocketCommunicator::Add(int rank, LiveDescriptor socket) {
  TFDIST_RETURN_IF_ERROR(Prepare(socket.get()));
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u32 = static_cast<uint32_t>(rank);
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
    return SystemFailure("epoll_ctl");
  }
  connections_[rank] = std::make_unique<Connection>(std::move(socket));
  return Status::Ok();
}

Status SocketCommunicator::Exchange(const std::vector<Transfer>& sends,
                                    const std::vector<Transfer>& receives, Wait* wait) {
  TFDIST_RETURN_IF_ERROR(end_);
  wait->Begin();
  latest_ = -1;
  for (const Transfer& send : sends) {
    if (send.bytes > 0) Busy(send.peer)->Send(send.data, send.bytes);
  }
  for (const Transfer& receive : receives) {
    if (receive.bytes > 0) Busy(receive.peer)->Receive(receive.data, receive.bytes);
  }
  return Complete(wait);
}

// Moved at once where there is room; else by the Exchange that this is within, or the next.
void SocketCommunicator::SendNote(int peer, int64_t note) {
  if (!end_.ok() || connections_[peer]->end() != Connection::End::kNone) return;
  Connection* const connection = connections_[peer].get();
  const bool was_busy = connection->busy();
  connection->SendNote(note);
  connection->Move();
  if (!was_busy && connection->busy()) busy_.push_back(peer);
}

bool SocketCommunicator::TakeNote(int* peer, int64_t* note) {
  if (!end_.ok()) return false;
  AwaitEvents(0);
  AnyIdleHasEnded();
  for (*peer = 0; *peer < size(); ++*peer) {
    Connection* const connection = connections_[*peer].get();
    if (connection != nullptr && connection->TakeNote(note)) return true;
  }
  return false;
}

bool SocketCommunicator::HoldsMessageOf(int peer) {
  return connections_[peer] != nullptr && connections_[peer]->holds_message();
}

// The connection to a rank that is to get a transfer.
Connection* SocketCommunicator::Busy(int peer) {
  Connection* const connection = connections_[peer].get();
  if (!connection->busy()) busy_.push_back(peer);
  return connection;
}

Status SocketCommunicator::Complete(Wait* wait) {
  bool waited = false;
  while (!busy_.empty()) {
    const bool moved = MoveAll();
    const bool ended = std::any_of(busy_.begin(), busy_.end(),
                                   [this](int r) { return HasEnded(*connections_[r]); });
    if (ended || (!moved && AnyIdleHasEnded())) {
      int lost = -1;
      const Status cause = Cause({}, &lost);
      return GiveUp(cause, lost, *wait);
    }
    if (moved) {
      wait->Progress();
      continue;
    }
    waited = true;
    TFDIST_RETURN_IF_ERROR(Sleep(wait));
  }
  if (waited && latest_ >= 0) wait->Ended(topology(), latest_);
  return Status::Ok();
}

// Until something has arrived or there is room to send, or until `wait` wants to look.
Status SocketCommunicator::Sleep(Wait* wait) {
  if (wait->Spins()) {
    AwaitEvents(0);
    return Status::Ok();
  }
  const Status status = wait->Look(topology(), [this] { return Missing(); });
  if (status.ok()) {
    AwaitEvents(wait->MsToNextLook());
    return status;
  }
  return GiveUp(status, wait->lost(), *wait);
}

Status SocketCommunicator::CheckPeers(const std::vector<int>& ranks, int* lost) {
  TFDIST_RETURN_IF_ERROR(end_);
  AwaitEvents(0);
  MoveAll();  // notes
  bool ended = AnyIdleHasEnded();
  for (int r : busy_) ended = ended || HasEnded(*connections_[r]);
  for (int r : ranks) ended = ended || HasClosed(r);
  return ended ? Cause(ranks, lost) : Status::Ok();
}

// True where a byte has moved.
bool SocketCommunicator::MoveAll() {
  bool moved = false;
  for (size_t i = 0; i < busy_.size();) {
    Connection& connection = *connections_[busy_[i]];
    moved = connection.Move() || moved;
    if (connection.busy()) {
      ++i;
      continue;
    }
    latest_ = busy_[i];
    busy_[i] = busy_.back();
    busy_.pop_back();
  }
  return moved;
}

void SocketCommunicator::AwaitEvents(int milliseconds) {
  constexpr int kMostEvents = 64;
  epoll_event events[kMostEvents];
  const int count = epoll_wait(events_.get(), events, kMostEvents, milliseconds);
  constexpr uint32_t kOver = EPOLLHUP | EPOLLERR;
  for (int i = 0; i < count; ++i) {
    const uint32_t what = events[i].events;
    connections_[events[i].data.u32]->Wake((what & (EPOLLIN | EPOLLRDHUP | kOver)) != 0,
                                           (what & (EPOLLOUT | kOver)) != 0);
  }
}

// A peer may close what nobody needs any more.
bool SocketCommunicator::HasEnded(const Connection& connection) const {
  if (connection.end() == Connection::End::kClosed) return connection.busy();
  return connection.end() != Connection::End::kNone;
}

bool SocketCommunicator::HasClosed(int rank) const {
  return connections_[rank] != nullptr && connections_[rank]->end() == Connection::End::kClosed;
}

// Whether one of the other ranks says that it has failed, though nothing is expected from it now.
bool SocketCommunicator::AnyIdleHasEnded() {
  bool ended = false;
  for (const auto& connection : connections_) {
    if (connection == nullptr || connection->busy()) continue;
    while (connection->Move()) {  // notes may stand before it
    }
    ended = ended || HasEnded(*connection);
  }
  return ended;
}

std::vector<int> SocketCommunicator::Missing() const {
  std::vector<int> ranks = busy_;
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Why this communicator has ended: what a peer says goes before what this rank sees, since a peer
// that ends because of another ends its connections too. `lost` is a number among all.
Status SocketCommunicator::Cause(const std::vector<int>& awaited, int* lost) {
  AwaitEvents(0);
  std::map<Connection::End, std::vector<int>> ended;  // ranks, ascending
  for (int r = 0; r < size(); ++r) {
    Connection* const connection = connections_[r].get();
    if (connection == nullptr) continue;
    while (connection->Move()) {
    }
    const bool is_awaited = std::count(awaited.begin(), awaited.end(), r) > 0;
    if (HasEnded(*connection) || (is_awaited && HasClosed(r)))
      ended[connection->end()].push_back(r);
  }
  if (ended.count(Connection::End::kAborted) != 0) {
    return Notified(ended[Connection::End::kAborted], lost);
  }
  const std::string self = Named(rank());
  if (ended.count(Connection::End::kMalformed) != 0) {
    const int sender = ended[Connection::End::kMalformed][0];
    const Connection& connection = *connections_[sender];
    return Status(StatusCode::kInternal, self + " received " + connection.received() + " from " +
                                             Named(sender) + "; expected " + connection.expected() +
                                             ".");
  }
  const std::vector<int>& closed = ended[Connection::End::kClosed];
  *lost = topology().world_ranks[closed[0]];
  return Status(StatusCode::kUnavailable, self + " lost its connection to " +
                                              RankListWithHosts(topology(), closed) + ": " +
                                              connections_[closed[0]]->reason() + ".");
}

// By the first of these ranks that names another one, if any does.
Status SocketCommunicator::Notified(const std::vector<int>& by, int* lost) const {
  const auto names = [this](int r) { return connections_[r]->lost() >= 0; };
  const auto teller = std::find_if(by.begin(), by.end(), names);
  std::string what = "it has failed";
  if (teller != by.end()) {
    *lost = connections_[*teller]->lost();
    const std::vector<int>& numbers = topology().world_ranks;
    const auto found = std::find(numbers.begin(), numbers.end(), *lost);
    what = (found == numbers.end() ? RankList({*lost})
                                   : Named(static_cast<int>(found - numbers.begin()))) +
           " is lost";
  }
  return Status(StatusCode::kUnavailable, Named(rank()) + " was notified by " +
                                              Named(teller == by.end() ? by[0] : *teller) +
                                              " that " + what + ".");
}

std::string SocketCommunicator::Named(int rank) const {
  return RankListWithHosts(topology(), {rank});
}

// Ends this communicator for all ranks of it.
Status SocketCommunicator::GiveUp(const Status& status, int lost, const Wait& wait) {
  TFDIST_RETURN_IF_ERROR(end_);
  for (const auto& connection : connections_) {
    if (connection != nullptr) connection->Abort(lost);
  }
  busy_.clear();
  end_ = status;
  if (status.code() != StatusCode::kDeadlineExceeded) {
    end_ =
        Status(status.code(), status.message() + " It was in " + wait.Describe() +
                                  ". See the logs of the ranks named here for the first failure.");
  }
  return end_;
}

Status SocketCommunicator::Subset(const std::vector<int>& ranks, int channel, Wait* wait,
                                  std::unique_ptr<Communicator>* subset) {
  const auto use = [&](std::vector<LiveDescriptor> sockets) {
    return Open(SubsetTopology(topology(), ranks), connector_, std::move(sockets), subset);
  };
  const Status status = OpenChannel({ranks, channel, connector_.get(), this, wait}, use);
  if (!status.ok()) subset->reset();
  return status;
}

Status SocketCommunicator::OpenWindow(int64_t bytes, Wait* wait, std::unique_ptr<Window>* window) {
  return MapWindow(bytes, this, wait, window);
}

// What was sent is on its way, also after the connections are closed. Where some of it may be
// unread they stay open: the others shall read that this rank has ended.
Status SocketCommunicator::Finalize(bool clean) {
  for (auto& connection : connections_) {
    if (connection == nullptr) continue;
    if (clean) {
      connection.reset();
    } else if (end_.ok()) {
      connection->Abort(-1);
    }
  }
  busy_.clear();
  if (end_.ok()) {
    end_ = Status(StatusCode::kFailedPrecondition, Named(rank()) + " has closed its connections.");
  }
  return Status::Ok();
}

}  // namespace tfdist
