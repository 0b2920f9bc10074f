// The C functions of collectives, on the transport "self", and the memory of their results.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/c_api.h"
#include "core/engine/collective_api.h"
#include "core/engine/pending_call.h"
#include "core/engine/world.h"
#include "engine_settings.h"
#include "expect.h"
#include "gpu_machine.h"

using tfdist::DType;
using tfdist::PendingCall;
using tfdist::ResultMemory;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// An engine of one rank, for as long as it is there.
class SingleRank {
 public:
  SingleRank() {
    const std::string settings = EngineSettings(60, 600, 1 << 20, 1 << 20);
    EXPECT_EQ(tfdist_init("self", nullptr, 0, nullptr, settings.c_str(), nullptr, 0), 0);
  }
  // The thread of a call that has ended may hold the engine a moment longer; what the engine works
  // with, such as a GPU, must outlive it.
  ~SingleRank() {
    const std::weak_ptr<tfdist::Engine> engine = tfdist::World::Get();
    EXPECT_EQ(tfdist_shutdown(1, nullptr, 0), 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!engine.expired() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT(engine.expired());
  }
};

struct Outcome {
  int code = -1;
  int64_t number = 0;
  std::string message;
};

// Calls a function that starts a collective.
Outcome Started(const std::function<int(int64_t* number, char* message, int size)>& start) {
  char message[1024] = "";
  Outcome outcome;
  outcome.code = start(&outcome.number, message, sizeof(message));
  outcome.message = message;
  return outcome;
}

// Waits for it, and forgets it unless its results are still wanted.
Outcome Ended(int64_t number, bool forgets = true) {
  char message[1024] = "";
  int ended = 0;
  Outcome outcome;
  outcome.code = tfdist_wait(number, 60, &ended, message, sizeof(message));
  EXPECT_EQ(ended, 1);
  outcome.message = message;
  if (forgets) tfdist_forget(number);
  return outcome;
}

// A fake GPU, and a tensor of three values there.
struct OneGpu {
  Machine machine{1};
  Machine::Node& node = *machine.nodes[0];
  tfdist_gpu gpu = {0, node.compute};
  int64_t shape[1] = {3};
  float values[3] = {1, 2, 3};
  tfdist_tensor tensor = {"t", "float32", shape, 1, values, values};

  tfdist_tensors Called(const char* name) { return {name, 0, &tensor, 1, &gpu}; }
};

// The events that were recorded in the stream of the computation so far; those of the engine's own
// come whenever its thread gets there.
std::vector<std::string> Recorded(const Machine::Node& node) {
  const std::string stream =
      " in stream " + std::to_string(reinterpret_cast<intptr_t>(node.compute));
  std::vector<std::string> found;
  for (const std::string& line : node.gpu.log()) {
    const size_t at = line.rfind(stream);
    const bool is_there = at != std::string::npos && at + stream.size() == line.size();
    if (is_there && line.find("record event") == 0) found.push_back(line);
  }
  return found;
}

const int64_t kThree[] = {3};
const tfdist_reduction kSum = {"sum", "none", 1, 1};

}  // namespace

TEST(CollectiveApiReducesInPlaceAndApart) {
  const SingleRank self;
  float values[] = {1, 2, 3}, doubled[3] = {};
  const tfdist_tensor pair[] = {{"here", "float32", kThree, 1, values, values},
                                {"there", "float32", kThree, 1, values, doubled}};
  const tfdist_reduction scaled = {"average", "fp16", 1, 2};
  const tfdist_tensors tensors = {"pair", 0, pair, 2, nullptr};
  const Outcome started = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_allreduce(&tensors, &scaled, number, message, size);
  });
  EXPECT_EQ(started.message, "");
  EXPECT_EQ(Ended(started.number).message, "");
  EXPECT(values[2] == 6 && doubled[0] >= 2);
  int ended = 0;
  EXPECT_EQ(tfdist_wait(started.number, 0, &ended, nullptr, 0), 3);  // it is forgotten
}

TEST(CollectiveApiGivesResultsOnce) {
  const SingleRank self;
  int32_t values[] = {4, 5, 6};
  const tfdist_tensor tensor = {"rows", "int32", kThree, 1, values, nullptr};
  const tfdist_tensors tensors = {"rows", 0, &tensor, 1, nullptr};
  const int64_t splits[] = {3};
  for (const bool gathers : {true, false}) {
    const Outcome started = Started([&](int64_t* number, char* message, int size) {
      return gathers ? tfdist_start_allgather(&tensors, number, message, size)
                     : tfdist_start_alltoall(&tensors, splits, 1, number, message, size);
    });
    EXPECT_EQ(Ended(started.number, /*forgets=*/false).message, "");
    for (const int index : {0, 1}) {
      void* data = nullptr;
      int64_t rows = 0;
      EXPECT_EQ(tfdist_result(started.number, index, &data, &rows, nullptr, 0), 0);
      EXPECT_EQ(rows, index == 0 ? 3 : 1);
      EXPECT(index == 0 ? std::memcmp(data, values, sizeof(values)) == 0
                        : *static_cast<int64_t*>(data) == 3);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
      tfdist_free_result(data);
      EXPECT_EQ(tfdist_result(started.number, index, &data, &rows, nullptr, 0), 0);
      EXPECT(data == nullptr);
    }
    void* data = nullptr;
    int64_t rows = 0;
    EXPECT_EQ(tfdist_result(started.number, 2, &data, &rows, nullptr, 0), 3);
    tfdist_forget(started.number);
  }
}

