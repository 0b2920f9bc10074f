#include "fake_cuda_driver.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/value/cast.h"
#include "cuda/pack_kernels.h"
#include "expect.h"

using tfdist::CudaEvent;
using tfdist::CudaFunction;
using tfdist::CudaStream;
using tfdist::DType;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// Handles are numbers.
template <typename Handle>
std::string NumberOf(Handle handle) {
  return std::to_string(reinterpret_cast<intptr_t>(handle));
}

DType TypeNamed(const std::string& name) {
  for (int i = 0;; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (name == NameOf(dtype)) return dtype;
  }
}

template <typename T>
void MoveAsInt32(bool packs, char* memory, char* buffer, int64_t count) {
  T* const narrow = reinterpret_cast<T*>(memory);
  int32_t* const wide = reinterpret_cast<int32_t*>(buffer);
  for (int64_t i = 0; i < count; ++i) {
    if (packs) {
      wide[i] = narrow[i];
    } else {
      narrow[i] = static_cast<T>(wide[i]);
    }
  }
}

void MoveNarrow(DType dtype, bool packs, char* memory, char* buffer, int64_t count) {
  if (dtype == DType::kBool) return MoveAsInt32<bool>(packs, memory, buffer, count);
  if (dtype == DType::kInt16) return MoveAsInt32<int16_t>(packs, memory, buffer, count);
  MoveAsInt32<uint16_t>(packs, memory, buffer, count);
}

// What a kernel does with one tensor; `name` is "float32_float16" or "4_bytes".
void MoveTensor(const std::string& name, bool packs, char* memory, char* buffer, int64_t count,
                double factor) {
  const size_t middle = name.find('_');
  if (name.substr(middle) == "_bytes") {
    const size_t bytes = static_cast<size_t>(count) * std::stoul(name);
    std::memcpy(packs ? buffer : memory, packs ? memory : buffer, bytes);
    return;
  }
  const DType tensor = TypeNamed(name.substr(0, middle));
  const DType wire = TypeNamed(name.substr(middle + 1));
  if (wire == DType::kInt32) {
    MoveNarrow(tensor, packs, memory, buffer, count);
  } else if (packs) {
    CastScaled(tensor, memory, count, factor, wire, buffer);
  } else {
    CastScaled(wire, buffer, count, factor, tensor, memory);
  }
}

// What the kernel of these types takes as its factor, by its source.
std::string FactorType(const std::string& types) {
  const std::string source = tfdist::PackKernels();
  const size_t begin = source.find("KERNELS(" + types + ",");
  const size_t end = source.find(')', begin);
  const size_t comma = source.rfind(", ", end);
  return source.substr(comma + 2, end - comma - 2);
}

int64_t WireBytes(const std::string& name) {
  const size_t middle = name.find('_');
  if (name.substr(middle) == "_bytes") return std::stol(name);
  return SizeOf(TypeNamed(name.substr(middle + 1)));
}

// What a launch of pack or unpack does, later.
std::function<void()> PackWork(const std::string& name, void** arguments) {
  const bool packs = name.compare(0, 5, "pack_") == 0;
  const std::string types = name.substr(name.find('_') + 1);
  const auto table = *static_cast<const tfdist::PackTable*>(arguments[0]);
  const int count = *static_cast<const int*>(arguments[1]);
  char* const buffer = *static_cast<char**>(arguments[2]);
  const int64_t bytes = WireBytes(types);
  const int64_t size = *static_cast<const int64_t*>(arguments[3]);
  const std::string type = FactorType(types);
  double factor = 1;
  if (type == "double") factor = *static_cast<const double*>(arguments[4]);
  if (type == "float") factor = double{*static_cast<const float*>(arguments[4])};
  return [=] {
    if (packs) std::memset(buffer, 0, static_cast<size_t>(size * bytes));
    for (int t = 0; t < count; ++t) {
      MoveTensor(types, packs, static_cast<char*>(table.memory[t]),
                 buffer + table.starts[t] * bytes, table.counts[t], factor);
    }
  };
}

}  // namespace

FakeCudaDriver::FakeCudaDriver(Policy policy)
    : policy_(policy), streams_(1), events_(1), thread_([this] { Run(); }) {}

FakeCudaDriver::~FakeCudaDriver() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// Tries the head of each stream in turn until one is done, again and again.
void FakeCudaDriver::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_) {
    bool went_on = false;
    const size_t count = streams_.size();
    for (size_t i = 0; i < count && !went_on && !ends_; ++i) {
      const size_t stream = policy_ == kFirstStream ? i : count - 1 - i;
      if (streams_[stream].empty()) continue;
      const Work work = streams_[stream].front();
      lock.unlock();
      const bool done = work();
      lock.lock();
      if (!done) continue;
      streams_[stream].pop_front();
      went_on = true;
      changed_.notify_all();
    }
    // What waits for another GPU is looked at again soon.
    if (!went_on && !ends_) changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

std::vector<std::string> FakeCudaDriver::log() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

int64_t FakeCudaDriver::allocated_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [memory, size] : memory_) bytes += size;
  return bytes;
}

void FakeCudaDriver::EnqueueLocked(CudaStream stream, const Work& work) {
  streams_.at(reinterpret_cast<size_t>(stream)).push_back(work);
  changed_.notify_all();
}

void FakeCudaDriver::Enqueue(CudaStream stream, const Work& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  EnqueueLocked(stream, work);
}

