#include "core/agree/header.h"

#include <algorithm>

#include "core/agree/call_record.h"
#include "core/agree/host_meeting.h"
#include "core/agree/mismatch.h"
#include "core/watch/steady_clock.h"
#include "core/watch/stopwatch.h"

namespace tfdist {
namespace {

static_assert(sizeof(Header) == Window::kHeaderBytes, "the header travels as 24 bytes");

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
  if (met_ != communicator) {
    circle_ = Circle(communicator->topology(), /*by_host=*/window_ != nullptr);
    met_ = communicator;
  }
  const Header own = {sequence_, call.weight, Hash(call), SteadyNs() + offset_ns_};
  gathered_.resize(static_cast<size_t>(size));
  gathered_[circle_.PositionOf(communicator->rank())] = own;
  TFDIST_RETURN_IF_ERROR(Gather(communicator, wait));
  wait->AllCame(LastRank(communicator->topology()));
  bool agreed = true;
  uint64_t hash = kJoinedHash;  // of those that have not joined, once one was seen
  agreement->joined.clear();
  agreement->weights.clear();
  for (int r = 0; r < size; ++r) {
    const Header& header = gathered_[circle_.PositionOf(r)];
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

Status HeaderCheck::Gather(Communicator* communicator, Wait* wait) {
  const Stopwatch stopwatch(&wait->cost().wait_ns);
  roll_.Begin(communicator, &circle_);
  wait->Meet(&roll_);
  wait->Begin();  // of all stages
  Status status;
  if (window_ == nullptr) {
    status = Disseminate(communicator, wait);
  } else {
    status = GatherOfHost(communicator, wait);
    if (!status.ok()) window_->GiveUp();  // the others of this host wait for this rank
  }
  if (status.ok()) roll_.End();
  return status;
}

// The leader meets the others of its host, then the leaders of other hosts.
Status HeaderCheck::GatherOfHost(Communicator* communicator, Wait* wait) {
  char* const headers = reinterpret_cast<char*>(gathered_.data());
  const bool leads = circle_.LeaderOf(0) == communicator->rank();
  HostMeeting meeting(circle_, communicator, window_, wait);
  meeting.Show(&gathered_[circle_.PositionOf(communicator->rank())]);
  roll_.BeginInMemory();
  if (circle_.groups() > 1 && !leads) return meeting.Hear(headers);
  TFDIST_RETURN_IF_ERROR(meeting.Gather(headers));
  if (circle_.groups() == 1) return Status::Ok();
  TFDIST_RETURN_IF_ERROR(Disseminate(communicator, wait));
  meeting.Tell(headers);
  return Status::Ok();
}

// Among those that lead: in each round one passes on the headers of the groups that it holds, and
// holds those of `radix` times as many after.
Status HeaderCheck::Disseminate(Communicator* communicator, Wait* wait) {
  const int groups = circle_.groups();
  const int radix = groups <= kDirectHosts ? kDirectHosts : kRadix;
  const auto bytes_of = [this](int begin, int end) {
    return (circle_.BeginOf(end) - circle_.BeginOf(begin)) * int64_t{sizeof(Header)};
  };
  for (int held = 1; held < groups; held *= radix) {
    roll_.BeginRound(held, radix);
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    for (int distance = held; distance < std::min(held * radix, groups); distance += held) {
      const int passed = std::min(held, groups - distance);
      sends.push_back({circle_.LeaderOf(groups - distance), gathered_.data(), bytes_of(0, passed)});
      receives.push_back({circle_.LeaderOf(distance), &gathered_[circle_.BeginOf(distance)],
                          bytes_of(distance, distance + passed)});
    }
    TFDIST_RETURN_IF_ERROR(communicator->Exchange(sends, receives, wait));
  }
  return Status::Ok();
}

// Which rank came last, by its number among all; -1: this one.
int HeaderCheck::LastRank(const Topology& topology) const {
  const auto came_before = [](const Header& one, const Header& other) {
    return one.came_ns < other.came_ns;
  };
  const auto last = std::max_element(gathered_.begin(), gathered_.end(), came_before);
  const int rank = circle_.ranks()[last - gathered_.begin()];
  return rank == topology.rank ? -1 : topology.world_ranks[rank];
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
                {"number of earlier collectives",
                 std::to_string(gathered_[circle_.PositionOf(rank)].sequence)});
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
