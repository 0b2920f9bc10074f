#include "nccl/host_hierarchy.h"

#include <utility>
#include <vector>

#include "core/algorithm/collective.h"
#include "cuda/pack_kernels.h"
#include "nccl/wire_type.h"

namespace tfdist {
namespace {

// The ranks whose number in `of_ranks` is that of this rank.
std::vector<int> ThoseLike(const std::vector<int>& of_ranks, int rank) {
  std::vector<int> ranks;
  for (size_t r = 0; r < of_ranks.size(); ++r) {
    if (of_ranks[r] == of_ranks[rank]) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

Reduction ReductionOf(NcclOperator op) {
  switch (op) {
    case NcclOperator::kProduct:
      return Reduction::kProduct;
    case NcclOperator::kMin:
      return Reduction::kMin;
    case NcclOperator::kMax:
      return Reduction::kMax;
    default:
      return Reduction::kSum;
  }
}

}  // namespace

bool HostHierarchy::Exists(const Topology& topology) {
  return topology.is_homogeneous && topology.local_size > 1 && topology.cross_size > 1;
}

int64_t HostHierarchy::Padded(int64_t count, const Topology& topology) {
  const int64_t step = topology.local_size * kPackAlignment;
  return (count + step - 1) / step * step;
}

HostHierarchy::HostHierarchy(const Setup& setup, const Topology& topology)
    : topology_(topology),
      staging_(setup.driver, topology, [this, check = setup.check](const Wait& wait) {
        TFDIST_RETURN_IF_ERROR(check());
        return Check(wait);
      }) {}

Status HostHierarchy::Open(const Setup& setup, Communicator* transport, Wait* wait,
                           std::unique_ptr<HostHierarchy>* hierarchy) {
  const Topology& topology = transport->topology();
  std::unique_ptr<HostHierarchy> made(new HostHierarchy(setup, topology));
  Status status = transport->Subset(ThoseLike(topology.host_ids, topology.rank), setup.channel,
                                    wait, &made->host_);
  // Whatever came of the first: the ranks of another host may be in the second already.
  const Status across = transport->Subset(ThoseLike(topology.local_ranks, topology.rank),
                                          setup.channel + 1, wait, &made->peers_);
  if (status.ok()) status = across;
  TFDIST_RETURN_IF_ERROR(NcclRanks::Agree(status, transport, wait));
  status = NcclRanks::Open(setup.nccl, setup.gpu, setup.joining, made->host_.get(), wait,
                           &made->within_);
  TFDIST_RETURN_IF_ERROR(NcclRanks::Agree(status, transport, wait));
  if (setup.between == Hierarchy::kNccl) {
    status = NcclRanks::Open(setup.nccl, setup.gpu, setup.joining, made->peers_.get(), wait,
                             &made->between_);
    TFDIST_RETURN_IF_ERROR(NcclRanks::Agree(status, transport, wait));
  }
  *hierarchy = std::move(made);
  return Status::Ok();
}

Status HostHierarchy::Allreduce(char* buffer, int64_t count, DType wire, NcclOperator op,
                                CudaStream stream, Wait* wait) {
  const int64_t share = Padded(count, topology_) / topology_.local_size;
  char* const part = buffer + topology_.local_rank * share * SizeOf(wire);
  const size_t elements = static_cast<size_t>(share);
  const NcclType type = ToNcclType(wire);
  TFDIST_RETURN_IF_ERROR(within_->ReduceScatter(buffer, part, elements, type, op, stream, wait));
  TFDIST_RETURN_IF_ERROR(AllreduceBetween(part, share, wire, op, stream, wait));
  return within_->AllGather(part, buffer, elements, type, stream, wait);
}

Status HostHierarchy::AllreduceBetween(char* part, int64_t count, DType wire, NcclOperator op,
                                       CudaStream stream, Wait* wait) {
  if (between_ == nullptr) return AllreduceByTransport(part, count, wire, op, stream, wait);
  return between_->AllReduce(part, part, static_cast<size_t>(count), ToNcclType(wire), op, stream,
                             wait);
}

Status HostHierarchy::AllreduceByTransport(char* part, int64_t count, DType wire, NcclOperator op,
                                           CudaStream stream, Wait* wait) {
  Collective peers(peers_.get(), wait, &scratch_);
  const ReduceSpec spec{wire, ReductionOf(op), {}};
  const auto reduce = [&](char* copy) { return peers.Allreduce(spec, copy, count, copy); };
  return staging_.Run(part, count * SizeOf(wire), reduce, stream, wait);
}

Status HostHierarchy::Check(const Wait& wait) {
  TFDIST_RETURN_IF_ERROR(within_->Check(wait));
  return between_ == nullptr ? Status::Ok() : between_->Check(wait);
}

Status HostHierarchy::end() {
  TFDIST_RETURN_IF_ERROR(within_->end());
  return between_ == nullptr ? Status::Ok() : between_->end();
}

void HostHierarchy::Abort(const Status& why) {
  within_->Abort(why);
  if (between_ != nullptr) between_->Abort(why);
}

void HostHierarchy::Part() { static_cast<void>(peers_->Finalize(/*clean=*/false)); }

Status HostHierarchy::Close(Wait* wait) {
  TFDIST_RETURN_IF_ERROR(within_->Close(wait));
  return between_ == nullptr ? Status::Ok() : between_->Close(wait);
}

}  // namespace tfdist
