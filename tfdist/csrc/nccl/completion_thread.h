// Tells when work of a GPU is done: one thread looks at events and calls back, in the order in
// which they were added. What follows a result is started from there, since nothing else may wait.
//
// The first event that does not happen, because a rank is lost or the deadline has passed, fails
// all that wait and all that come later. Thread safe.
#ifndef TFDIST_NCCL_COMPLETION_THREAD_H_
#define TFDIST_NCCL_COMPLETION_THREAD_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/place/topology.h"
#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "cuda/cuda_driver.h"

namespace tfdist {

class CompletionThread {
 public:
  using Done = std::function<void(const Status& status)>;

  struct Watch {
    std::function<Status()> check;  // Ok while the ranks are well
    // Ok if nobody has given up: then work may have come to its end without a result.
    std::function<Status()> verdict;
    std::function<void(const Status& why)> give_up;  // an event will not happen: once
  };

  // The thread calls `watch.check` now and then while it waits. All that is given outlives it.
  CompletionThread(CudaDriver* driver, int device, const EngineConfig& config,
                   const Topology& topology, Watch watch);

  // Fails what still waits.
  ~CompletionThread();
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  // Waits until all that was added is told, each within its deadline.
  void Finish();

  // Calls `done` once from the thread. `title` is for messages: "allreduce 'grads'".
  void Add(CudaEvent event, const std::string& title, const Done& done);

 private:
  struct Entry {
    CudaEvent event;
    std::string title;
    Done done;
  };

  void Run();
  Status WaitFor(const Entry& entry);
  void Empty(const Entry& entry);

  CudaDriver* const driver_;
  const int device_;
  const EngineConfig& config_;
  const Topology& topology_;
  const Watch watch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  bool tells_ = false;  // what is not in `entries_` any more
  bool ends_ = false;
  Status end_;          // only the thread looks at it
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tfdist

#endif  // TFDIST_NCCL_COMPLETION_THREAD_H_
