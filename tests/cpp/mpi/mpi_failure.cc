// What ranks see over real MPI when the last one does not take part. Each of the others prints one
// line "mpi_failure: rank R: ok"; whoever starts this counts them, because mpirun's exit status
// does not tell.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/c_api.h"
#include "core/engine/engine.h"
#include "core/engine/world.h"
#include "engine_settings.h"

namespace {

using tfdist::Status;
using tfdist::StatusCode;

Status Sum(size_t count) {
  std::vector<float> values(count, 1.0f);
  tfdist::AllreduceOptions options;
  options.name = "grads";
  options.tensor_names = {"kernel"};
  const tfdist::TensorView view = {
      tfdist::DType::kFloat32, {static_cast<int64_t>(count)}, values.data()};
  return tfdist::World::Get()->Allreduce(options, {view}, {view});
}

bool Judge(const Status& status, StatusCode code, const std::string& text) {
  const bool named = status.message().find(text) != std::string::npos;
  const bool ok = status.code() == code && named;
  std::printf("mpi_failure: rank %d: %s: %s\n", tfdist_rank(), ok ? "ok" : "WRONG",
              status.message().c_str());
  std::fflush(stdout);
  return ok;
}

bool RunSilent() {
  const int rank = tfdist_rank();
  const int last = tfdist_size() - 1;
  // All stay until each has seen its deadline: one that leaves is one that is lost.
  if (rank == last) {
    for (int peer = 0; peer < last; ++peer) {
      MPI_Recv(nullptr, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    for (int peer = 0; peer < last; ++peer) {
      MPI_Send(nullptr, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
    }
    return true;
  }
  const Status status = Sum(300'000);
  // An engine that has failed says the same ever after.
  const bool ok =
      Judge(status, StatusCode::kDeadlineExceeded, "for rank " + std::to_string(last)) &&
      Sum(10).message() == status.message();
  MPI_Send(nullptr, 0, MPI_BYTE, last, 1, MPI_COMM_WORLD);
  MPI_Recv(nullptr, 0, MPI_BYTE, last, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return ok;
}

}  // namespace

int main() {
  char message[4096] = "";
  const std::string settings = EngineSettings(1, 2, 64 << 20, WindowBytes());
  if (tfdist_init("mpi", nullptr, 0, nullptr, settings.c_str(), message, sizeof(message)) != 0) {
    std::fprintf(stderr, "mpi_failure: init: %s\n", message);
    return 1;
  }
  const bool ok = Sum(1000).ok() && RunSilent();
  tfdist_shutdown(0, nullptr, 0);
  _exit(ok ? 0 : 1);  // MPI_Finalize would wait for the others
}
