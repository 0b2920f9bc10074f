#include "fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "core/value/reduction.h"
#include "expect.h"

using tfdist::CudaStream;
using tfdist::DType;
using tfdist::NcclHandle;
using tfdist::NcclOperator;
using tfdist::NcclResult;
using tfdist::NcclType;
using tfdist::NcclUniqueId;
using tfdist::Reduction;

namespace {

constexpr std::chrono::seconds kPatience(10);

DType DTypeOf(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
      return DType::kInt8;
    case NcclType::kUint8:
      return DType::kUint8;
    case NcclType::kInt32:
      return DType::kInt32;
    case NcclType::kInt64:
      return DType::kInt64;
    case NcclType::kFloat16:
      return DType::kFloat16;
    case NcclType::kBfloat16:
      return DType::kBfloat16;
    case NcclType::kFloat64:
      return DType::kFloat64;
    default:
      return DType::kFloat32;
  }
}

Reduction ReductionOf(NcclOperator op) {
  switch (op) {
    case NcclOperator::kProduct:
      return Reduction::kProduct;
    case NcclOperator::kMax:
      return Reduction::kMax;
    case NcclOperator::kMin:
      return Reduction::kMin;
    default:
      return Reduction::kSum;
  }
}

}  // namespace

struct FakeNcclWorld::Call {
  enum Kind { kAllReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kReceive };
  Kind kind;
  const void* source;
  void* target;
  size_t count;
  NcclType type;
  NcclOperator op;
  int peer;  // or the root
  std::shared_ptr<bool> ran;
};

// One rank of a communicator; its address is the handle.
struct FakeNcclWorld::Member {
  Group* group;
  int rank;
  bool aborted = false;                   // what it waits for ends without a result
  std::deque<Call> calls;                 // collectives that have not run
  std::map<int, std::deque<Call>> sends;  // by peer
  std::map<int, std::deque<Call>> receives;

  bool Idle() const {
    const auto empty = [](const auto& entry) { return entry.second.empty(); };
    return calls.empty() && std::all_of(sends.begin(), sends.end(), empty) &&
           std::all_of(receives.begin(), receives.end(), empty);
  }
};

struct FakeNcclWorld::Group {
  std::vector<std::unique_ptr<Member>> members;  // by rank; null until it has come
  bool broken = false;                           // a member was aborted

  bool Complete() const {
    return std::all_of(members.begin(), members.end(),
                       [](const auto& member) { return member != nullptr; });
  }
};

using Call = FakeNcclWorld::Call;

namespace {

// NCCL wants a rank's part apart from the whole, or in the place that it has there.
bool IsMisplaced(const Call& call, int rank, size_t size) {
  const bool scatters = call.kind == Call::kReduceScatter;
  if (!scatters && call.kind != Call::kAllGather) return false;
  const size_t bytes = call.count * static_cast<size_t>(SizeOf(DTypeOf(call.type)));
  const char* const whole = static_cast<const char*>(scatters ? call.source : call.target);
  const char* const part = static_cast<const char*>(scatters ? call.target : call.source);
  const bool is_apart = part + bytes <= whole || part >= whole + bytes * size;
  return !is_apart && part != whole + bytes * static_cast<size_t>(rank);
}

}  // namespace

FakeNcclWorld::FakeNcclWorld() = default;
FakeNcclWorld::~FakeNcclWorld() = default;

FakeNccl::FakeNccl(FakeNcclWorld* world, const NcclFaults& faults)
    : world_(world), faults_(faults) {}
FakeNccl::~FakeNccl() = default;

std::unique_ptr<FakeNccl> FakeNcclWorld::Rank(const NcclFaults& faults) {
  return std::make_unique<FakeNccl>(this, faults);
}

int FakeNcclWorld::open() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return open_;
}

int FakeNcclWorld::aborted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

// What a collective that is no reduction gives: the root's part, or everybody's.
std::vector<char> FakeNcclWorld::Gathered(const std::vector<Call>& calls, size_t bytes) {
  std::vector<char> result(bytes * calls.size());
  if (calls[0].kind == Call::kBroadcast) {
    std::memcpy(result.data(), calls[calls[0].peer].source, bytes);
    return result;
  }
  for (size_t r = 0; r < calls.size(); ++r) {
    std::memcpy(&result[r * bytes], calls[r].source, bytes);
  }
  return result;
}

