#include "core/agree/header.h"

#include <algorithm>

#include "core/agree/call_record.h"
#include "core/agree/mismatch.h"
#include "core/watch/stopwatch.h"

namespace tfdist {
namespace {

static_assert(sizeof(Header) == 16, "the header travels as 16 bytes");

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
  own_ = {sequence_, call.weight, Hash(call)};
  Status all_have_come;
  {
    const Stopwatch stopwatch(&wait->cost().wait_ns);
    all_have_come = ExchangeAll(&own_, communicator, wait, &headers_);
  }
  TFDIST_RETURN_IF_ERROR(all_have_come);
  wait->AllCame();
  bool agreed = true;
  uint64_t hash = kJoinedHash;  // of those that have not joined, once one was seen
  agreement->joined.clear();
  agreement->weights.clear();
  for (const Header& header : headers_) {
    const bool joined = header.hash == kJoinedHash;
    agreement->joined.push_back(joined ? 1 : 0);
    agreement->weights.push_back(header.weight);
    if (!joined && hash == kJoinedHash) hash = header.hash;
    agreed = agreed && header.sequence == own_.sequence &&
             (joined || (header.hash == hash && hash != kInvalidHash));
    sequence_ = std::max(sequence_, header.sequence);
  }
  ++sequence_;
  if (!agreed) return ExplainDifference(call, communicator, wait);
  if (!agreement->AnyJoined() || agreement->AllJoined()) return Status::Ok();
  return ShareRecord(call, communicator, wait, agreement);
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
                {"number of earlier collectives", std::to_string(own_.sequence)});
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
