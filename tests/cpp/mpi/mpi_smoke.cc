// Runs the engine over real MPI: started by mpirun with 1 to 4 processes. Not a unit test; those
// are test_*.cc. The argument says which processes become the ranks:
//
//   mpi_smoke                all of them
//   mpi_smoke ranks          those with even and those with odd numbers, by lists of numbers
//   mpi_smoke communicator   the same, by communicators of a program that has started MPI itself
//   mpi_smoke bench          all of them; prints the time of a large and of a small allreduce too
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/c_api.h"
#include "core/engine/engine.h"
#include "core/engine/world.h"
#include "engine_settings.h"

namespace {

using tfdist::AllreduceOptions;
using tfdist::BroadcastOptions;
using tfdist::DType;
using tfdist::Engine;
using tfdist::GatherOptions;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;
using tfdist::World;

using Ranks = std::vector<int>;

std::atomic<int> failures{0};

void Check(bool ok, const char* what, const std::string& detail = "") {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "mpi_smoke: rank %d: FAILED: %s %s\n", tfdist_rank(), what, detail.c_str());
}

void Check(const Status& status, const char* what) { Check(status.ok(), what, status.message()); }

int RankOf(const Engine* engine) { return engine->communicator().rank(); }
int SizeOf(const Engine* engine) { return engine->communicator().size(); }
const Ranks& WorldRanksOf(const Engine* engine) {
  return engine->communicator().topology().world_ranks;
}

TensorView View(std::vector<float>* values) {
  return {DType::kFloat32, {static_cast<int64_t>(values->size())}, values->data()};
}

// Makes room in `output` for the one result of a collective.
tfdist::Allocate RoomIn(std::vector<float>* output) {
  return [output](int, const std::vector<int64_t>& shape, TensorView* view) {
    output->resize(static_cast<size_t>(shape[0]));
    *view = View(output);
    return Status::Ok();
  };
}

AllreduceOptions OptionsFor(const char* name, Reduction reduction) {
  AllreduceOptions options;
  options.name = name;
  options.tensor_names = {"values"};
  options.reduction = reduction;
  return options;
}

Status Reduce(Engine* engine, const AllreduceOptions& options, std::vector<float>* values) {
  return engine->Allreduce(options, {View(values)}, {View(values)});
}

Status Sum(Engine* engine, const char* name, std::vector<float>* values) {
  return Reduce(engine, OptionsFor(name, Reduction::kSum), values);
}

void CheckAllreduce(Engine* engine, int64_t count) {
  const int rank = RankOf(engine);
  const int size = SizeOf(engine);
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000 + rank);
  Check(Sum(engine, "sum", &values), "allreduce");
  bool equal = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t expected = i % 1000 * size + size * (size - 1) / 2;
    equal = equal && values[i] == static_cast<float>(expected);
  }
  Check(equal, "sum of", std::to_string(count));
}

// Rank r counts r + 1 times, but for those below `first`, which have joined.
void CheckWeightedAverage(Engine* engine, int first = 0) {
  const int size = SizeOf(engine);
  std::vector<float> values(1000, static_cast<float>(RankOf(engine)));
  AllreduceOptions options = OptionsFor("weighted", Reduction::kAverage);
  options.weighted = true;
  options.weight = static_cast<uint32_t>(RankOf(engine) + 1);
  Check(Reduce(engine, options, &values), "weighted average");
  double sum = 0;
  double total = 0;
  for (int rank = first; rank < size; ++rank) {
    sum += rank * (rank + 1);
    total += rank + 1;
  }
  Check(std::fabs(values.back() - sum / total) < 1e-6, "value of the weighted average");
}

// Equal gradients give that gradient, orthogonal ones their sum.
void CheckAdasum(Engine* engine, int64_t count) {
  const int size = SizeOf(engine);
  std::vector<float> equal(static_cast<size_t>(count), 3.0f);
  std::vector<float> orthogonal(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) orthogonal[i] = i % size == RankOf(engine) ? 5.0f : 0.0f;
  AllreduceOptions options = OptionsFor("adasum", Reduction::kAdasum);
  options.tensor_names = {"equal", "orthogonal"};
  const std::vector<TensorView> views = {View(&equal), View(&orthogonal)};
  Check(engine->Allreduce(options, views, views), "adasum");
  Check(equal == std::vector<float>(equal.size(), 3.0f), "adasum of equal gradients");
  Check(orthogonal == std::vector<float>(equal.size(), 5.0f), "adasum of orthogonal gradients");
}

