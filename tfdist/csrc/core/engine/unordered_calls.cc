#include "core/engine/unordered_calls.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "core/agree/byte_record.h"
#include "core/engine/world.h"
#include "core/watch/steady_clock.h"

namespace tfdist {
namespace {

constexpr int64_t kPauseNs = 1'000'000;

using Message = UnorderedCalls::Message;

std::string Encode(const Message& message) {
  ByteWriter writer;
  writer.Add(message.waited_seconds);
  for (const std::string& key : message.keys) writer.Add(key);
  return writer.bytes();
}

// False for what Encode has not made.
bool Decode(const std::string& text, Message* message) {
  message->has_joined = text.empty();
  if (message->has_joined) return true;
  ByteReader reader(text);
  message->waited_seconds = reader.Next<double>();
  while (reader.ok() && !reader.AtEnd()) message->keys.push_back(reader.NextText());
  return reader.ok();
}

// What all ranks that have not joined have announced, in the order in which they run it: that of
// the first of them.
std::vector<std::string> Ready(const std::vector<Message>& messages) {
  std::map<std::string, size_t> count;
  const Message* first = nullptr;
  size_t ranks = 0;
  for (const Message& message : messages) {
    if (message.has_joined) continue;
    if (first == nullptr) first = &message;
    ++ranks;
    for (const std::string& key : message.keys) ++count[key];
  }
  std::vector<std::string> ready;
  if (first == nullptr) return ready;
  for (const std::string& key : first->keys) {
    if (count[key] == ranks) ready.push_back(key);
  }
  return ready;
}

// "'a' (...), 'b'": the first of them, and how many more there are.
std::string Listed(const std::vector<std::string>& keys) {
  constexpr size_t kMostNames = 3;
  std::string text;
  for (size_t i = 0; i < std::min(keys.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + keys[i];
  }
  if (keys.size() > kMostNames) {
    text += " and " + std::to_string(keys.size() - kMostNames) + " more";
  }
  return text;
}

// "rank 0 waits for 'a' (...); rank 1 waits for nothing. ...". `ranks` are their numbers among all.
std::string Waiting(const std::vector<int>& ranks, const std::vector<Message>& messages,
                    const UnorderedCalls::Words& words) {
  std::string text;
  for (size_t place = 0; place < messages.size(); ++place) {
    const Message& message = messages[place];
    text += (place == 0 ? "rank " : "; rank ") + std::to_string(ranks[place]);
    if (message.has_joined) {
      text += " has joined";
    } else {
      text += " waits for " + (message.keys.empty() ? "nothing" : Listed(message.keys));
    }
  }
  return text + ". " + words.differ;
}

}  // namespace

const UnorderedCalls::Words UnorderedCalls::kSession = {
    " is already under way in this process. Two sessions, or two threads, run the same graph at "
    "once; give each a graph of its own.",
    "Every rank must fetch the same collectives from its session."};

UnorderedCalls::~UnorderedCalls() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  came_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

UnorderedCalls& UnorderedCalls::Of(int process_set) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const calls = new std::map<int, UnorderedCalls*>;
  std::lock_guard<std::mutex> lock(*mutex);
  UnorderedCalls*& found = (*calls)[process_set];
  if (found == nullptr) {
    found = new UnorderedCalls([process_set](std::shared_ptr<Engine>* engine) {
      return World::Find(process_set, engine);
    });
  }
  return *found;
}

void UnorderedCalls::Announce(Call call) {
  const Status refused = TryAnnounce(&call);
  if (!refused.ok()) call.done(refused);
}

Status UnorderedCalls::TryAnnounce(Call* call) {
  std::shared_ptr<Engine> engine;
  TFDIST_RETURN_IF_ERROR(find_(&engine));
  std::lock_guard<std::mutex> lock(mutex_);
  const bool twice =
      std::any_of(announced_.begin(), announced_.end(),
                  [call](const Announced& other) { return other.call.key == call->key; });
  if (twice) {
    return Status(StatusCode::kInvalidArgument, "the collective " + call->key + call->words->twice);
  }
  announced_.push_back(Announced{std::move(*call), SteadyNs()});
  if (!thread_.joinable()) thread_ = std::thread(&UnorderedCalls::Work, this);
  came_.NotifyAll();
  return Status::Ok();
}

void UnorderedCalls::Work() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      while (!ending_ && announced_.empty()) came_.Wait(&lock);
      if (announced_.empty()) return;
    }
    Meet();
  }
}

