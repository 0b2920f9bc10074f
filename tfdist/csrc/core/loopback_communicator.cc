#include "core/loopback_communicator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace tfdist {

// The place where the ranks meet. A sender leaves the address of its bytes; the receiver copies
// them and marks the send as done. Both under the lock, so that a sender whose wait has ended can
// take its unread messages back before its buffers go.
class LoopbackHub {
 public:
  struct Exchange {
    int channel;
    int rank;
    const std::vector<Transfer>& sends;
    const std::vector<Transfer>& receives;
    std::vector<char> sent;      // by index; char, since vector<bool> has no addresses
    std::vector<char> received;  // by index
    size_t open;                 // transfers that are not complete
  };

  void Post(Exchange* exchange) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < exchange->sends.size(); ++i) {
      const Transfer& send = exchange->sends[i];
      if (send.bytes == 0) {
        exchange->sent[i] = 1;
        continue;
      }
      mail_[{exchange->channel, exchange->rank, send.peer}].push_back(
          {send.data, send.bytes, &exchange->sent[i]});
    }
  }

  // Moves what can be moved. True in `progress` when something has arrived.
  Status Poll(Exchange* exchange, const std::vector<int>& members, bool* progress) {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t before = exchange->open;
    for (size_t i = 0; i < exchange->receives.size(); ++i) {
      TFDIST_RETURN_IF_ERROR(Receive(exchange, i));
    }
    exchange->open = std::count(exchange->sent.begin(), exchange->sent.end(), 0) +
                     std::count(exchange->received.begin(), exchange->received.end(), 0);
    *progress = exchange->open < before;
    std::vector<int> dead;
    for (int rank : members) {
      if (dead_.count(rank) != 0) dead.push_back(rank);
    }
    if (exchange->open > 0 && !dead.empty()) {
      return Status(StatusCode::kUnavailable, RankList(dead) + " (host localhost) was killed");
    }
    return Status::Ok();
  }

  std::vector<int> Missing(const Exchange& exchange) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::set<int> missing;
    for (size_t i = 0; i < exchange.sends.size(); ++i) {
      if (exchange.sent[i] == 0) missing.insert(exchange.sends[i].peer);
    }
    for (size_t i = 0; i < exchange.receives.size(); ++i) {
      if (exchange.received[i] == 0) missing.insert(exchange.receives[i].peer);
    }
    return {missing.begin(), missing.end()};
  }

  void Withdraw(int channel, int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& box : mail_) {
      const bool ours = std::get<0>(box.first) == channel && std::get<1>(box.first) == rank;
      if (ours) box.second.clear();
    }
  }

  void Kill(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    dead_.insert(rank);
  }

 private:
  struct Message {
    const void* data;
    int64_t bytes;
    char* sent;
  };

  Status Receive(Exchange* exchange, size_t index) {
    const Transfer& receive = exchange->receives[index];
    if (exchange->received[index] != 0) return Status::Ok();
    if (receive.bytes == 0) {
      exchange->received[index] = 1;
      return Status::Ok();
    }
    std::deque<Message>& box = mail_[{exchange->channel, receive.peer, exchange->rank}];
    if (box.empty()) return Status::Ok();
    const Message message = box.front();
    if (message.bytes != receive.bytes) {
      return Status(StatusCode::kInternal, "rank " + std::to_string(exchange->rank) + " expected " +
                                               std::to_string(receive.bytes) + " bytes from rank " +
                                               std::to_string(receive.peer) + ", which sent " +
                                               std::to_string(message.bytes));
    }
    box.pop_front();
    std::memcpy(receive.data, message.data, static_cast<size_t>(message.bytes));
    *message.sent = 1;
    exchange->received[index] = 1;
    return Status::Ok();
  }

  std::mutex mutex_;
  using Box = std::tuple<int, int, int>;     // channel, from, to
  std::map<Box, std::deque<Message>> mail_;  // messages in order
  std::set<int> dead_;
};

std::vector<std::unique_ptr<LoopbackCommunicator>> LoopbackCommunicator::Create(int size) {
  auto hub = std::make_shared<LoopbackHub>();
  std::vector<std::unique_ptr<LoopbackCommunicator>> communicators;
  const std::vector<int> host_ids(size, 0);
  const std::vector<std::string> hosts(size, "localhost");
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(
        std::make_unique<LoopbackCommunicator>(MakeTopology(rank, host_ids, hosts), 0, hub));
  }
  return communicators;
}

LoopbackCommunicator::LoopbackCommunicator(Topology topology, int channel,
                                           std::shared_ptr<LoopbackHub> hub)
    : Communicator(std::move(topology)), channel_(channel), hub_(std::move(hub)) {}

LoopbackCommunicator::~LoopbackCommunicator() = default;

Status LoopbackCommunicator::Exchange(const std::vector<Transfer>& sends,
                                      const std::vector<Transfer>& receives, Wait* wait) {
  LoopbackHub::Exchange exchange{channel_,
                                 rank(),
                                 sends,
                                 receives,
                                 std::vector<char>(sends.size()),
                                 std::vector<char>(receives.size()),
                                 sends.size() + receives.size()};
  wait->Begin();
  hub_->Post(&exchange);
  const auto missing = [this, &exchange] { return hub_->Missing(exchange); };
  while (true) {
    bool progress = false;
    Status status = hub_->Poll(&exchange, topology().world_ranks, &progress);
    if (status.ok() && exchange.open == 0) return status;
    if (progress) wait->Progress();
    if (status.ok()) status = wait->Pause(missing);
    if (status.ok()) continue;
    hub_->Withdraw(channel_, rank());
    if (status.code() != StatusCode::kUnavailable) return status;
    return Status(status.code(), status.message() + " while " +
                                     RankListWithHosts(topology(), {rank()}) + " waited in " +
                                     wait->Describe() + ". See that rank's log for the cause.");
  }
}

Status LoopbackCommunicator::Subset(const std::vector<int>& ranks, int channel,
                                    std::unique_ptr<Communicator>* subset) {
  *subset =
      std::make_unique<LoopbackCommunicator>(SubsetTopology(topology(), ranks), channel, hub_);
  return Status::Ok();
}

Status LoopbackCommunicator::Finalize(bool /*clean*/) { return Status::Ok(); }

void LoopbackCommunicator::Kill() { hub_->Kill(topology().world_ranks[rank()]); }

}  // namespace tfdist
