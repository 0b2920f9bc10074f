#include "mpi/mpi_environment.h"

#include <utility>
#include <vector>

#include "core/wait.h"

namespace tfdist {
namespace {

Status FromMpi(int error, const std::string& doing) {
  if (error == MPI_SUCCESS) return Status::Ok();
  return Status(StatusCode::kUnavailable, "MPI failed " + doing + ": " + MpiErrorText(error) + ".");
}

Status CheckThreadLevel() {
  int level = MPI_THREAD_SINGLE;
  TFDIST_RETURN_IF_ERROR(FromMpi(MPI_Query_thread(&level), "to tell its thread level"));
  if (level >= MPI_THREAD_SERIALIZED) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                "MPI runs at thread level " + std::to_string(level) + "; expected at least " +
                    std::to_string(MPI_THREAD_SERIALIZED) +
                    " (MPI_THREAD_SERIALIZED), because collectives run on the framework's "
                    "threads. With mpi4py set mpi4py.rc.thread_level = 'multiple' before its first "
                    "import, or call init() before importing it.");
}

}  // namespace

std::string MpiErrorText(int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) {
    return "error " + std::to_string(error);
  }
  return std::string(text, static_cast<size_t>(length));
}

Status StartMpi(bool* started) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return Status(StatusCode::kUnavailable,
                  "MPI has been finalized in this process and cannot be started again. Call init() "
                  "once, and shutdown() only when no more collectives follow.");
  }
  *started = initialized == 0;
  if (*started) {
    int level = MPI_THREAD_SINGLE;
    TFDIST_RETURN_IF_ERROR(
        FromMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "to start"));
  }
  return CheckThreadLevel();
}

Status DuplicateWorld(const EngineConfig& config, MPI_Comm* duplicate) {
  Topology world;  // enough for messages; the real one needs the duplicate
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  world.hosts.assign(static_cast<size_t>(world.size), name);

  // Non-blocking, because a rank that never calls init must not stop the others for ever.
  MPI_Request request = MPI_REQUEST_NULL;
  TFDIST_RETURN_IF_ERROR(
      FromMpi(MPI_Comm_idup(MPI_COMM_WORLD, duplicate, &request), "to duplicate MPI_COMM_WORLD"));
  Wait wait(config, world, [] { return std::string("init"); });
  int done = 0;
  while (true) {
    TFDIST_RETURN_IF_ERROR(
        FromMpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "to duplicate MPI_COMM_WORLD"));
    if (done != 0) break;
    TFDIST_RETURN_IF_ERROR(wait.Pause([] { return std::vector<int>(); }));
  }
  return FromMpi(MPI_Comm_set_errhandler(*duplicate, MPI_ERRORS_RETURN),
                 "to set its error handler");
}

Status FindTopology(MPI_Comm mpi, Topology* topology) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(mpi, &rank);
  MPI_Comm_size(mpi, &size);
  MPI_Comm host = MPI_COMM_NULL;
  TFDIST_RETURN_IF_ERROR(
      FromMpi(MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
              "to find the ranks of this host"));
  int host_id = rank;  // the lowest rank on a host stands for it
  TFDIST_RETURN_IF_ERROR(FromMpi(MPI_Bcast(&host_id, 1, MPI_INT, 0, host), "to name the hosts"));
  MPI_Comm_free(&host);

  std::vector<int> host_ids(static_cast<size_t>(size));
  TFDIST_RETURN_IF_ERROR(
      FromMpi(MPI_Allgather(&host_id, 1, MPI_INT, host_ids.data(), 1, MPI_INT, mpi),
              "to gather the hosts"));
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  std::vector<char> names(static_cast<size_t>(size) * sizeof(name));
  TFDIST_RETURN_IF_ERROR(FromMpi(
      MPI_Allgather(name, sizeof(name), MPI_CHAR, names.data(), sizeof(name), MPI_CHAR, mpi),
      "to gather the host names"));
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.emplace_back(&names[static_cast<size_t>(r) * sizeof(name)]);
  *topology = MakeTopology(rank, host_ids, std::move(hosts));
  return Status::Ok();
}

}  // namespace tfdist
