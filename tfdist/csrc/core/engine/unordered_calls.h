// Collectives that each rank begins in an order of its own, such as those of a TensorFlow session,
// whose executor is free to choose, or those that a caller starts and waits for later.
//
// Whoever has one announces it, under a key by which all ranks know it. The ranks tell each other
// what is announced, at most every millisecond and only while something is, and run what all have
// announced, on one thread and in one order: by the rank and then by the moment of the
// announcement. What only some have announced waits, and fails on all ranks at the deadline of a
// stall, with what each of them waits for. A rank that has joined announces nothing, and the others
// do not wait for it. Each process set has an object of its own, whose ranks need no others. Thread
// safe.
#ifndef TFDIST_CORE_ENGINE_UNORDERED_CALLS_H_
#define TFDIST_CORE_ENGINE_UNORDERED_CALLS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/value/export.h"
#include "core/value/status.h"
#include "core/watch/steady_condition.h"

namespace tfdist {

class TFDIST_API UnorderedCalls {
 public:
  // What errors say to whoever has announced a call.
  struct Words {
    const char* twice;   // behind the key of a call that is under way
    const char* differ;  // behind what each rank waits for
  };
  struct Call {
    std::string key;                                 // as a person would call it
    std::function<Status(Engine* engine)> run;       // on a thread of this object; may be left out
    std::function<void(const Status& status)> done;  // exactly once, whether it ran or not
    const Words* words = &kSession;                  // lives on
  };
  // What a rank tells the others: how long it has waited, and for what. One that has joined is told
  // from the others by saying nothing at all.
  struct Message {
    bool has_joined = false;
    double waited_seconds = 0;
    std::vector<std::string> keys;
  };
  // As World::Find, for one process set.
  using Find = std::function<Status(std::shared_ptr<Engine>* engine)>;

  // What the calls by which the ranks tell each other are named in errors and reports.
  static constexpr const char* kName = "collectives that are waited for";

  static const Words kSession;

  explicit UnorderedCalls(Find find) : find_(std::move(find)) {}
  // Waits for what was announced.
  ~UnorderedCalls();
  UnorderedCalls(const UnorderedCalls&) = delete;
  UnorderedCalls& operator=(const UnorderedCalls&) = delete;

  // That of a process set, 0 for all ranks. Never destroyed: a thread of the framework may still
  // call it while the process exits.
  static UnorderedCalls& Of(int process_set);

  // kInvalidArgument goes to `done` where a call of this key is under way: whose is whose, the
  // other ranks could not tell.
  void Announce(Call call);

  // The same, but returns that error, and leaves `call` as it is then.
  Status TryAnnounce(Call* call);

 private:
  struct Announced {
    Call call;
    int64_t since_ns;
  };

  void Work();
  void Meet();
  Message Mine(const Words** words);
  Status Exchange(Engine* engine, const Message& mine, std::vector<Message>* messages);
  void Run(const std::string& key, Engine* engine);
  void Fail(const std::vector<std::string>& keys, const Status& status);
  Call Take(const std::string& key);

  const Find find_;
  std::mutex mutex_;  // guards all below
  SteadyCondition came_;
  std::list<Announced> announced_;  // in the order in which they came
  bool ending_ = false;
  bool warned_ = false;  // of the wait that goes on
  std::thread thread_;   // from the first announcement on
};

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_UNORDERED_CALLS_H_
