// What MPI's user-level failure mitigation (ULFM) tells and does about lost ranks. Where MPI has no
// ULFM, nobody is known to have failed, nobody is told and nothing is recovered. Owns nothing.
#ifndef TFDIST_MPI_PEER_LOSS_H_
#define TFDIST_MPI_PEER_LOSS_H_

#include <mpi.h>

#include <vector>

#include "core/value/status.h"

namespace tfdist {

// The first three are local: they wait for no other rank.

// The ranks of `mpi` that this process knows to have died, ascending.
std::vector<int> FailedRanks(MPI_Comm mpi);

// True when `error` says that another rank has revoked the communicator.
bool IsRevoked(int error);

// Ends the waits of all ranks in `mpi`, now and later.
void Revoke(MPI_Comm mpi);

// A communicator of the ranks of `mpi` that live, in the same order. All of them call it; waits for
// them, but not for one that dies. The error of a rank is its own.
Status ShrinkToSurvivors(MPI_Comm mpi, MPI_Comm* survivors);

// Whether all ranks say `ok` and none has died: the same answer on all that live.
Status AgreeOnSurvival(MPI_Comm mpi, bool ok, bool* all);

}  // namespace tfdist

#endif  // TFDIST_MPI_PEER_LOSS_H_
