#include "core/header.h"

#include <algorithm>

#include "core/mismatch.h"

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

Status HeaderCheck::Agree(const Call& call, Communicator* communicator, Wait* wait) {
  own_ = {sequence_, Hash(call)};
  TFDIST_RETURN_IF_ERROR(ExchangeAll(&own_, communicator, wait, &headers_));
  bool agreed = true;
  for (const Header& header : headers_) {
    agreed = agreed && header.hash != kInvalidHash && header.hash == own_.hash &&
             header.sequence == own_.sequence;
    sequence_ = std::max(sequence_, header.sequence);
  }
  ++sequence_;
  return agreed ? Status::Ok() : ExplainDifference(call, communicator, wait);
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
  return ExplainMismatch(descriptions);
}

}  // namespace tfdist