TEST(CollectiveApiScattersBroadcastsMeetsAndJoins) {
  const SingleRank self;
  double values[] = {1, 2, 3};
  const tfdist_tensor tensor = {"t", "float64", kThree, 1, values, values};
  const tfdist_tensors tensors = {"t", 0, &tensor, 1, nullptr},
                       none = {"all are here", 0, nullptr, 0, nullptr};
  const Outcome scattered = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_reducescatter(&tensors, &kSum, number, message, size);
  });
  EXPECT_EQ(Ended(scattered.number, /*forgets=*/false).message, "");
  void* data = nullptr;
  int64_t rows = 0;
  EXPECT_EQ(tfdist_result(scattered.number, 0, &data, &rows, nullptr, 0), 0);
  EXPECT(rows == 3 && static_cast<double*>(data)[2] == 3);
  tfdist_free_result(data);
  tfdist_forget(scattered.number);
  const Outcome sent = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_broadcast(&tensors, 0, number, message, size);
  });
  EXPECT_EQ(Ended(sent.number).message, "");
  const Outcome wrong = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_broadcast(&tensors, 1, number, message, size);
  });
  EXPECT_CONTAINS(Ended(wrong.number).message, "received root 1");
  const Outcome met = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_barrier(&none, number, message, size);
  });
  EXPECT_EQ(Ended(met.number).code, 0);
  int last = -1;
  EXPECT_EQ(tfdist_join(&last, nullptr, 0), 0);
  EXPECT_EQ(last, 0);
}

TEST(CollectiveApiRefusesWhatHasNoMeaning) {
  float values[] = {1, 2, 3};
  const tfdist_tensor good = {"t", "float32", kThree, 1, values, values};
  const auto refuses = [](const tfdist_tensors& tensors, const tfdist_reduction& reduction,
                          const std::string& text) {
    const Outcome outcome = Started([&](int64_t* number, char* message, int size) {
      return tfdist_start_allreduce(&tensors, &reduction, number, message, size);
    });
    EXPECT(outcome.code != 0);
    EXPECT_CONTAINS(outcome.message, text);
  };
  refuses({"t", 0, &good, 1, nullptr}, kSum, "before tfdist.init()");
  const SingleRank self;
  refuses({nullptr, 0, &good, 1, nullptr}, kSum, "without a name");
  refuses({"t", 0, nullptr, 1, nullptr}, kSum, "received 1 tensors");
  refuses({"t", 0, &good, -1, nullptr}, kSum, "received -1 tensors");
  refuses({"t", 7, &good, 1, nullptr}, kSum, "no process set 7");
  refuses({"t", 0, &good, 1, nullptr}, {"median", "none", 1, 1}, "received reduction 'median'");
  refuses({"t", 0, &good, 1, nullptr}, {"sum", "zip", 1, 1}, "received compression 'zip'");
  const tfdist_tensor no_type = {"t", "complex64", kThree, 1, values, values};
  refuses({"t", 0, &no_type, 1, nullptr}, kSum, "dtype 'complex64'");
  const tfdist_tensor no_shape = {"t", "float32", nullptr, 1, values, values};
  refuses({"t", 0, &no_shape, 1, nullptr}, kSum, "no shape");
  const tfdist_tensors many = {"t", 0, &good, 1, nullptr};
  const Outcome split = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_alltoall(&many, nullptr, 2, number, message, size);
  });
  EXPECT_CONTAINS(split.message, "2 splits");
}

// As an error of the call, which all ranks get.
TEST(CollectiveApiTellsWrongTensorsAtTheEnd) {
  const SingleRank self;
  const tfdist_tensor nowhere = {"t", "float32", kThree, 1, nullptr, nullptr};
  const tfdist_tensors tensors = {"t", 0, &nowhere, 1, nullptr};
  const Outcome started = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_allreduce(&tensors, &kSum, number, message, size);
  });
  EXPECT_EQ(started.code, 0);
  const Outcome ended = Ended(started.number);
  EXPECT_EQ(ended.code, 3);
  EXPECT_CONTAINS(ended.message, "has no memory");
}

