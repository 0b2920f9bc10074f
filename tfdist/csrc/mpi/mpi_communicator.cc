#include "mpi/mpi_communicator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/wire/communicator_factory.h"
#include "mpi/mpi_environment.h"
#include "shm/mapped_window.h"
#include "shm/process_fork.h"

namespace tfdist {
namespace {

// Each channel has two tags: data and notes. The whole communicator is channel 0.
constexpr int kFirstTag = 7;
constexpr int kTags = 2;
constexpr int64_t kPieceBytes = int64_t{1} << 30;  // MPI counts in int

const bool kRegistered = RegisterCommunicatorFactory("mpi", MpiCommunicator::Create);

}  // namespace

Status MpiCommunicator::Create(const EngineConfig& config, const Membership& membership,
                               std::unique_ptr<Communicator>* communicator) {
  bool owns_mpi = false;
  TFDIST_RETURN_IF_ERROR(StartMpi(&owns_mpi));
  WatchForks();
  MPI_Comm mpi = MPI_COMM_NULL;
  TFDIST_RETURN_IF_ERROR(DuplicateMembers(config, membership, &mpi));
  Topology topology;
  TFDIST_RETURN_IF_ERROR(FindTopology(mpi, &topology));
  *communicator = std::make_unique<MpiCommunicator>(std::move(topology), mpi, 0, owns_mpi);
  return Status::Ok();
}

MpiCommunicator::MpiCommunicator(Topology topology, MPI_Comm mpi, int channel, bool owns_mpi)
    : Communicator(std::move(topology)), mpi_(mpi), channel_(channel), owns_mpi_(owns_mpi) {}

// Frees nothing: MPI_Comm_free is collective, and the peers may be gone.
MpiCommunicator::~MpiCommunicator() = default;

int MpiCommunicator::DataTag() const { return kFirstTag + kTags * channel_; }

Status MpiCommunicator::Exchange(const std::vector<Transfer>& sends,
                                 const std::vector<Transfer>& receives, Wait* wait) {
  wait->Begin();
  Pieces pieces;
  pieces.requests.reserve(sends.size() + receives.size());
  pieces.peers.reserve(sends.size() + receives.size());
  Status status;
  // Receives come last: Abandon cancels those alone.
  for (const Transfer& transfer : sends) {
    if (status.ok()) status = Start(transfer, /*send=*/true, &pieces);
  }
  pieces.first_receive = pieces.requests.size();
  for (const Transfer& transfer : receives) {
    if (status.ok()) status = Start(transfer, /*send=*/false, &pieces);
  }
  pieces.open = pieces.requests.size();
  if (status.ok()) status = Complete(&pieces, wait);
  if (status.ok()) return status;
  Abandon(&pieces);
  return GiveUp(status, -1, *wait);
}

Status MpiCommunicator::Start(const Transfer& transfer, bool send, Pieces* pieces) {
  char* data = static_cast<char*>(transfer.data);
  const int peer = topology().world_ranks[transfer.peer];
  const int tag = DataTag();
  for (int64_t offset = 0; offset < transfer.bytes; offset += kPieceBytes) {
    const int bytes = static_cast<int>(std::min(kPieceBytes, transfer.bytes - offset));
    MPI_Request request = MPI_REQUEST_NULL;
    const int error = send ? MPI_Isend(data + offset, bytes, MPI_BYTE, peer, tag, mpi_, &request)
                           : MPI_Irecv(data + offset, bytes, MPI_BYTE, peer, tag, mpi_, &request);
    if (error != MPI_SUCCESS) return Lost(error, transfer.peer);
    pieces->requests.push_back(request);
    pieces->peers.push_back(transfer.peer);
  }
  return Status::Ok();
}

Status MpiCommunicator::Complete(Pieces* pieces, Wait* wait) {
  indices_.resize(pieces->requests.size());
  statuses_.resize(pieces->requests.size());
  const auto missing = [pieces] {
    std::vector<int> peers;
    for (size_t i = 0; i < pieces->requests.size(); ++i) {
      if (pieces->requests[i] != MPI_REQUEST_NULL) peers.push_back(pieces->peers[i]);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  };
  bool waited = false;
  while (pieces->open > 0) {
    bool progress = false;
    TFDIST_RETURN_IF_ERROR(Poll(pieces, &progress));
    if (progress) {
      wait->Progress();
    } else {
      waited = true;
      TFDIST_RETURN_IF_ERROR(wait->Pause(topology(), missing));
    }
  }
  if (waited && pieces->latest >= 0) wait->Ended(topology(), pieces->latest);
  return Status::Ok();
}

Status MpiCommunicator::Poll(Pieces* pieces, bool* progress) {
  int completed = 0;
  const int error = MPI_Testsome(static_cast<int>(pieces->requests.size()), pieces->requests.data(),
                                 &completed, indices_.data(), statuses_.data());
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) return Lost(error, -1);
  if (completed > 0) pieces->latest = pieces->peers[indices_[completed - 1]];
  if (completed == MPI_UNDEFINED) completed = static_cast<int>(pieces->open);
  for (int i = 0; error == MPI_ERR_IN_STATUS && i < completed; ++i) {
    if (statuses_[i].MPI_ERROR == MPI_SUCCESS) continue;
    return Lost(statuses_[i].MPI_ERROR, pieces->peers[indices_[i]]);
  }
  pieces->open -= static_cast<size_t>(completed);
  *progress = completed > 0;
  return Status::Ok();
}

// Takes back the receives that nothing has arrived for, so that MPI does not write into memory
// that the caller is about to give away. A message that is half here cannot be taken back.
void MpiCommunicator::Abandon(Pieces* pieces) {
  constexpr int kPolls = 1000;  // a cancelled receive completes at once; anything else may never
  for (size_t i = pieces->first_receive; i < pieces->requests.size(); ++i) {
    MPI_Request* request = &pieces->requests[i];
    if (*request == MPI_REQUEST_NULL) continue;
    int done = 0;
    if (MPI_Cancel(request) != MPI_SUCCESS) continue;
    for (int poll = 0; poll < kPolls && done == 0; ++poll) {
      if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
    }
  }
  for (MPI_Request& request : pieces->requests) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

Status MpiCommunicator::Lost(int error, int peer) const {
  const std::string lost = peer < 0 ? "another rank" : RankListWithHosts(topology(), {peer});
  return Status(StatusCode::kUnavailable, RankListWithHosts(topology(), {rank()}) +
                                              " lost its connection to " + lost +
                                              ". MPI says: " + MpiErrorText(error) + ".");
}

// A failure is one that the exchange finds, too.
void MpiCommunicator::SendNote(int peer, int64_t note) {
  const auto complete = [](SentNote& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  };
  sent_notes_.remove_if(complete);
  sent_notes_.push_back({note, MPI_REQUEST_NULL});
  SentNote& sent = sent_notes_.back();
  MPI_Isend(&sent.note, 1, MPI_INT64_T, topology().world_ranks[peer], NoteTag(), mpi_,
            &sent.request);
}

bool MpiCommunicator::TakeNote(int* peer, int64_t* note) {
  int is_here = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, NoteTag(), mpi_, &is_here, &status) != MPI_SUCCESS ||
      is_here == 0) {
    return false;
  }
  if (MPI_Recv(note, 1, MPI_INT64_T, status.MPI_SOURCE, NoteTag(), mpi_, MPI_STATUS_IGNORE) !=
      MPI_SUCCESS) {
    return false;
  }
  const std::vector<int>& ranks = topology().world_ranks;
  *peer =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), status.MPI_SOURCE) - ranks.begin());
  return true;
}

Status MpiCommunicator::CheckSubset(int channel) {
  return CheckTag(mpi_, kFirstTag + kTags * channel + 1);
}

Status MpiCommunicator::Subset(const std::vector<int>& ranks, int channel, Wait* /*wait*/,
                               std::unique_ptr<Communicator>* subset) {
  TFDIST_RETURN_IF_ERROR(CheckSubset(channel));
  *subset = std::make_unique<MpiCommunicator>(SubsetTopology(topology(), ranks), mpi_, channel,
                                              /*owns_mpi=*/false);
  return Status::Ok();
}

Status MpiCommunicator::OpenWindow(int64_t bytes, Wait* wait, std::unique_ptr<Window>* window) {
  return MapWindow(bytes, this, wait, window);
}

Status MpiCommunicator::Finalize(bool clean) {
  if (!clean || channel_ > 0 || mpi_ == MPI_COMM_NULL) return Status::Ok();
  int error = MPI_Comm_free(&mpi_);
  if (error == MPI_SUCCESS && owns_mpi_) error = MPI_Finalize();
  if (error == MPI_SUCCESS) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                "MPI could not be finalized: " + MpiErrorText(error) +
                    ". The results are complete; check the other ranks' logs for a failure.");
}

}  // namespace tfdist
