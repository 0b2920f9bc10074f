// What survivors see over real MPI. Each prints one line "mpi_failure: rank R: ok"; whoever starts
// this counts them, because mpirun's exit status does not tell.
//
//   mpi_failure silent             the last rank does not take part
//   mpi_failure killed OPERATION [VICTIM]
//                                  the last rank, or VICTIM, is killed in the middle of allreduce,
//                                  reducescatter, broadcast, allgather, adasum, alltoall, join
//                                  (rank 0 has joined) or set (an allreduce in a process set of all
//                                  but rank 0); needs mpirun --with-ft ulfm
//   mpi_failure survived VICTIM... the victims are killed one after the other, each in the middle
//   of
//                                  an allreduce, and the others go on each time; a victim written
//                                  as -R dies while they agree to go on. Needs the same
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
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
using tfdist::Engine;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

constexpr int kCallsBeforeTheEnd = 20;
constexpr size_t kElements = 300'000;

TensorView View(std::vector<float>* values) {
  return {tfdist::DType::kFloat32, {static_cast<int64_t>(values->size())}, values->data()};
}

AllreduceOptions OptionsFor(Reduction reduction) {
  AllreduceOptions options;
  options.name = "grads";
  options.tensor_names = {"kernel"};
  options.reduction = reduction;
  return options;
}

Status Allreduce(Engine* engine, size_t count, Reduction reduction) {
  std::vector<float> values(count, 1.0f);
  return engine->Allreduce(OptionsFor(reduction), {View(&values)}, {View(&values)});
}

Status Sum(size_t count) { return Allreduce(tfdist::World::Get().get(), count, Reduction::kSum); }

Status ReduceScatter(Engine* engine) {
  const size_t rows = kElements / static_cast<size_t>(tfdist_size());
  std::vector<float> input(rows * static_cast<size_t>(tfdist_size()), 1.0f);
  std::vector<float> output(rows);
  return engine->ReduceScatter(OptionsFor(Reduction::kSum), {View(&input)}, {View(&output)});
}

Status Alltoall(Engine* engine) {
  std::vector<float> input(kElements / 12 * 12, 1.0f);  // divides by 1 to 4 ranks
  std::vector<float> output;
  std::vector<int64_t> received;
  const auto allocate = [&output](int, const std::vector<int64_t>& shape, TensorView* view) {
    output.resize(static_cast<size_t>(shape[0]));
    *view = View(&output);
    return Status::Ok();
  };
  return engine->Alltoall("tokens", View(&input), {}, allocate, &received);
}

Status Broadcast(Engine* engine) {
  std::vector<float> values(kElements, 1.0f);
  tfdist::BroadcastOptions options;
  options.name = "weights";
  options.tensor_names = {"kernel"};
  return engine->Broadcast(options, {View(&values)});
}

Status Allgather(Engine* engine) {
  std::vector<float> input(kElements, 1.0f);
  std::vector<float> output;
  std::vector<int64_t> rows;
  tfdist::GatherOptions options;
  options.name = "rows";
  options.tensor_names = {"kernel"};
  const auto allocate = [&output](int, const std::vector<int64_t>& shape, TensorView* view) {
    output.resize(static_cast<size_t>(shape[0]));
    *view = View(&output);
    return Status::Ok();
  };
  return engine->Allgather(options, {View(&input)}, allocate, &rows);
}

Status RunOnce(const std::string& operation, Engine* engine) {
  if (operation == "broadcast") return Broadcast(engine);
  if (operation == "allgather") return Allgather(engine);
  if (operation == "reducescatter") return ReduceScatter(engine);
  if (operation == "alltoall") return Alltoall(engine);
  const bool adasum = operation == "adasum";
  return Allreduce(engine, kElements, adasum ? Reduction::kAdasum : Reduction::kSum);
}

// Goes on until the first error. A rank that dies never sees one: it is killed during a call.
Status RunUntilError(const std::string& operation, Engine* engine, bool dies) {
  std::atomic<int> begun{0};
  std::thread killer;
  if (dies) {
    killer = std::thread([&begun] {
      while (begun <= kCallsBeforeTheEnd) std::this_thread::yield();
      std::raise(SIGKILL);
    });
  }
  Status status;
  while (status.ok() && begun < 1'000'000) {
    ++begun;
    status = RunOnce(operation, engine);
  }
  if (dies) killer.join();
  return status;
}

bool Judge(const Status& status, StatusCode code, const std::string& text) {
  const bool named = status.message().find(text) != std::string::npos;
  const bool ok = status.code() == code && named;
  std::printf("mpi_failure: rank %d: %s: %s\n", tfdist_rank(), ok ? "ok" : "WRONG",
              status.message().c_str());
  std::fflush(stdout);
  return ok;
}

// An engine that has failed says the same ever after.
bool IsKept(const Status& status) { return Sum(10).message() == status.message(); }

