// Ranks as threads of one process, each with an engine of its own, for tests of collectives.
// Not a launcher: real processes are tested by mpi/mpi_smoke.cc.
#ifndef TESTS_CPP_RANK_TEAM_H_
#define TESTS_CPP_RANK_TEAM_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/wire/communicator.h"

// 1 and powers of two hide mistakes that 3 and 5 show.
constexpr int kRankCounts[] = {1, 2, 3, 4, 5};

// One rank, as its test function sees it.
struct RankContext {
  int rank;
  int size;
  tfdist::Engine* engine;
  tfdist::Communicator* communicator;  // owned by the engine
  bool by_sockets = false;
  // Plays the death of this rank, from any thread: its peers' waits end with kUnavailable.
  std::function<void()> kill = [] {};
  // Waits for the threads of all ranks, so that none is late because the machine is busy.
  std::function<void()> meet = [] {};
};

using RankBody = std::function<void(const RankContext& self)>;

// Waits fail after 60 s here: far longer than a healthy test takes under a sanitizer.
tfdist::EngineConfig TestConfig();

// How the ranks reach each other.
struct Fabric {
  std::vector<int> host_ids;  // by rank
  int64_t window_bytes;
  bool by_sockets = false;  // real TCP connections instead of memory
};

// Messages alone, then a window, and for 4 ranks two hosts with a window each; then by sockets,
// where ranks need any: messages, and for 4 ranks the two hosts. In a window data goes the same way
// by sockets, so 3 ranks stand for all.
std::vector<Fabric> FabricsOf(int size);

// Runs `body` as threads, one a rank, that begin together, and waits for all of them.
void RunRanksOn(const Fabric& fabric, const tfdist::EngineConfig& config, const RankBody& body);

// RunRanksOn each of the fabrics.
void RunRanks(int size, const tfdist::EngineConfig& config, const RankBody& body);
void RunRanks(int size, const RankBody& body);

// As RunRanks, and returns the statuses by rank.
std::vector<tfdist::Status> GatherStatuses(
    int size, const tfdist::EngineConfig& config,
    const std::function<tfdist::Status(const RankContext& self)>& body);

template <typename T>
tfdist::TensorView ViewOf(tfdist::DType dtype, std::vector<T>* values) {
  return {dtype, {static_cast<int64_t>(values->size())}, values->data()};
}

inline tfdist::TensorView ViewOf(std::vector<float>* values) {
  return ViewOf(tfdist::DType::kFloat32, values);
}

// Whether an error says that `rank` is lost, in the words of this rank's transport.
void ExpectLost(const RankContext& self, const tfdist::Status& status, int rank);

// Whether this rank, or by sockets one that has told it, has waited for too long. True for the
// first, whose message is then worth a look.
bool ExpectDeadline(const RankContext& self, const tfdist::Status& status);

// Options with the names "tensor0", "tensor1", ...
tfdist::AllreduceOptions OptionsFor(const std::string& name, size_t tensors);
tfdist::BroadcastOptions BroadcastOptionsFor(const std::string& name, size_t tensors, int root);
tfdist::GatherOptions GatherOptionsFor(const std::string& name, size_t tensors);

// Checks that a sum of all ranks still works: the ranks are in step.
void ExpectInStep(const RankContext& self);

// Runs `call` on `size` ranks. All get `code` with the same bytes, which contain `text`; then they
// are in step.
void ExpectSameError(int size, tfdist::StatusCode code, const std::string& text,
                     const std::function<tfdist::Status(const RankContext& self)>& call);

inline int CodeOf(const tfdist::Status& status) { return static_cast<int>(status.code()); }

#endif  // TESTS_CPP_RANK_TEAM_H_