// What the stream holds at the start makes the inputs; what comes after it goes on beside the
// collective. Only the first one, which connects the GPU, takes the whole stream.
TEST(CollectiveApiReducesAndBroadcastsOnAGpu) {
  OneGpu one;
  {
    const SingleRank self;
    for (const bool first : {true, false, false}) {
      for (const bool reduces : {true, false}) {
        one.values[2] = 0;
        const tfdist_reduction doubled = {"average", "none", 1, 2};
        const tfdist_tensors tensors = one.Called("t");
        one.node.gpu.Enqueue(one.node.compute, [&] {
          one.values[2] = 3;
          return true;
        });
        std::atomic<bool> goes{first && reduces};
        const Outcome started = Started([&](int64_t* number, char* message, int size) {
          return reduces ? tfdist_start_allreduce(&tensors, &doubled, number, message, size)
                         : tfdist_start_broadcast(&tensors, 0, number, message, size);
        });
        EXPECT_EQ(started.message, "");
        one.node.gpu.Enqueue(one.node.compute, [&] { return goes.load(); });
        EXPECT_EQ(Ended(started.number).message, "");
        EXPECT_EQ(one.values[2], reduces ? 6.0f : 3.0f);
        goes = true;
        EXPECT(one.node.gpu.Synchronize());
      }
    }
  }
  EXPECT_EQ(one.machine.world.open(), 0);
  EXPECT_EQ(one.node.gpu.allocated_bytes(), 0);
}

// A collective that is not run gives its mark back: the next one has the same.
TEST(CollectiveApiOnAGpuForgetsTheMarkOfWhatIsRefused) {
  OneGpu one;
  const SingleRank self;
  const auto start = [&](const char* name, const char* reduction) {
    const tfdist_tensors tensors = one.Called(name);
    const tfdist_reduction how = {reduction, "none", 1, 1};
    return Started([&](int64_t* number, char* message, int size) {
      return tfdist_start_allreduce(&tensors, &how, number, message, size);
    });
  };
  EXPECT_EQ(Ended(start("first", "sum").number).message, "");
  // Adasum goes through the host, so its caller waits for the computation, and all others for it.
  std::atomic<bool> goes{false};
  one.node.gpu.Enqueue(one.node.compute, [&] { return goes.load(); });
  const Outcome slow = start("slow", "adasum"), waiting = start("waiting", "sum");
  const size_t before = Recorded(one.node).size();
  for (int i = 0; i < 3; ++i) {
    EXPECT_CONTAINS(start("waiting", "sum").message, "currently being processed");
  }
  const std::vector<std::string> marks = Recorded(one.node);
  EXPECT_EQ(marks.size(), before + 3);
  EXPECT_EQ(marks[before], marks[before + 1]);
  EXPECT_EQ(marks[before], marks[before + 2]);
  goes = true;
  EXPECT_EQ(Ended(slow.number).message, "");
  EXPECT_EQ(Ended(waiting.number).message, "");
}

TEST(CollectiveApiOnAGpuSaysWhatIsMissing) {
  OneGpu one;
  const SingleRank self;
  const tfdist_tensors tensors = one.Called("t");
  const auto gathers = [&](int64_t* number, char* message, int size) {
    return tfdist_start_allgather(&tensors, number, message, size);
  };
  const auto exchanges = [&](int64_t* number, char* message, int size) {
    return tfdist_start_alltoall(&tensors, nullptr, 0, number, message, size);
  };
  EXPECT_CONTAINS(Started(gathers).message, "received tensors on a GPU");
  EXPECT_CONTAINS(Started(exchanges).message, "received tensors on a GPU");
  one.node.lacks = "NCCL was not found";
  const Outcome started = Started([&](int64_t* number, char* message, int size) {
    return tfdist_start_allreduce(&tensors, &kSum, number, message, size);
  });
  EXPECT_EQ(started.code, 0);
  EXPECT_CONTAINS(Ended(started.number).message, "NCCL was not found");
}

TEST(PendingCallEndsOnceAndIsForgotten) {
  int64_t number = 0, next = 0;
  const auto call = PendingCall::New(&number);
  PendingCall::New(&next);
  EXPECT(number > 0 && next == number + 1);
  EXPECT(!PendingCall::Find(number)->WaitFor(0));
  call->End(Status(StatusCode::kUnavailable, "gone"));
  EXPECT(PendingCall::Find(number)->WaitFor(0));
  EXPECT_EQ(call->status().message(), "gone");
  PendingCall::Forget(number);
  PendingCall::Forget(number);
  PendingCall::Forget(next);
  EXPECT(PendingCall::Find(number) == nullptr);
}

TEST(ResultMemoryOfNoElementIsNoMemory) {
  ResultMemory memory;
  EXPECT(ResultMemory::Make(DType::kFloat32, {0, 3}, &memory).ok());
  EXPECT(memory.tensor().data == nullptr && memory.rows() == 0 && memory.Release() == nullptr);
}