bool RunKilled(const std::string& operation, int victim) {
  const int rank = tfdist_rank();
  const int last = tfdist_size() - 1;
  Engine* const whole = tfdist::World::Get().get();
  std::shared_ptr<Engine> set;
  if (operation == "set") {
    std::vector<int> ranks;
    for (int r = 1; r <= last; ++r) ranks.push_back(r);
    int number = 0;
    if (!tfdist::World::AddProcessSet(ranks, &number).ok()) return false;
    if (rank > 0 && !tfdist::World::Find(number, &set).ok()) return false;
  }
  Status status;
  if (rank == 0 && operation == "join") {
    int unused = 0;
    status = whole->Join(&unused);
  } else if (rank == 0 && operation == "set") {
    status = whole->Barrier("waits for the set");
  } else {
    status = RunUntilError(operation, set != nullptr ? set.get() : whole, rank == victim);
  }
  const bool ok = Judge(status, StatusCode::kUnavailable, "rank " + std::to_string(rank));
  // Who is lost to a process set is lost to all ranks.
  if (set != nullptr) return ok && Sum(10).code() == StatusCode::kUnavailable;
  return ok && IsKept(status);
}

bool RunSilent() {
  const int rank = tfdist_rank();
  const int last = tfdist_size() - 1;
  if (rank == last) {
    // Stays until all others have seen their deadline.
    for (int peer = 0; peer < last; ++peer) {
      MPI_Recv(nullptr, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return true;
  }
  const Status status = Sum(kElements);
  const bool ok =
      Judge(status, StatusCode::kDeadlineExceeded, "for rank " + std::to_string(last)) &&
      IsKept(status);
  MPI_Send(nullptr, 0, MPI_BYTE, last, 1, MPI_COMM_WORLD);
  return ok;
}

// Kills this process a little later, at a moment that differs from run to run.
void DieSoon() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::thread([turns = now / 100 % 10'000] {
    for (int64_t turn = 0; turn < turns; ++turn) std::this_thread::yield();
    std::raise(SIGKILL);
  }).detach();
}

// The sums are those of the ranks that live, whose numbers leave no gap.
bool GoesOn(int expected_size) {
  if (tfdist_size() != expected_size || tfdist_rank() >= expected_size) return false;
  std::vector<float> values(kElements, static_cast<float>(tfdist_rank() + 1));
  const Status status = tfdist::World::Get()->Allreduce(OptionsFor(Reduction::kSum),
                                                        {View(&values)}, {View(&values)});
  const float sum = static_cast<float>(expected_size * (expected_size + 1) / 2);
  return status.ok() &&
         std::all_of(values.begin(), values.end(), [sum](float value) { return value == sum; });
}

bool RunSurvived(const std::vector<int>& victims) {
  const int number = tfdist_rank();
  const int first_size = tfdist_size();
  const int last_size = first_size - static_cast<int>(victims.size());
  bool ok = true;
  while (ok && tfdist_size() > last_size) {
    const size_t dead = static_cast<size_t>(first_size - tfdist_size());
    const std::shared_ptr<Engine> before = tfdist::World::Get();
    const Status lost = RunUntilError("allreduce", before.get(), victims[dead] == number);
    ok = tfdist_check(nullptr, 0) == static_cast<int>(StatusCode::kUnavailable);
    for (size_t next = dead + 1; next < victims.size() && victims[next] < 0; ++next) {
      if (victims[next] == -number) DieSoon();
    }
    char message[4096] = "";
    ok = tfdist_shrink(message, sizeof(message)) == 0 && lost.code() == StatusCode::kUnavailable &&
         ok;
    if (!ok) std::printf("mpi_failure: rank %d: %s; %s\n", number, lost.message().c_str(), message);
    ok = ok && Allreduce(before.get(), 10, Reduction::kSum).code() == StatusCode::kUnavailable;
  }
  ok = ok && GoesOn(last_size) && tfdist_shutdown(1, nullptr, 0) == 0;
  std::printf("mpi_failure: rank %d: %s\n", number, ok ? "ok" : "WRONG");
  std::fflush(stdout);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const bool killed = argc > 2 && what == "killed";
  char message[4096] = "";
  const std::string settings =
      EngineSettings(1, what == "silent" ? 2 : 60, 64 << 20, WindowBytes());
  if (tfdist_init("mpi", nullptr, 0, nullptr, settings.c_str(), message, sizeof(message)) != 0) {
    std::fprintf(stderr, "mpi_failure: init: %s\n", message);
    return 1;
  }
  const auto start = std::chrono::steady_clock::now();
  bool ok = Sum(1000).ok();
  const int victim = argc > 3 ? std::atoi(argv[3]) : tfdist_size() - 1;
  if (what == "survived") {
    std::vector<int> victims;
    for (int i = 2; i < argc; ++i) victims.push_back(std::atoi(argv[i]));
    ok = RunSurvived(victims) && ok;
  } else {
    ok = (killed ? RunKilled(argv[2], victim) : RunSilent()) && ok;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (elapsed.count() > 30) ok = false;  // noticed, not waited out
  tfdist_shutdown(0, nullptr, 0);
  _exit(ok ? 0 : 1);  // MPI_Finalize would wait for the dead
}