bool FakeCudaDriver::Synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [this] {
    for (const auto& stream : streams_) {
      if (!stream.empty()) return false;
    }
    return true;
  });
}

Status FakeCudaDriver::Note(const std::string& line) {
  std::lock_guard<std::mutex> lock(mutex_);
  log_.push_back(line);
  return Status::Ok();
}

Status FakeCudaDriver::CountDevices(int* count) {
  *count = 1;
  return Status::Ok();
}

Status FakeCudaDriver::Describe(int, tfdist::DeviceFacts* facts) {
  *facts = {"a fake", "sm_80", 4, 1 << 30};
  return Status::Ok();
}

Status FakeCudaDriver::Use(int device) { return Note("use GPU " + std::to_string(device)); }

Status FakeCudaDriver::NewStream(bool urgent, CudaStream* stream) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    *stream = reinterpret_cast<CudaStream>(streams_.size());
    streams_.emplace_back();
  }
  return Note((urgent ? "urgent stream " : "stream ") + NumberOf(*stream));
}

Status FakeCudaDriver::DeleteStream(CudaStream stream) {
  return Note("delete stream " + NumberOf(stream));
}

Status FakeCudaDriver::NewEvent(CudaEvent* event) {
  std::lock_guard<std::mutex> lock(mutex_);
  *event = reinterpret_cast<CudaEvent>(events_.size());
  events_.emplace_back();
  return Status::Ok();
}

Status FakeCudaDriver::DeleteEvent(CudaEvent event) {
  return Note("delete event " + NumberOf(event));
}

Status FakeCudaDriver::Record(CudaEvent event, CudaStream stream) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = reinterpret_cast<size_t>(event);
    const int time = ++events_.at(index).recorded;
    EnqueueLocked(stream, [this, index, time] {
      std::lock_guard<std::mutex> inner(mutex_);
      events_[index].happened = time;
      return true;
    });
  }
  return Note("record event " + NumberOf(event) + " in stream " + NumberOf(stream));
}

// For the event as it is recorded now, like the driver.
Status FakeCudaDriver::WaitFor(CudaStream stream, CudaEvent event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = reinterpret_cast<size_t>(event);
    const int time = events_.at(index).recorded;
    EnqueueLocked(stream, [this, index, time] {
      std::lock_guard<std::mutex> inner(mutex_);
      return events_[index].happened >= time;
    });
  }
  return Note("stream " + NumberOf(stream) + " waits for event " + NumberOf(event));
}

Status FakeCudaDriver::HasHappened(CudaEvent event, bool* happened) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Event& asked = events_.at(reinterpret_cast<size_t>(event));
  *happened = asked.happened == asked.recorded;
  return Status::Ok();
}

Status FakeCudaDriver::Load(const std::string& image, tfdist::CudaModule* module) {
  *module = reinterpret_cast<tfdist::CudaModule>(intptr_t{1});
  return Note("load " + image);
}

Status FakeCudaDriver::Find(tfdist::CudaModule, const std::string& name, CudaFunction* function) {
  const std::string types = "KERNELS(" + name.substr(name.find('_') + 1) + ",";
  if (tfdist::PackKernels().find(types) == std::string::npos) {
    return Status(StatusCode::kInternal, "no kernel " + name);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  functions_.push_back(std::make_unique<std::string>(name));
  *function = reinterpret_cast<CudaFunction>(functions_.back().get());
  return Status::Ok();
}

// Arguments are copied now, as the driver does.
Status FakeCudaDriver::Launch(CudaFunction function, int blocks, int threads, void** arguments,
                              CudaStream stream) {
  const std::string name = *reinterpret_cast<const std::string*>(function);
  Enqueue(stream, [work = PackWork(name, arguments)] {
    work();
    return true;
  });
  return Note("launch " + name + " on stream " + NumberOf(stream) + ", " + std::to_string(blocks) +
              " blocks of " + std::to_string(threads));
}

Status FakeCudaDriver::Allocate(int64_t bytes, void** memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (exhausted_) return Status(StatusCode::kResourceExhausted, "no memory left on the fake");
  *memory = std::malloc(static_cast<size_t>(bytes));
  memory_[*memory] = bytes;
  return *memory != nullptr ? Status::Ok() : Status(StatusCode::kResourceExhausted, "no memory");
}

void FakeCudaDriver::Exhaust() {
  std::lock_guard<std::mutex> lock(mutex_);
  exhausted_ = true;
}

Status FakeCudaDriver::Free(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  memory_.erase(memory);
  std::free(memory);
  return Status::Ok();
}

Status FakeCudaDriver::AllocateHost(int64_t bytes, void** memory) {
  const Status status = Allocate(bytes, memory);
  std::lock_guard<std::mutex> lock(mutex_);
  of_host_.insert(*memory);
  return status;
}

Status FakeCudaDriver::FreeHost(void* memory) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_EQ(of_host_.erase(memory), size_t{1});
  }
  return Free(memory);
}

Status FakeCudaDriver::Clear(void* memory, int64_t bytes, CudaStream stream) {
  Enqueue(stream, [=] {
    std::memset(memory, 0, static_cast<size_t>(bytes));
    return true;
  });
  return Note("clear on stream " + NumberOf(stream));
}

Status FakeCudaDriver::Copy(void* target, const void* source, int64_t bytes, CudaStream stream) {
  Enqueue(stream, [=] {
    std::memcpy(target, source, static_cast<size_t>(bytes));
    return true;
  });
  return Note("copy on stream " + NumberOf(stream));
}
