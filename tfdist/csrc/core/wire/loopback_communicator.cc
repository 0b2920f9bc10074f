#include "core/wire/loopback_communicator.h"

#include <algorithm>
#include <cstdlib>
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
    int rank;                       // of the sender among all
    const std::vector<int>& ranks;  // by rank in the channel: its number among all
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
      mail_[{exchange->channel, exchange->rank, exchange->ranks[send.peer]}].push_back(
          {send.data, send.bytes, &exchange->sent[i]});
    }
  }

  // Moves what can be moved. True in `progress` when something has arrived.
  Status Poll(Exchange* exchange, bool* progress) {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t before = exchange->open;
    for (size_t i = 0; i < exchange->receives.size(); ++i) {
      TFDIST_RETURN_IF_ERROR(Receive(exchange, i));
    }
    exchange->open = std::count(exchange->sent.begin(), exchange->sent.end(), 0) +
                     std::count(exchange->received.begin(), exchange->received.end(), 0);
    *progress = exchange->open < before;
    return exchange->open > 0 ? Killed(DeadOf(exchange->ranks)) : Status::Ok();
  }

  static Status Killed(const std::vector<int>& dead) {
    if (dead.empty()) return Status::Ok();
    return Status(StatusCode::kUnavailable, RankList(dead) + " (host localhost) was killed");
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

  void SendNote(int channel, int from, int to, int64_t note) {
    std::lock_guard<std::mutex> lock(mutex_);
    notes_[{channel, to}].push_back({from, note});
  }

  // `from` is a number among all.
  bool TakeNote(int channel, int to, int* from, int64_t* note) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<std::pair<int, int64_t>>& box = notes_[{channel, to}];
    if (box.empty()) return false;
    std::tie(*from, *note) = box.front();
    box.pop_front();
    return true;
  }

  void Withdraw(int channel, int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& box : mail_) {
      const bool ours = std::get<0>(box.first) == channel && std::get<1>(box.first) == rank;
      if (ours) box.second.clear();
    }
  }

  // The memory of a window, zeros; the first of its ranks to ask makes it.
  std::shared_ptr<char> WindowMemory(int channel, int host, int64_t bytes) {
    constexpr size_t kAlignment = alignof(Window::Counters);
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<char>& memory = windows_[{channel, host}];
    if (memory == nullptr) {
      const size_t rounded =
          (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
      memory.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)), std::free);
      std::memset(memory.get(), 0, rounded);
    }
    return memory;
  }

  std::set<int> Dead() {
    std::lock_guard<std::mutex> lock(mutex_);
    return dead_;
  }

  // Those of `ranks` that are dead.
  std::vector<int> Dead(const std::vector<int>& ranks) {
    std::lock_guard<std::mutex> lock(mutex_);
    return DeadOf(ranks);
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

  std::vector<int> DeadOf(const std::vector<int>& ranks) const {
    std::vector<int> dead;
    for (int rank : ranks) {
      if (dead_.count(rank) != 0) dead.push_back(rank);
    }
    return dead;
  }

  Status Receive(Exchange* exchange, size_t index) {
    const Transfer& receive = exchange->receives[index];
    if (exchange->received[index] != 0) return Status::Ok();
    if (receive.bytes == 0) {
      exchange->received[index] = 1;
      return Status::Ok();
    }
    std::deque<Message>& box =
        mail_[{exchange->channel, exchange->ranks[receive.peer], exchange->rank}];
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
  using Box = std::tuple<int, int, int>;     // channel, from, to (numbers among all)
  std::map<Box, std::deque<Message>> mail_;  // messages in order
  std::map<std::pair<int, int>, std::deque<std::pair<int, int64_t>>> notes_;  // by channel and to
  std::set<int> dead_;
  std::map<std::pair<int, int>, std::shared_ptr<char>> windows_;  // by channel and host
};

namespace {

class LoopbackWindow : public Window {
 public:
  LoopbackWindow(std::shared_ptr<char> memory, Topology host, int64_t slot_bytes,
                 std::shared_ptr<LoopbackHub> hub)
      : Window(memory.get(), host.rank, host.size, slot_bytes),
        memory_(std::move(memory)),
        host_(std::move(host)),
        hub_(std::move(hub)) {}

  std::vector<int> EndedRanks() const override {
    const std::set<int> dead = hub_->Dead();
    std::vector<int> ranks;
    for (int r = 0; r < host_.size; ++r) {
      if (dead.count(host_.world_ranks[r]) != 0) ranks.push_back(r);
    }
    return ranks;
  }

 private:
  const std::shared_ptr<char> memory_;
  const Topology host_;
  const std::shared_ptr<LoopbackHub> hub_;
};

}  // namespace

std::vector<std::unique_ptr<LoopbackCommunicator>> LoopbackCommunicator::Create(int size) {
  return Create(std::vector<int>(static_cast<size_t>(size), 0));
}

std::vector<std::unique_ptr<LoopbackCommunicator>> LoopbackCommunicator::Create(
    const std::vector<int>& host_ids) {
  auto hub = std::make_shared<LoopbackHub>();
  std::vector<std::unique_ptr<LoopbackCommunicator>> communicators;
  const std::vector<std::string> hosts(host_ids.size(), "localhost");
  for (size_t rank = 0; rank < host_ids.size(); ++rank) {
    communicators.push_back(std::make_unique<LoopbackCommunicator>(
        MakeTopology(static_cast<int>(rank), host_ids, hosts), 0, hub));
  }
  return communicators;
}

LoopbackCommunicator::LoopbackCommunicator(Topology topology, int channel,
                                           std::shared_ptr<LoopbackHub> hub)
    : Communicator(std::move(topology)), channel_(channel), hub_(std::move(hub)) {}

LoopbackCommunicator::~LoopbackCommunicator() = default;

Status LoopbackCommunicator::Exchange(const std::vector<Transfer>& sends,
                                      const std::vector<Transfer>& receives, Wait* wait) {
  const std::vector<int>& ranks = topology().world_ranks;
  LoopbackHub::Exchange exchange{channel_,
                                 ranks[rank()],
                                 ranks,
                                 sends,
                                 receives,
                                 std::vector<char>(sends.size()),
                                 std::vector<char>(receives.size()),
                                 sends.size() + receives.size()};
  wait->Begin();
  hub_->Post(&exchange);
  const auto missing = [this, &exchange] { return hub_->Missing(exchange); };
  std::vector<int> late;
  while (true) {
    bool progress = false;
    Status status = hub_->Poll(&exchange, &progress);
    if (status.ok() && exchange.open == 0) {
      if (!late.empty()) wait->Ended(topology(), late.back());
      return status;
    }
    std::vector<int> now = missing();
    if (!now.empty()) late = std::move(now);  // else they have come since
    if (progress) wait->Progress();
    if (status.ok()) status = wait->Pause(topology(), missing);
    if (status.ok()) continue;
    return GiveUp(status, -1, *wait);
  }
}

Status LoopbackCommunicator::CheckPeers(const std::vector<int>& /*ranks*/, int* /*lost*/) {
  return LoopbackHub::Killed(hub_->Dead(topology().world_ranks));
}

Status LoopbackCommunicator::GiveUp(const Status& status, int /*lost*/, const Wait& wait) {
  hub_->Withdraw(channel_, topology().world_ranks[rank()]);
  if (status.code() != StatusCode::kUnavailable) return status;
  return Status(status.code(), status.message() + " while " +
                                   RankListWithHosts(topology(), {rank()}) + " waited in " +
                                   wait.Describe() + ". See that rank's log for the cause.");
}

void LoopbackCommunicator::SendNote(int peer, int64_t note) {
  const std::vector<int>& ranks = topology().world_ranks;
  hub_->SendNote(channel_, ranks[rank()], ranks[peer], note);
}

bool LoopbackCommunicator::TakeNote(int* peer, int64_t* note) {
  const std::vector<int>& ranks = topology().world_ranks;
  int from = 0;
  if (!hub_->TakeNote(channel_, ranks[rank()], &from, note)) return false;
  *peer = static_cast<int>(std::find(ranks.begin(), ranks.end(), from) - ranks.begin());
  return true;
}

Status LoopbackCommunicator::Subset(const std::vector<int>& ranks, int channel, Wait* /*wait*/,
                                    std::unique_ptr<Communicator>* subset) {
  *subset =
      std::make_unique<LoopbackCommunicator>(SubsetTopology(topology(), ranks), channel, hub_);
  return Status::Ok();
}

Status LoopbackCommunicator::OpenWindow(int64_t bytes, Wait* /*wait*/,
                                        std::unique_ptr<Window>* window) {
  const Topology host = HostTopology(topology());
  const int64_t slot_bytes = Window::SlotBytes(bytes);
  const int64_t memory_bytes = Window::Bytes(host.size, size(), slot_bytes);
  std::shared_ptr<char> memory =
      hub_->WindowMemory(channel_, topology().host_ids[rank()], memory_bytes);
  *window = std::make_unique<LoopbackWindow>(std::move(memory), host, slot_bytes, hub_);
  return Status::Ok();
}

Status LoopbackCommunicator::Finalize(bool /*clean*/) { return Status::Ok(); }

void LoopbackCommunicator::Kill() { hub_->Kill(topology().world_ranks[rank()]); }

}  // namespace tfdist
