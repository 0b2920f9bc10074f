// A GPU for the collectives of one engine. An interface: who knows GPUs implements it and registers
// how it is made. Agrees on nothing with other ranks: the engine has done that.
//
// A collective puts its work into a stream of the device's own and returns. Nothing waits for the
// GPU, but for the caller of one that goes through the host: Adasum, and Hierarchy::kTransport. All
// ranks run the same ones in the same order. For one thread at a time, but for Mark.
#ifndef TFDIST_CORE_ENGINE_DEVICE_H_
#define TFDIST_CORE_ENGINE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/place/topology.h"
#include "core/value/call.h"
#include "core/value/engine_config.h"
#include "core/value/status.h"
#include "core/value/tensor_view.h"
#include "core/wire/communicator.h"
#include "core/wire/wait.h"

namespace tfdist {

class Device {
 public:
  using Done = std::function<void(const Status& status)>;

  virtual ~Device() = default;

  // Its number by the GPU's driver; known after Prepare, else negative.
  virtual int number() const = 0;

  // Makes ready what this rank needs for `call`: libraries, kernels, memory. Talks to nobody, and
  // comes before the ranks agree, so that a lack on one rank becomes everybody's error.
  virtual Status Prepare(const Call& call) = 0;

  // Connects the GPUs of all ranks, once; all ranks call it. Where `prepared`, which Prepare has
  // said, is an error on any rank, all get it. `transport` outlives it; collectives use it too.
  virtual Status Join(const Status& prepared, Communicator* transport, Wait* wait) = 0;
  virtual bool joined() const = 0;

  // What makes the inputs of a collective: all that `stream`, that of the computation, holds when
  // it is called, or held when it got its mark. Without a stream the inputs are there.
  struct Made {
    void* stream = nullptr;
    void* mark = nullptr;
  };

  // A mark in `stream`, for one collective; Forget follows. Thread safe, once it has joined.
  virtual Status Mark(void* stream, void** mark) = 0;
  virtual void Forget(void* mark) = 0;

  // The collectives of Engine, of call.tensors. A rank that has joined gives tensors without memory
  // and no outputs. `share` multiplies what this rank gives to a weighted average; below 0: none.
  virtual Status Allreduce(const Call& call, double share, const std::vector<TensorView>& outputs,
                           const Made& made, Wait* wait) = 0;
  virtual Status ReduceScatter(const Call& call, const std::vector<TensorView>& outputs,
                               const Made& made, Wait* wait) = 0;
  // outputs[i] may be the memory of tensor i; `root` is its number in the transport.
  virtual Status Broadcast(const Call& call, int root, const std::vector<TensorView>& outputs,
                           const Made& made, Wait* wait) = 0;
  // rows[i * size + r] is what rank r gives of tensor i.
  virtual Status Allgather(const Call& call, const std::vector<int64_t>& rows,
                           const std::vector<TensorView>& outputs, const Made& made,
                           Wait* wait) = 0;
  virtual Status Alltoall(const Call& call, const std::vector<int64_t>& sent,
                          const std::vector<int64_t>& received, const TensorView& output,
                          const Made& made, Wait* wait) = 0;

  // Either means the last collective: what `stream` gets from now on waits for it, on the device;
  // and `done` is called once, by a thread of the device, when it is done or never will be,
  // because a rank is lost or the deadline has passed. `title` is for messages.
  virtual Status Precede(void* stream) = 0;
  virtual void WhenDone(const std::string& title, const Done& done) = 0;

  // Waits until all that WhenDone was told of is told in turn.
  virtual void Finish() = 0;

  // Ends the connection, together with all ranks or, by Abort, alone and at once.
  virtual Status Close(Wait* wait) = 0;
  virtual void Abort() = 0;
};

struct DeviceSpec {
  EngineConfig config;
  Topology topology;
  int channel = 0;  // of two numbers for Communicator::Subset, the first
  int number = 0;   // by the GPU's driver; negative: the GPU for this local rank
  // Ok while no rank is known to be lost; may be called from another thread.
  std::function<Status()> check_ranks;
};

using DeviceFactory = Status (*)(const DeviceSpec& spec, std::unique_ptr<Device>* device);

// Returns true, so that a namespace-scope variable can hold the call.
bool RegisterDeviceFactory(DeviceFactory factory);

// kUnimplemented when this build knows no GPU. Talks to no GPU yet: Prepare does.
Status MakeDevice(const DeviceSpec& spec, std::unique_ptr<Device>* device);

}  // namespace tfdist

#endif  // TFDIST_CORE_ENGINE_DEVICE_H_
