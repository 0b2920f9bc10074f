// Runs the engine over real MPI: started by mpirun with 1 to 4 ranks. With the argument "bench" it
// also prints the time of a large and of a small allreduce. Not a unit test; those are test_*.cc.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/c_api.h"
#include "core/engine.h"
#include "core/world.h"

namespace {

using tfdist::AllreduceOptions;
using tfdist::BroadcastOptions;
using tfdist::DType;
using tfdist::Engine;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

int failures = 0;

void Check(bool ok, const char* what, const std::string& detail = "") {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "mpi_smoke: rank %d: FAILED: %s %s\n", tfdist_rank(), what, detail.c_str());
}

TensorView View(std::vector<float>* values) {
  return {DType::kFloat32, {static_cast<int64_t>(values->size())}, values->data()};
}

Status Sum(Engine* engine, const char* name, std::vector<float>* values) {
  AllreduceOptions options;
  options.name = name;
  options.tensor_names = {"values"};
  return engine->Allreduce(options, {View(values)}, {View(values)});
}

void CheckAllreduce(Engine* engine, int64_t count) {
  const int rank = tfdist_rank();
  const int size = tfdist_size();
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000 + rank);
  const Status status = Sum(engine, "sum", &values);
  Check(status.ok(), "allreduce", status.message());
  bool equal = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t expected = i % 1000 * size + size * (size - 1) / 2;
    equal = equal && values[i] == static_cast<float>(expected);
  }
  Check(equal, "sum of", std::to_string(count));
}

void CheckBroadcast(Engine* engine, int64_t count) {
  for (int root = 0; root < tfdist_size(); ++root) {
    std::vector<float> values(static_cast<size_t>(count), static_cast<float>(tfdist_rank()));
    BroadcastOptions options;
    options.name = "broadcast";
    options.tensor_names = {"values"};
    options.root = root;
    const Status status = engine->Broadcast(options, {View(&values)});
    Check(status.ok(), "broadcast", status.message());
    Check(values.front() == root && values.back() == root, "broadcast from root");
  }
}

void CheckAllgather(Engine* engine) {
  const int rank = tfdist_rank();
  std::vector<float> input(static_cast<size_t>(rank), static_cast<float>(rank));
  std::vector<float> output;
  const Status status = engine->Allgather(
      "gather", View(&input), [&output](const std::vector<int64_t>& shape, TensorView* view) {
        output.resize(static_cast<size_t>(shape[0]));
        *view = View(&output);
        return Status::Ok();
      });
  Check(status.ok(), "allgather", status.message());
  std::vector<float> expected;
  for (int r = 0; r < tfdist_size(); ++r) expected.insert(expected.end(), r, r);
  Check(output == expected, "allgather of uneven parts");
}

void CheckMismatch(Engine* engine) {
  if (tfdist_size() == 1) return;
  std::vector<float> values(tfdist_rank() == 0 ? 3 : 4, 1.0f);
  const Status status = Sum(engine, "uneven", &values);
  Check(status.code() == StatusCode::kFailedPrecondition, "mismatch", status.message());
  Check(status.message().find("[3] on rank 0, [4] on rank") != std::string::npos, "text",
        status.message());
  if (tfdist_rank() == 0)
    std::printf("mpi_smoke: example of an error: %s\n", status.message().c_str());
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

}  // namespace

int main(int argc, char** argv) {
  char message[4096] = "";
  if (tfdist_init("mpi", 10, 60, 64 << 20, message, sizeof(message)) != 0) {
    std::fprintf(stderr, "mpi_smoke: init: %s\n", message);
    return 1;
  }
  const std::shared_ptr<Engine> engine = tfdist::World::Get();
  for (int64_t count : {0, 1, 5, 4096, 4097, 100'003, 3'000'001})
    CheckAllreduce(engine.get(), count);
  for (int64_t count : {1, 100'003}) CheckBroadcast(engine.get(), count);
  CheckAllgather(engine.get());
  CheckMismatch(engine.get());
  CheckAllreduce(engine.get(), 77);
  Check(tfdist_barrier("end", message, sizeof(message)) == 0, "barrier", message);
  if (argc > 1 && std::strcmp(argv[1], "bench") == 0) Bench(engine.get());
  const bool first = tfdist_rank() == 0;
  const int size = tfdist_size();
  Check(tfdist_shutdown(1, message, sizeof(message)) == 0, "shutdown", message);
  if (first && failures == 0) std::printf("mpi_smoke: passed on %d ranks\n", size);
  return failures == 0 ? 0 : 1;
}