// `rows` rows a rank and one more for rank 0; row i is i + rank on each rank.
void CheckReduceScatter(Engine* engine, int64_t rows) {
  const int rank = RankOf(engine);
  const int size = SizeOf(engine);
  std::vector<float> input(static_cast<size_t>(rows * size + 1));
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 1000) + rank;
  std::vector<float> output(static_cast<size_t>(rows + (rank == 0 ? 1 : 0)));
  Check(engine->ReduceScatter(OptionsFor("scatter", Reduction::kMax), {View(&input)},
                              {View(&output)}),
        "reducescatter");
  const size_t first = static_cast<size_t>(rows * rank + (rank == 0 ? 0 : 1));
  bool equal = true;
  for (size_t i = 0; i < output.size(); ++i) {
    equal = equal && output[i] == static_cast<float>((first + i) % 1000) + size - 1;
  }
  Check(equal, "rows of reducescatter, each", std::to_string(rows));
}

void CheckBroadcast(Engine* engine, int64_t count) {
  const int own = WorldRanksOf(engine)[RankOf(engine)];
  for (int root : WorldRanksOf(engine)) {
    std::vector<float> values(static_cast<size_t>(count), static_cast<float>(own));
    BroadcastOptions options;
    options.name = "broadcast";
    options.tensor_names = {"values"};
    options.root = root;
    Check(engine->Broadcast(options, {View(&values)}), "broadcast");
    Check(values.front() == root && values.back() == root, "broadcast from root");
  }
}

void CheckAllgather(Engine* engine) {
  const int rank = RankOf(engine);
  std::vector<float> input(static_cast<size_t>(rank), static_cast<float>(rank));
  std::vector<float> output;
  std::vector<int64_t> rows;
  GatherOptions options;
  options.name = "gather";
  options.tensor_names = {"values"};
  Check(engine->Allgather(options, {View(&input)}, RoomIn(&output), &rows), "allgather");
  std::vector<float> expected;
  for (int r = 0; r < SizeOf(engine); ++r) {
    expected.insert(expected.end(), r, r);
    Check(rows[r] == r, "rows of allgather");
  }
  Check(output == expected, "allgather of uneven parts");
}

// Rank r gives rank s `unit` times r + 2s rows, which hold 10r + s.
void CheckAlltoall(Engine* engine, int64_t unit) {
  const int rank = RankOf(engine);
  std::vector<float> input;
  std::vector<float> expected;
  std::vector<int64_t> splits;
  for (int peer = 0; peer < SizeOf(engine); ++peer) {
    splits.push_back(unit * (rank + 2 * peer));
    input.insert(input.end(), splits.back(), static_cast<float>(10 * rank + peer));
    expected.insert(expected.end(), unit * (peer + 2 * rank), static_cast<float>(10 * peer + rank));
  }
  std::vector<float> output;
  std::vector<int64_t> received;
  Check(engine->Alltoall("deal", View(&input), splits, RoomIn(&output), &received), "alltoall");
  Check(output == expected, "alltoall of uneven parts, by", std::to_string(unit));
}