// Runs a collective that every rank has called; `calls` are by rank.
void FakeNcclWorld::RunCollective(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t size = calls.size();
  tfdist::ReduceSpec spec{DTypeOf(first.type), ReductionOf(first.op), {}};
  if (first.op == NcclOperator::kAverage) spec.scale.divisor = static_cast<double>(calls.size());
  const size_t bytes = first.count * static_cast<size_t>(SizeOf(spec.dtype));
  const bool scatters = first.kind == Call::kReduceScatter;
  const bool gathers = first.kind == Call::kAllGather;
  std::vector<char> result;
  if (first.kind == Call::kAllReduce || scatters) {
    std::vector<const void*> parts;
    for (const Call& call : calls) parts.push_back(call.source);
    const size_t reduced = first.count * (scatters ? size : 1);
    result.resize(reduced * static_cast<size_t>(SizeOf(spec.dtype)));
    Reduce(spec, parts, static_cast<int64_t>(reduced), result.data());
  } else {
    result = Gathered(calls, bytes);
  }
  for (size_t r = 0; r < size; ++r) {
    std::memcpy(calls[r].target, result.data() + (scatters ? r * bytes : 0),
                gathers ? bytes * size : bytes);
    *calls[r].ran = true;
  }
}

// Delivers the messages to `receiver` that have both ends.
void FakeNcclWorld::Deliver(Member* receiver) {
  for (auto& [from, receives] : receiver->receives) {
    Member* const sender = receiver->group->members[from].get();
    if (sender == nullptr) continue;
    auto& sends = sender->sends[receiver->rank];
    for (; !receives.empty() && !sends.empty(); receives.pop_front(), sends.pop_front()) {
      std::memcpy(receives.front().target, sends.front().source, sends.front().count);
      *receives.front().ran = *sends.front().ran = true;
    }
  }
}

// Runs the collectives that every rank has called, and the messages that have both ends.
void FakeNcclWorld::RunComplete(Group* group) {
  const auto waits = [](const auto& member) { return member != nullptr && !member->calls.empty(); };
  auto& members = group->members;
  while (std::all_of(members.begin(), members.end(), waits)) {
    std::vector<Call> calls;
    for (auto& member : members) {
      calls.push_back(member->calls.front());
      member->calls.pop_front();
    }
    RunCollective(calls);
  }
  for (auto& member : members) {
    if (member != nullptr) Deliver(member.get());
  }
  ran_.notify_all();
}

void FakeNccl::InjectAsyncError(NcclResult result) {
  std::lock_guard<std::mutex> lock(world_->mutex_);
  async_error_ = result;
}

bool FakeNccl::Synchronize() {
  std::unique_lock<std::mutex> lock(world_->mutex_);
  return world_->ran_.wait_for(lock, kPatience, [this] {
    return std::all_of(members_.begin(), members_.end(),
                       [](auto* member) { return member->Idle(); });
  });
}

std::string FakeNccl::ErrorText(NcclResult result, NcclHandle communicator) const {
  const std::string last = communicator == nullptr ? "" : ": connection to 10.0.0.7 closed";
  return "error " + std::to_string(static_cast<int>(result)) + last;
}

