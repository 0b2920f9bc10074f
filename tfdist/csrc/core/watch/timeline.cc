#include "core/watch/timeline.h"

#include <cstdio>

#include "core/watch/steady_clock.h"

namespace tfdist {
namespace {

// A record has some 600 bytes. What comes in a period must fit: 20,000 records a second do.
constexpr uint64_t kSlots = 4096;
constexpr int64_t kPeriodNs = 200'000'000;

}  // namespace

Timeline::Timeline() = default;

Timeline::~Timeline() { Stop(); }

Status Timeline::Open(const std::string& path) {
  std::lock_guard<std::mutex> controlling(controlling_);
  if (is_open_) {
    return Status(StatusCode::kInvalidArgument,
                  "a timeline is already being recorded, and there can be only one at a time. "
                  "Call stop_timeline() first.");
  }
  TFDIST_RETURN_IF_ERROR(file_.Create(path));
  is_open_ = true;
  return Status::Ok();
}

void Timeline::Start(const TraceSource& source) {
  std::lock_guard<std::mutex> controlling(controlling_);
  if (!is_open_) return;
  if (slots_ == nullptr) {
    slots_ = std::make_unique<Slot[]>(kSlots);
    for (uint64_t i = 0; i < kSlots; ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
  }
  TraceRecord stale;  // of a call that ended after the last Stop
  while (Take(&stale)) continue;
  lost_ = 0;
  source_ = source;
  offset_ns_ = source.clock.to_unix_ns;
  named_.clear();
  std::string text;
  AppendSource(source_, &text);
  Write(text);
  stop_ = false;
  remarks_.clear();
  recording_.store(true, std::memory_order_release);
  writer_ = std::thread([this] { Run(); });
}

void Timeline::Stop() {
  std::lock_guard<std::mutex> controlling(controlling_);
  recording_ = false;
  if (writer_.joinable()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    stopping_.NotifyAll();
    writer_.join();
  }
  file_.Close();
  is_open_ = false;
}

void Timeline::Add(const TraceRecord& record) {
  if (!recording_.load(std::memory_order_acquire)) return;
  uint64_t place = head_.load(std::memory_order_relaxed);
  while (true) {
    Slot& slot = slots_[place % kSlots];
    const uint64_t turn = slot.turn.load(std::memory_order_acquire);
    if (turn < place) {  // not written yet, a round ago
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (turn > place) {
      place = head_.load(std::memory_order_relaxed);
    } else if (head_.compare_exchange_weak(place, place + 1, std::memory_order_relaxed)) {
      slot.record = record;
      slot.turn.store(place + 1, std::memory_order_release);
      return;
    }
  }
}

void Timeline::AddDevice(TraceRecord started, bool ok, int64_t waited_ns) {
  if (started.begin_ns == 0) return;
  started.kind = TraceRecord::Kind::kDevice;
  started.begin_ns = started.met_ns;
  started.end_ns = SteadyNs();
  started.failed = !ok;
  started.waited_ns = waited_ns < 0 ? started.end_ns - started.begin_ns : waited_ns;
  Add(started);
}

bool Timeline::Take(TraceRecord* record) {
  Slot& slot = slots_[tail_ % kSlots];
  if (slot.turn.load(std::memory_order_acquire) != tail_ + 1) return false;
  *record = slot.record;
  slot.turn.store(tail_ + kSlots, std::memory_order_release);
  ++tail_;
  return true;
}

void Timeline::Renumber(int rank, int size) {
  std::lock_guard<std::mutex> controlling(controlling_);
  if (!recording()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  AppendRenumbering(source_.rank, rank, size, SteadyNs(), &remarks_);
}

void Timeline::Run() {
  bool stop = false;
  while (!stop) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_.WaitFor(&lock, kPeriodNs, [this] { return stop_; });
      stop = stop_;
    }
    Flush();
  }
}

void Timeline::Flush() {
  std::string text;
  TraceRecord record;
  while (Take(&record)) {
    if (named_.insert(record.process_set).second) {
      AppendThreads(source_.rank, record.process_set, &text);
    }
    AppendRecord(source_, record, &text);
  }
  const int64_t lost = lost_.exchange(0);
  if (lost > 0) AppendLoss(source_.rank, lost, SteadyNs(), &text);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!remarks_.empty()) text += (text.empty() ? "" : ",\n") + remarks_;
    remarks_.clear();
  }
  if (!text.empty()) Write(text);
}

// An error ends the recording, not the job.
void Timeline::Write(const std::string& text) {
  const Status status = file_.Append(text);
  if (status.ok()) return;
  if (recording_.exchange(false)) {
    std::fprintf(stderr, "tfdist: rank %d stopped recording: %s\n", source_.rank,
                 status.message().c_str());
  }
}

}  // namespace tfdist
