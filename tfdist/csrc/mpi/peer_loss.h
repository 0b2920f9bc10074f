// What MPI's user-level failure mitigation (ULFM) tells and does about lost ranks. Recovers
// nothing. Where MPI has no ULFM, nobody is known to have failed and nobody is told.
//
// All functions are local: they wait for no other rank. Owns nothing.
#ifndef TFDIST_MPI_PEER_LOSS_H_
#define TFDIST_MPI_PEER_LOSS_H_

#include <mpi.h>

#include <vector>

namespace tfdist {

// The ranks of `mpi` that this process knows to have died, ascending.
std::vector<int> FailedRanks(MPI_Comm mpi);

// True when `error` says that another rank has revoked the communicator.
bool IsRevoked(int error);

// Ends the waits of all ranks in `mpi`, now and later.
void Revoke(MPI_Comm mpi);

}  // namespace tfdist

#endif  // TFDIST_MPI_PEER_LOSS_H_
