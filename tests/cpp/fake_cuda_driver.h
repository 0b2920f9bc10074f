// A GPU whose memory is the host's and whose kernels are those of pack_kernels.h, done on the
// processor by their definition. Every call is written down, and done later by a thread of the GPU:
// streams are in order, and among those that can go on a policy chooses, so that an event that is
// missing shows as a wrong result.
#ifndef TESTS_CPP_FAKE_CUDA_DRIVER_H_
#define TESTS_CPP_FAKE_CUDA_DRIVER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cuda_driver.h"

class FakeCudaDriver : public tfdist::CudaDriver {
 public:
  // Of the streams that can go on, the one that was made first, or last, does.
  enum Policy { kFirstStream, kLastStream };

  explicit FakeCudaDriver(Policy policy = kFirstStream);
  ~FakeCudaDriver() override;

  // "launch pack_float32_float16 on stream 1", "record event 2 in stream 1", "stream 2 waits for
  // event 2": streams and events are numbered as they were made. Stream 0 is there from the start.
  std::vector<std::string> log() const;

  // Puts work into a stream, as a launch does. It is called again until it returns true.
  void Enqueue(tfdist::CudaStream stream, const std::function<bool()>& work);

  // Waits until all streams are empty; false after ten seconds.
  bool Synchronize();

  // From now on there is no more memory than is allocated.
  void Exhaust();

  // Bytes that were allocated and not freed.
  int64_t allocated_bytes() const;

  int version() const override { return 12090; }
  tfdist::Status CountDevices(int* count) override;
  tfdist::Status Describe(int device, tfdist::DeviceFacts* facts) override;
  tfdist::Status Use(int device) override;
  tfdist::Status NewStream(bool urgent, tfdist::CudaStream* stream) override;
  tfdist::Status DeleteStream(tfdist::CudaStream stream) override;
  tfdist::Status NewEvent(tfdist::CudaEvent* event) override;
  tfdist::Status DeleteEvent(tfdist::CudaEvent event) override;
  tfdist::Status Record(tfdist::CudaEvent event, tfdist::CudaStream stream) override;
  tfdist::Status WaitFor(tfdist::CudaStream stream, tfdist::CudaEvent event) override;
  tfdist::Status HasHappened(tfdist::CudaEvent event, bool* happened) override;
  tfdist::Status Load(const std::string& image, tfdist::CudaModule* module) override;
  tfdist::Status Find(tfdist::CudaModule module, const std::string& name,
                      tfdist::CudaFunction* function) override;
  tfdist::Status Launch(tfdist::CudaFunction function, int blocks, int threads, void** arguments,
                        tfdist::CudaStream stream) override;
  tfdist::Status Allocate(int64_t bytes, void** memory) override;
  tfdist::Status Free(void* memory) override;
  tfdist::Status AllocateHost(int64_t bytes, void** memory) override;
  tfdist::Status FreeHost(void* memory) override;
  tfdist::Status Clear(void* memory, int64_t bytes, tfdist::CudaStream stream) override;
  tfdist::Status Copy(void* target, const void* source, int64_t bytes,
                      tfdist::CudaStream stream) override;

 private:
  using Work = std::function<bool()>;

  struct Event {
    int recorded = 0;  // how often
    int happened = 0;  // the last of these that has happened
  };

  tfdist::Status Note(const std::string& line);
  void EnqueueLocked(tfdist::CudaStream stream, const Work& work);
  void Run();

  const Policy policy_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> log_;
  std::vector<std::deque<Work>> streams_;
  std::vector<Event> events_;
  std::set<void*> of_host_;                              // which of these are the host's
  std::map<void*, int64_t> memory_;                      // bytes by address
  std::vector<std::unique_ptr<std::string>> functions_;  // their names
  bool exhausted_ = false;
  bool ends_ = false;
  std::thread thread_;  // last: it uses all of the above
};

#endif  // TESTS_CPP_FAKE_CUDA_DRIVER_H_
