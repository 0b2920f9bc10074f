#include "mpi/mpi_environment.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/wire/wait.h"

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
  return Status(StatusCode::kInvalidArgument,
                "MPI runs at thread level " + std::to_string(level) + "; expected at least " +
                    std::to_string(MPI_THREAD_SERIALIZED) +
                    " (MPI_THREAD_SERIALIZED), because collectives run on the framework's "
                    "threads. With mpi4py, set mpi4py.rc.thread_level = 'multiple' before its "
                    "first import, or call init() before importing it.");
}

// Non-blocking, because a rank that never calls init must not stop the others for ever.
Status Duplicate(const EngineConfig& config, MPI_Comm source, MPI_Comm* duplicate) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(source, &rank);
  MPI_Comm_size(source, &size);
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  // Enough for messages; the real one needs the duplicate.
  const std::vector<int> host_ids(static_cast<size_t>(size), 0);
  const std::vector<std::string> hosts(static_cast<size_t>(size), name);
  const Topology topology = MakeTopology(rank, host_ids, hosts);

  MPI_Request request = MPI_REQUEST_NULL;
  TFDIST_RETURN_IF_ERROR(
      FromMpi(MPI_Comm_idup(source, duplicate, &request), "to duplicate a communicator"));
  Wait wait(config, topology, [] { return std::string("init"); });
  int done = 0;
  while (true) {
    TFDIST_RETURN_IF_ERROR(
        FromMpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "to duplicate a communicator"));
    if (done != 0) break;
    TFDIST_RETURN_IF_ERROR(wait.Pause(topology, [] { return std::vector<int>(); }));
  }
  return FromMpi(MPI_Comm_set_errhandler(*duplicate, MPI_ERRORS_RETURN),
                 "to set its error handler");
}

std::string Joined(const std::vector<int>& numbers) {
  std::string text;
  for (int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

// A communicator of these ranks of MPI_COMM_WORLD, in this order. Only they call it.
Status Group(const std::vector<int>& ranks, MPI_Comm* group) {
  int own = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  const bool known = sorted.front() >= 0 && sorted.back() < size;
  if (!distinct || !known || !std::binary_search(sorted.begin(), sorted.end(), own)) {
    return Status(StatusCode::kInvalidArgument,
                  "init received the ranks [" + Joined(ranks) + "] on rank " + std::to_string(own) +
                      " of " + std::to_string(size) +
                      "; expected distinct ranks of the job, including this one. Pass every rank "
                      "the list that it belongs to.");
  }
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members);
  const int tag = sorted.front();  // lists that share no rank have different ones
  const int error = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, group);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  return FromMpi(error, "to create a communicator of the ranks " + Joined(ranks));
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
    return Status(StatusCode::kInvalidArgument,
                  "MPI has been finalized in this process and cannot be started again. Call "
                  "init() only once, and shutdown() only after the last collective.");
  }
  static bool ours = false;  // outlives an init that fails later on: the next one must end MPI too
  if (initialized == 0) {
    int level = MPI_THREAD_SINGLE;
    TFDIST_RETURN_IF_ERROR(
        FromMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "to start"));
    ours = true;
  }
  *started = ours;
  return CheckThreadLevel();
}

Status DuplicateMembers(const EngineConfig& config, const Membership& membership,
                        MPI_Comm* duplicate) {
  if (membership.mpi_communicator.has_value()) {
    const MPI_Comm source = MPI_Comm_f2c(*membership.mpi_communicator);
    if (source == MPI_COMM_NULL) {
      return Status(StatusCode::kInvalidArgument,
                    "init received MPI_COMM_NULL; expected a communicator that this process "
                    "belongs to. A process left out by a Split must not call init with it.");
    }
    return Duplicate(config, source, duplicate);
  }
  if (membership.ranks.empty()) return Duplicate(config, MPI_COMM_WORLD, duplicate);
  MPI_Comm group = MPI_COMM_NULL;
  TFDIST_RETURN_IF_ERROR(Group(membership.ranks, &group));
  const Status status = Duplicate(config, group, duplicate);
  if (status.ok()) MPI_Comm_free(&group);
  return status;
}

Status CheckTag(MPI_Comm mpi, int tag) {
  int level = MPI_THREAD_SINGLE;
  TFDIST_RETURN_IF_ERROR(FromMpi(MPI_Query_thread(&level), "to tell its thread level"));
  if (level < MPI_THREAD_MULTIPLE) {
    return Status(StatusCode::kUnavailable,
                  "process sets need MPI at thread level " + std::to_string(MPI_THREAD_MULTIPLE) +
                      " (MPI_THREAD_MULTIPLE); it runs at " + std::to_string(level) +
                      ". With mpi4py, leave mpi4py.rc.thread_level at 'multiple'.");
  }
  int* limit = nullptr;
  int known = 0;
  MPI_Comm_get_attr(mpi, MPI_TAG_UB, &limit, &known);
  if (known == 0 || tag <= *limit) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                "MPI has no message tag left for another process set: it allows " +
                    std::to_string(*limit) + ". Create process sets once and reuse them.");
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