NcclResult FakeNccl::GetUniqueId(NcclUniqueId* id) {
  if (faults_.id != NcclResult::kSuccess) return faults_.id;
  std::lock_guard<std::mutex> lock(world_->mutex_);
  const int number = ++world_->ids_;
  std::memcpy(id->bytes, &number, sizeof(number));
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Init(NcclHandle* communicator, int size, const NcclUniqueId& id, int rank) {
  if (faults_.init != NcclResult::kSuccess) return faults_.init;
  int number;
  std::memcpy(&number, id.bytes, sizeof(number));
  std::lock_guard<std::mutex> lock(world_->mutex_);
  auto& group = world_->groups_[number];
  if (group == nullptr) group = std::make_shared<FakeNcclWorld::Group>();
  group->members.resize(static_cast<size_t>(size));
  auto member = std::make_unique<FakeNcclWorld::Member>();
  member->group = group.get();
  member->rank = rank;
  members_.push_back(member.get());
  *communicator = reinterpret_cast<NcclHandle>(member.get());
  if (faults_.hangs) {
    hanging_.push_back(std::move(member));  // the others never see it
  } else {
    group->members[static_cast<size_t>(rank)] = std::move(member);
  }
  ++world_->open_;
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::GetAsyncError(NcclHandle communicator, NcclResult* state) {
  std::lock_guard<std::mutex> lock(world_->mutex_);
  const auto* member = reinterpret_cast<FakeNcclWorld::Member*>(communicator);
  if (async_error_ != NcclResult::kSuccess) {
    *state = async_error_;
  } else if (member->group->broken) {
    *state = NcclResult::kRemoteError;
  } else {
    *state = member->group->Complete() ? NcclResult::kSuccess : NcclResult::kInProgress;
  }
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Abort(NcclHandle communicator) {
  std::lock_guard<std::mutex> lock(world_->mutex_);
  auto* const member = reinterpret_cast<FakeNcclWorld::Member*>(communicator);
  member->aborted = member->group->broken = true;
  ++world_->aborted_;
  Forget(communicator);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::Finalize(NcclHandle) { return NcclResult::kInProgress; }

NcclResult FakeNccl::Destroy(NcclHandle communicator) {
  std::lock_guard<std::mutex> lock(world_->mutex_);
  Forget(communicator);
  return NcclResult::kSuccess;
}

// The member itself stays: others may still look at its group.
void FakeNccl::Forget(NcclHandle communicator) {
  auto* const member = reinterpret_cast<FakeNcclWorld::Member*>(communicator);
  members_.erase(std::remove(members_.begin(), members_.end(), member), members_.end());
  --world_->open_;
}

// With the world's lock held.
void FakeNccl::Post(FakeNcclWorld::Member* member, const Call& call) {
  if (call.kind == Call::kSend) {
    member->sends[call.peer].push_back(call);
  } else if (call.kind == Call::kReceive) {
    member->receives[call.peer].push_back(call);
  } else {
    member->calls.push_back(call);
  }
  if (!member->group->broken) world_->RunComplete(member->group);
}

NcclResult FakeNccl::Enqueue(NcclHandle communicator, Call call, CudaStream stream) {
  auto* const member = reinterpret_cast<FakeNcclWorld::Member*>(communicator);
  EXPECT(!IsMisplaced(call, member->rank, member->group->members.size()));
  call.ran = std::make_shared<bool>(false);
  grouped_.push_back(call);
  if (!in_group_) Launch(member, stream);
  group_member_ = member;
  group_stream_ = stream;
  return NcclResult::kInProgress;
}

// What was called since the group began is one piece of work.
void FakeNccl::Launch(FakeNcclWorld::Member* member, CudaStream stream) {
  const std::vector<Call> calls = std::move(grouped_);
  grouped_.clear();
  const auto posted = std::make_shared<bool>(false);
  const auto work = [this, member, calls, posted] {
    std::lock_guard<std::mutex> lock(world_->mutex_);
    if (member->aborted) return true;
    for (size_t i = 0; !*posted && i < calls.size(); ++i) Post(member, calls[i]);
    *posted = true;
    return std::all_of(calls.begin(), calls.end(), [](const Call& call) { return *call.ran; });
  };
  if (gpu_ == nullptr) {
    work();
  } else {
    gpu_->Enqueue(stream, work);
  }
}

NcclResult FakeNccl::AllReduce(const void* source, void* target, size_t count, NcclType type,
                               NcclOperator op, NcclHandle communicator, CudaStream stream) {
  return Enqueue(communicator, {Call::kAllReduce, source, target, count, type, op, 0, nullptr},
                 stream);
}

NcclResult FakeNccl::Broadcast(const void* source, void* target, size_t count, NcclType type,
                               int root, NcclHandle communicator, CudaStream stream) {
  const NcclOperator none = NcclOperator::kSum;
  return Enqueue(communicator, {Call::kBroadcast, source, target, count, type, none, root, nullptr},
                 stream);
}

NcclResult FakeNccl::ReduceScatter(const void* source, void* target, size_t target_count,
                                   NcclType type, NcclOperator op, NcclHandle communicator,
                                   CudaStream stream) {
  return Enqueue(communicator,
                 {Call::kReduceScatter, source, target, target_count, type, op, 0, nullptr},
                 stream);
}

NcclResult FakeNccl::AllGather(const void* source, void* target, size_t source_count, NcclType type,
                               NcclHandle communicator, CudaStream stream) {
  const NcclOperator none = NcclOperator::kSum;
  return Enqueue(communicator,
                 {Call::kAllGather, source, target, source_count, type, none, 0, nullptr}, stream);
}

NcclResult FakeNccl::Send(const void* source, size_t count, NcclType type, int peer,
                          NcclHandle communicator, CudaStream stream) {
  const NcclOperator none = NcclOperator::kSum;
  return Enqueue(communicator, {Call::kSend, source, nullptr, count, type, none, peer, nullptr},
                 stream);
}

NcclResult FakeNccl::Receive(void* target, size_t count, NcclType type, int peer,
                             NcclHandle communicator, CudaStream stream) {
  const NcclOperator none = NcclOperator::kSum;
  return Enqueue(communicator, {Call::kReceive, nullptr, target, count, type, none, peer, nullptr},
                 stream);
}

NcclResult FakeNccl::GroupStart() {
  in_group_ = true;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GroupEnd() {
  in_group_ = false;
  if (!grouped_.empty()) Launch(group_member_, group_stream_);
  return NcclResult::kInProgress;
}