// Rank r makes r rounds and has joined by then.
void CheckJoin(Engine* engine) {
  const int rank = RankOf(engine);
  const int size = SizeOf(engine);
  for (int round = 0; round < rank; ++round) {
    std::vector<float> values(round % 2 == 0 ? 7 : 100'003, static_cast<float>(rank));
    Check(Sum(engine, "uneven", &values), "sum while others have joined");
    const int live = size * (size - 1) / 2 - round * (round + 1) / 2;
    Check(values.back() == static_cast<float>(live), "value of that sum");
    CheckWeightedAverage(engine, round + 1);
    Check(engine->Barrier("uneven"), "barrier while others have joined");
  }
  int last = -1;
  Check(engine->Join(&last), "join");
  Check(last == WorldRanksOf(engine).back(), "the rank that joined last");
}

void CheckMismatch(Engine* engine) {
  if (SizeOf(engine) == 1) return;
  const Ranks& ranks = WorldRanksOf(engine);
  std::vector<float> values(RankOf(engine) == 0 ? 3 : 4, 1.0f);
  const Status status = Sum(engine, "uneven", &values);
  Check(status.code() == StatusCode::kFailedPrecondition, "mismatch", status.message());
  const std::string text = "[3] on rank " + std::to_string(ranks[0]) + ", [4] on rank";
  Check(status.message().find(text) != std::string::npos, "text", status.message());
}

void PrintExampleOfAnError(Engine* engine) {
  std::vector<float> values(RankOf(engine) == 0 ? 3 : 4, 1.0f);
  const Status status = Sum(engine, "uneven", &values);
  if (RankOf(engine) > 0 || status.ok()) return;
  std::printf("mpi_smoke: example of an error: %s\n", status.message().c_str());
}

void CheckEveryOperation(Engine* engine) {
  for (int64_t count : {0, 1, 5, 4096, 4097, 100'003}) CheckAllreduce(engine, count);
  for (int64_t count : {1, 100'003}) CheckBroadcast(engine, count);
  for (int64_t count : {3, 100'003}) CheckAdasum(engine, count);
  for (int64_t rows : {0, 1, 100'003}) CheckReduceScatter(engine, rows);
  for (int64_t unit : {0, 1, 20'011}) CheckAlltoall(engine, unit);
  CheckAllgather(engine);
  CheckWeightedAverage(engine);
  CheckJoin(engine);
  CheckMismatch(engine);
  CheckAllreduce(engine, 77);
}

// The engine of a new process set, null where this rank is not in it.
std::shared_ptr<Engine> AddProcessSet(const Ranks& ranks, int expected_number) {
  char message[1024] = "";
  int number = -1;
  const int code = tfdist_add_process_set(ranks.data(), static_cast<int>(ranks.size()), &number,
                                          message, sizeof(message));
  Check(code == 0 && number == expected_number, "add_process_set", message);
  std::shared_ptr<Engine> set;
  const Status status = World::Find(number, &set);
  const bool included = std::count(ranks.begin(), ranks.end(), tfdist_rank()) > 0;
  Check(status.code() == (included ? StatusCode::kOk : StatusCode::kInvalidArgument),
        "finding a process set", status.message());
  return set;
}

// Even and odd ranks at the same time, and all ranks from two threads.
void CheckProcessSets(Engine* engine) {
  Ranks all;
  Ranks halves[2];
  for (int rank = 0; rank < tfdist_size(); ++rank) {
    all.push_back(rank);
    halves[rank % 2].push_back(rank);
  }
  // One of one rank alone is there already when all ranks are one.
  const bool alone = tfdist_size() == 1;
  const std::shared_ptr<Engine> even = AddProcessSet(halves[0], 1);
  const std::shared_ptr<Engine> odd = alone ? nullptr : AddProcessSet(halves[1], 2);
  const std::shared_ptr<Engine> whole = alone ? even : AddProcessSet(all, 3);
  Engine* const half = tfdist_rank() % 2 == 0 ? even.get() : odd.get();
  CheckEveryOperation(half);
  std::thread beside([&whole] {
    for (int round = 0; round < 5; ++round) CheckEveryOperation(whole.get());
  });
  for (int round = 0; round < 5; ++round) CheckEveryOperation(engine);
  beside.join();
  for (int number = 1; number <= (alone ? 1 : 3); ++number) {
    Check(tfdist_remove_process_set(number, nullptr, 0) == 0, "remove_process_set");
  }
}

double SecondsOf(Engine* engine, int64_t count, int repeats) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    Check(engine->Barrier("bench").ok(), "barrier");
    const auto start = std::chrono::steady_clock::now();
    Check(Sum(engine, "bench", &values).ok(), "bench");
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (elapsed.count() < best) best = elapsed.count();
  }
  return best;
}

void Bench(Engine* engine) {
  const double large = SecondsOf(engine, 25'000'000, 10);
  const double small = SecondsOf(engine, 1024, 2000);
  if (tfdist_rank() != 0) return;
  std::printf("mpi_smoke: %d ranks: 100 MB float32 %.1f ms, 4 KB %.1f us (best of runs)\n",
              tfdist_size(), large * 1e3, small * 1e6);
}

std::string Init(const Ranks& ranks, const int* mpi_communicator, int expected_code) {
  char message[4096] = "";
  const std::string settings = EngineSettings(10, 60, 64 << 20, WindowBytes());
  const int code = tfdist_init("mpi", ranks.data(), static_cast<int>(ranks.size()),
                               mpi_communicator, settings.c_str(), message, sizeof(message));
  Check(code == expected_code, "init", message);
  return message;
}

void ExpectPlace(int rank, int size) {
  Check(tfdist_rank() == rank && tfdist_size() == size, "place",
        std::to_string(tfdist_rank()) + " of " + std::to_string(tfdist_size()));
}

int FromLauncher(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

// The even numbers downwards and the odd ones upwards, since a list is in the order of the ranks.
void InitByRanks() {
  const int own = FromLauncher("OMPI_COMM_WORLD_RANK");
  const int size = std::max(1, FromLauncher("OMPI_COMM_WORLD_SIZE"));
  Ranks ranks;
  for (int rank = own % 2; rank < size; rank += 2) ranks.push_back(rank);
  if (own % 2 == 0) std::reverse(ranks.begin(), ranks.end());
  const Ranks wrong[] = {{size}, {own, own}, {own, -1}, {own + 1 < size ? own + 1 : own - 1}};
  for (const Ranks& list : wrong) {
    const std::string message = Init(list, nullptr, static_cast<int>(StatusCode::kInvalidArgument));
    Check(
        message.find("expected distinct ranks of the job, including this one") != std::string::npos,
        "text about wrong ranks", message);
  }
  Init(ranks, nullptr, 0);
  const auto place = std::find(ranks.begin(), ranks.end(), own) - ranks.begin();
  ExpectPlace(static_cast<int>(place), static_cast<int>(ranks.size()));
}

// Even and odd processes apart, each in the reverse order. The communicator is gone afterwards.
void InitByCommunicator() {
  int own = 0;
  int size = 1;
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int none = MPI_Comm_c2f(MPI_COMM_NULL);
  const std::string message = Init({}, &none, static_cast<int>(StatusCode::kInvalidArgument));
  Check(message.find("init received MPI_COMM_NULL") != std::string::npos, "text", message);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, own % 2, size - own, &half);
  const int handle = MPI_Comm_c2f(half);
  Init({}, &handle, 0);
  MPI_Comm_free(&half);
  const int members = (size + 1 - own % 2) / 2;
  ExpectPlace(members - 1 - own / 2, members);
}

// MPI that the program has started is still there and goes on.
void FinalizeOwnMpi() {
  int finalized = 1;
  MPI_Finalized(&finalized);
  Check(finalized == 0, "MPI was ended by somebody who had not started it");
  Check(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS, "MPI after shutdown");
  MPI_Finalize();
}

void CheckThatMpiHasEnded() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  Check(finalized != 0, "MPI is still there after shutdown of who has started it");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  if (mode == "ranks") {
    InitByRanks();
  } else if (mode == "communicator") {
    InitByCommunicator();
  } else {
    Init({}, nullptr, 0);
  }
  if (tfdist_is_initialized() == 0) return 1;
  const bool first = tfdist_rank() == 0;
  const int size = tfdist_size();
  {
    const std::shared_ptr<Engine> engine = World::Get();
    CheckEveryOperation(engine.get());
    CheckAllreduce(engine.get(), 3'000'001);
    CheckProcessSets(engine.get());
    if (mode == "all") PrintExampleOfAnError(engine.get());
    if (mode == "bench") Bench(engine.get());
  }
  char message[4096] = "";
  Check(tfdist_barrier("end", message, sizeof(message)) == 0, "barrier", message);
  Check(tfdist_shutdown(1, message, sizeof(message)) == 0, "shutdown", message);
  mode == "communicator" ? FinalizeOwnMpi() : CheckThatMpiHasEnded();
  if (first && failures == 0)
    std::printf("mpi_smoke: passed on %d ranks (%s)\n", size, mode.c_str());
  return failures == 0 ? 0 : 1;
}
