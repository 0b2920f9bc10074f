#include "core/watch/call_trace.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/watch/steady_clock.h"
#include "core/watch/timeline.h"

namespace tfdist {
namespace {

void CopyName(const std::string& name, char (&target)[TraceRecord::kNameBytes]) {
  const size_t bytes = std::min(name.size(), sizeof(target) - 1);
  std::memcpy(target, name.data(), bytes);
  target[bytes] = '\0';
}

void AddTensor(const Call& call, int index, TraceRecord* record) {
  const TensorView& tensor = (*call.tensors)[index];
  const DType wire = WireType(tensor.dtype, call.compression);
  if (record->tensors == 0) record->dtype = wire;
  record->mixed = record->mixed || wire != record->dtype;
  record->bytes += tensor.count() * SizeOf(wire);
  const size_t place = static_cast<size_t>(index);
  if (record->tensors < TraceRecord::kNames && place < call.tensor_names->size()) {
    CopyName((*call.tensor_names)[place], record->tensor_names[record->tensors]);
  }
  ++record->tensors;
}

}  // namespace

const char* NameOf(Phase phase) {
  static constexpr const char* kNames[kPhases] = {"wait", "pack", "reduce", "unpack"};
  return kNames[static_cast<int>(phase)];
}

void CallTrace::Begin() { records_ = timeline_->recording(); }

void CallTrace::End() {
  Close();
  records_ = false;
}

CallTrace* CallTrace::Meet(const Call& call, int64_t number) {
  Close();
  if (!records_) return nullptr;
  is_open_ = true;
  longest_wait_ns_ = 0;
  call_ = TraceRecord();
  call_.operation = call.operation;
  call_.process_set = process_set_;
  call_.call = number;
  CopyName(call.name, call_.name);
  const int tensors = call.tensors == nullptr ? 0 : static_cast<int>(call.tensors->size());
  for (int i = 0; i < tensors; ++i) AddTensor(call, i, &call_);
  Enter(Phase::kWait);
  call_.begin_ns = since_ns_;
  return this;
}

void CallTrace::Met(bool agreed) {
  if (!is_open_) return;
  Enter(Phase::kNone);
  if (agreed) {
    call_.met_ns = since_ns_;
  } else {
    call_.failed = true;
  }
}

void CallTrace::Close() {
  if (!is_open_) return;
  EndBucket();
  Enter(Phase::kNone);
  call_.end_ns = since_ns_;
  timeline_->Add(call_);
  is_open_ = false;
}

void CallTrace::BeginBucket(const Call& call, const Bucket& bucket, int number) {
  longest_wait_ns_ = 0;
  in_bucket_ = true;
  bucket_ = TraceRecord();
  bucket_.kind = TraceRecord::Kind::kBucket;
  bucket_.operation = call.operation;
  bucket_.process_set = process_set_;
  bucket_.call = call_.call;
  bucket_.bucket = number;
  for (int index : bucket) AddTensor(call, index, &bucket_);
  bucket_.begin_ns = SteadyNs();
}

void CallTrace::EndBucket() {
  if (!in_bucket_) return;
  Enter(Phase::kNone);
  bucket_.end_ns = since_ns_;
  timeline_->Add(bucket_);
  in_bucket_ = false;
}

Phase CallTrace::Enter(Phase phase) {
  Charge(SteadyNs());
  const Phase paused = phase_;
  phase_ = phase;
  if (phase != Phase::kNone) {
    PhaseTime& time = Open().phases[static_cast<int>(phase)];
    if (time.intervals == 0) time.first_ns = since_ns_;
    ++time.intervals;
  }
  return paused;
}

void CallTrace::Charge(int64_t now) {
  if (phase_ != Phase::kNone) {
    Open().phases[static_cast<int>(phase_)].total_ns += now - since_ns_;
  }
  since_ns_ = now;
}

void CallTrace::Awaited(int rank) {
  const int64_t waited = SteadyNs() - since_ns_;
  if (waited < longest_wait_ns_) return;
  longest_wait_ns_ = waited;
  Open().last_rank = rank;
}

}  // namespace tfdist
