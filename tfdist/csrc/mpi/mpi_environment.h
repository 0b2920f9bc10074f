// The MPI of this process: its start, our communicator in it and the topology it tells.
// Not the moving of data (mpi_communicator.h).
//
// Called while an engine is created, by one thread. Whoever gets a communicator owns it.
#ifndef TFDIST_MPI_MPI_ENVIRONMENT_H_
#define TFDIST_MPI_MPI_ENVIRONMENT_H_

#include <mpi.h>

#include <string>

#include "core/place/topology.h"
#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/wire/communicator_factory.h"

namespace tfdist {

// Starts MPI unless somebody has; `started` says whether it was this function, now or before. Fails
// on too low a thread level and on an MPI that has been ended, since MPI cannot be started twice.
Status StartMpi(bool* started);

// A communicator of the members alone that returns errors instead of aborting. Fails when not all
// of them ask for it within config.stall_shutdown_seconds, and for wrong ranks.
Status DuplicateMembers(const EngineConfig& config, const Membership& membership,
                        MPI_Comm* duplicate);

// Whether messages with `tag` may travel on `mpi` beside those of other threads.
Status CheckTag(MPI_Comm mpi, int tag);

// All ranks of `mpi` call it. Host names are for messages; ranks share a host when MPI says that
// they can share memory.
Status FindTopology(MPI_Comm mpi, Topology* topology);

// MPI's own words for an error code.
std::string MpiErrorText(int error);

}  // namespace tfdist

#endif  // TFDIST_MPI_MPI_ENVIRONMENT_H_
