#include "core/agree/header.h"

#include <algorithm>

#include "core/agree/call_record.h"
#include "core/agree/mismatch.h"
#include "core/watch/steady_clock.h"
#include "core/watch/stopwatch.h"

namespace tfdist {
namespace {

static_assert(sizeof(Header) == 24, "the header travels as 24 bytes");

// Sends `own` to every other rank and receives theirs into `all`, by rank.
template <typename T>
Status ExchangeAll(T* own, Communicator* communicator, Wait* wait, std::vector<T>* all) {
  constexpr int64_t kBytes = sizeof(T);
  all->resize(communicator->size());
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int peer = 0; peer < communicator->size(); ++peer) {
    if (peer == communicator->rank()) {
      (*all)[peer] = *own;
      continue;
    }
    sends.push_back({peer, own, kBytes});
    receives.push_back({peer, &(*all)[peer], kBytes});
  }
  return communicator->Exchange(sends, receives, wait);
}

}  // namespace

bool Agreement::AnyJoined() const { return std::count(joined.begin(), joined.end(), 1) > 0; }

bool Agreement::AllJoined() const { return std::count(joined.begin(), joined.end(), 0) == 0; }

Status HeaderCheck::Agree(const Call& call, Communicator* communicator, Wait* wait,
                          Agreement* agreement) {
  const int size = communicator->size();
  const int rank = communicator->rank();
  gathered_.resize(static_cast<size_t>(size));
  const Header& own = gathered_[0] = {sequence_, call.weight, Hash(call), SteadyNs() + offset_ns_};
  TFDIST_RETURN_IF_ERROR(Gather(communicator, wait));
  wait->AllCame(LastRank(communicator->topology()));
  bool agreed = true;
  uint64_t hash = kJoinedHash;  // of those that have not joined, once one was seen
  agreement->joined.clear();
  agreement->weights.clear();
  for (int r = 0; r < size; ++r) {
    const Header& header = gathered_[(r - rank + size) % size];
    const bool joined = header.hash == kJoinedHash;
    agreement->joined.push_back(joined ? 1 : 0);
    agreement->weights.push_back(header.weight);
    if (!joined && hash == kJoinedHash) hash = header.hash;
    agreed = agreed && header.sequence == own.sequence &&
             (joined || (header.hash == hash && hash != kInvalidHash));
    sequence_ = std::max(sequence_, header.sequence);
  }
  ++sequence_;
  if (!agreed) return ExplainDifference(call, communicator, wait);
  if (!agreement->AnyJoined() || agreement->AllJoined()) return Status::Ok();
  return ShareRecord(call, communicator, wait, agreement);
}

// In each round a rank passes on the headers that it holds, and holds `radix` times as many after.
Status HeaderCheck::Gather(Communicator* communicator, Wait* wait) {
  const Stopwatch stopwatch(&wait->cost().wait_ns);
  const int size = communicator->size();
  const int rank = communicator->rank();
  const int radix = size <= kDirectRanks ? kDirectRanks : kRadix;
  roll_.Begin(communicator);
  wait->Meet(&roll_);
  for (int held = 1; held < size; held *= radix) {
    roll_.BeginRound(held, radix);
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    for (int distance = held; distance < std::min(held * radix, size); distance += held) {
      const int64_t bytes = std::min(held, size - distance) * int64_t{sizeof(Header)};
      sends.push_back({(rank - distance + size) % size, gathered_.data(), bytes});
      receives.push_back({(rank + distance) % size, &gathered_[distance], bytes});
    }
    TFDIST_RETURN_IF_ERROR(communicator->Exchange(sends, receives, wait));
  }
  roll_.End();
  return Status::Ok();
}

// Which rank came last, by its number among all; -1: this one.
int HeaderCheck::LastRank(const Topology& topology) const {
  const auto came_before = [](const Header& one, const Header& other) {
    return one.came_ns < other.came_ns;
  };
  const auto last = std::max_element(gathered_.begin(), gathered_.end(), came_before);
  const int distance = static_cast<int>(last - gathered_.begin());
  return distance == 0 ? -1 : topology.world_ranks[(topology.rank + distance) % topology.size];
}

// The first rank that has not joined tells those that have.
Status HeaderCheck::ShareRecord(const Call& call, Communicator* communicator, Wait* wait,
                                Agreement* agreement) {
  const std::vector<char>& joined = agreement->joined;
  const int teller = static_cast<int>(std::find(joined.begin(), joined.end(), 0) - joined.begin());
  const int rank = communicator->rank();
  const bool listens = joined[rank] == 1;
  if (rank != teller && !listens) return Status::Ok();
  texts_.resize(communicator->size());
  text_bytes_.resize(communicator->size());
  std::string& text = texts_[teller];
  int64_t& bytes = text_bytes_[teller];
  if (rank == teller) {
    text = Encode(call);
    bytes = static_cast<int64_t>(text.size());
  }
  const auto pass_on = [&](void* data, int64_t data_bytes) {
    std::vector<Transfer> sends;
    for (int peer = 0; rank == teller && peer < communicator->size(); ++peer) {
      if (joined[peer] == 1) sends.push_back({peer, data, data_bytes});
    }
    std::vector<Transfer> receives;
    if (listens) receives.push_back({teller, data, data_bytes});
    return communicator->Exchange(sends, receives, wait);
  };
  TFDIST_RETURN_IF_ERROR(pass_on(&bytes, sizeof(bytes)));
  text.resize(static_cast<size_t>(bytes));
  TFDIST_RETURN_IF_ERROR(pass_on(&text[0], bytes));
  agreement->record = listens ? text : "";
  return Status::Ok();
}

Status HeaderCheck::ExplainDifference(const Call& call, Communicator* communicator, Wait* wait) {
  const int rank = communicator->rank();
  std::vector<Field> fields = Describe(call);
  fields.insert(fields.begin() + kFirstAttribute,
                {"number of earlier collectives", std::to_string(gathered_[0].sequence)});
  std::string own_text = Serialize(fields);
  int64_t own_bytes = static_cast<int64_t>(own_text.size());
  TFDIST_RETURN_IF_ERROR(ExchangeAll(&own_bytes, communicator, wait, &text_bytes_));
  texts_.assign(communicator->size(), "");
  texts_[rank] = own_text;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int peer = 0; peer < communicator->size(); ++peer) {
    if (peer == rank) continue;
    texts_[peer].resize(static_cast<size_t>(text_bytes_[peer]));
    sends.push_back({peer, &own_text[0], own_bytes});
    receives.push_back({peer, &texts_[peer][0], text_bytes_[peer]});
  }
  TFDIST_RETURN_IF_ERROR(communicator->Exchange(sends, receives, wait));
  std::vector<std::vector<Field>> descriptions;
  for (const std::string& text : texts_) descriptions.push_back(Parse(text));
  return ExplainMismatch(descriptions, communicator->topology().world_ranks);
}

}  // namespace tfdist
