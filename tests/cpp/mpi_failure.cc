// What survivors see over real MPI when the last rank is killed ("killed"; needs mpirun --with-ft
// ulfm) or does not take part ("silent"). Each survivor prints one line "mpi_failure: rank R: ok";
// whoever starts this counts them, because mpirun's exit status does not tell.
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/c_api.h"
#include "core/engine.h"
#include "core/world.h"

namespace {

using tfdist::Status;
using tfdist::StatusCode;

Status Sum(size_t count) {
  std::vector<float> values(count, 1.0f);
  tfdist::AllreduceOptions options;
  options.name = "grads";
  options.tensor_names = {"kernel"};
  const tfdist::TensorView view{
      tfdist::DType::kFloat32, {static_cast<int64_t>(count)}, values.data()};
  return tfdist::World::Get()->Allreduce(options, {view}, {view});
}

// Goes on until the first error.
Status SumUntilError() {
  for (int i = 0; i < 1000000; ++i) {
    Status status = Sum(300'000);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

bool Judge(const Status& status, StatusCode code, const std::string& text) {
  const bool named = status.message().find(text) != std::string::npos;
  const bool kept = Sum(10).message() == status.message();
  const bool ok = status.code() == code && named && kept;
  std::printf("mpi_failure: rank %d: %s: %s\n", tfdist_rank(), ok ? "ok" : "WRONG",
              status.message().c_str());
  std::fflush(stdout);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  const bool killed = argc > 1 && std::strcmp(argv[1], "killed") == 0;
  char message[4096] = "";
  if (tfdist_init("mpi", 1, killed ? 60 : 2, 64 << 20, message, sizeof(message)) != 0) {
    std::fprintf(stderr, "mpi_failure: init: %s\n", message);
    return 1;
  }
  const int rank = tfdist_rank();
  const int last = tfdist_size() - 1;
  const auto start = std::chrono::steady_clock::now();
  bool ok = Sum(1000).ok();
  if (killed) {
    for (int i = 0; rank == last && i < 20; ++i) ok = Sum(300'000).ok() && ok;
    if (rank == last) std::raise(SIGKILL);
    ok = Judge(SumUntilError(), StatusCode::kUnavailable, "rank " + std::to_string(rank)) && ok;
  } else if (rank == last) {
    // Stays until all others have seen their deadline.
    for (int peer = 0; peer < last; ++peer) {
      MPI_Recv(nullptr, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  } else {
    ok = Judge(Sum(300'000), StatusCode::kDeadlineExceeded, "for rank " + std::to_string(last)) &&
         ok;
    MPI_Send(nullptr, 0, MPI_BYTE, last, 1, MPI_COMM_WORLD);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (elapsed.count() > 30) ok = false;  // noticed, not waited out
  tfdist_shutdown(0, nullptr, 0);
  _exit(ok ? 0 : 1);  // MPI_Finalize would wait for the dead
}