// The ranks meet once: all come here as long as each waits for something.
void UnorderedCalls::Meet() {
  const Words* words = nullptr;
  const Message mine = Mine(&words);
  std::shared_ptr<Engine> engine;
  std::vector<Message> messages;
  Status status = find_(&engine);
  if (status.ok()) status = Exchange(engine.get(), mine, &messages);
  if (status.code() == StatusCode::kDeadlineExceeded) {
    status =
        Status(status.code(), status.message() + " This rank waits for " + Listed(mine.keys) + ".");
  }
  if (!status.ok()) return Fail(mine.keys, status);
  const std::vector<std::string> ready = Ready(messages);
  for (const std::string& key : ready) Run(key, engine.get());
  if (!ready.empty()) return;
  // All ranks have the same messages, and decide alike.
  double waited = 0;
  for (const Message& message : messages) waited = std::max(waited, message.waited_seconds);
  const EngineConfig& config = engine->config();
  const std::string waiting =
      Waiting(engine->communicator().topology().world_ranks, messages, *words);
  if (waited > config.stall_shutdown_seconds) {
    return Fail(mine.keys, Status(StatusCode::kDeadlineExceeded,
                                  "no collective is waited for on all ranks: " + waiting));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const double limit = config.stall_warning_seconds;
  const bool late = limit > 0 && waited > limit;
  if (late && !warned_ && engine->communicator().rank() == 0) {
    std::fprintf(stderr, "tfdist: for %.0f s no collective was waited for on all ranks: %s\n",
                 waited, waiting.c_str());
  }
  warned_ = late;
  const size_t count = announced_.size();
  came_.WaitFor(&lock, kPauseNs, [this, count] { return ending_ || announced_.size() != count; });
}

UnorderedCalls::Message UnorderedCalls::Mine(const Words** words) {
  std::lock_guard<std::mutex> lock(mutex_);
  Message mine;
  *words = announced_.front().call.words;
  for (const Announced& one : announced_) mine.keys.push_back(one.call.key);
  mine.waited_seconds = static_cast<double>(SteadyNs() - announced_.front().since_ns) * 1e-9;
  return mine;
}

Status UnorderedCalls::Exchange(Engine* engine, const Message& mine,
                                std::vector<Message>* messages) {
  std::string sent = Encode(mine), received;
  GatherOptions options;
  options.name = kName;
  options.tensor_names = {"keys"};
  TensorView view;
  view.dtype = DType::kUint8;
  view.shape = {static_cast<int64_t>(sent.size())};
  view.data = &sent[0];
  const Allocate allocate = [&received](int, const std::vector<int64_t>& shape, TensorView* whole) {
    received.resize(shape[0]);
    whole->dtype = DType::kUint8;
    whole->shape = shape;
    whole->data = &received[0];
    return Status::Ok();
  };
  std::vector<int64_t> rows;
  TFDIST_RETURN_IF_ERROR(engine->Allgather(options, {view}, allocate, &rows));
  size_t begin = 0;
  for (const int64_t bytes : rows) {
    messages->emplace_back();
    if (!Decode(received.substr(begin, bytes), &messages->back())) {
      return Status(StatusCode::kInternal,
                    "a rank announced collectives in a form that this one does not know. All ranks "
                    "need the same version of tfdist.");
    }
    begin += bytes;
  }
  return Status::Ok();
}

void UnorderedCalls::Run(const std::string& key, Engine* engine) {
  const Call call = Take(key);
  call.done(call.run(engine));
}

void UnorderedCalls::Fail(const std::vector<std::string>& keys, const Status& status) {
  for (const std::string& key : keys) Take(key).done(status);
}

// Takes an announced call away.
UnorderedCalls::Call UnorderedCalls::Take(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(announced_.begin(), announced_.end(),
                                  [&key](const Announced& one) { return one.call.key == key; });
  Call call = std::move(found->call);
  announced_.erase(found);
  return call;
}

}  // namespace tfdist
