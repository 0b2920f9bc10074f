#include "core/engine/c_api.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/c_status.h"
#include "core/engine/device_report.h"
#include "core/engine/engine.h"
#include "core/engine/world.h"
#include "core/value/bucket_plan.h"
#include "core/value/calling_thread.h"
#include "core/value/compression.h"
#include "core/value/digest.h"
#include "core/value/dtype.h"
#include "core/watch/timeline.h"
#include "core/wire/communicator_factory.h"

namespace tfdist {
namespace {

// Runs `body` with the engine of all ranks.
template <typename Body>
int OnEngine(char* message, int message_size, const Body& body) {
  return Guarded(message, message_size, [&] {
    std::shared_ptr<Engine> engine;
    TFDIST_RETURN_IF_ERROR(World::Find(0, &engine));
    return body(engine.get());
  });
}

// `what` is for the message: "the report on the GPUs".
Status CopyOut(const std::string& text, const std::string& what, char* json, int json_size) {
  if (json == nullptr || json_size < 0 || text.size() >= static_cast<size_t>(json_size)) {
    return Status(StatusCode::kInvalidArgument, what + " has " + std::to_string(text.size() + 1) +
                                                    " bytes; expected a buffer of at least that "
                                                    "size, received " +
                                                    std::to_string(json_size) + ".");
  }
  std::memcpy(json, text.c_str(), text.size() + 1);
  return Status::Ok();
}

Status ReadMetrics(char* json, int json_size) {
  const std::shared_ptr<Engine> engine = World::Get();
  const std::string text = engine != nullptr ? engine->meter().Json() : "";
  return CopyOut(text, "the text of the metrics", json, json_size);
}

Status Init(const char* transport, const Membership& membership, const char* settings) {
  static std::mutex* const mutex = new std::mutex;  // two threads must not start two engines
  std::lock_guard<std::mutex> lock(*mutex);
  if (World::Get() != nullptr) return Status::Ok();
  EngineConfig config;
  TFDIST_RETURN_IF_ERROR(ReadSettings(settings, &config));
  TFDIST_RETURN_IF_ERROR(CheckSettings(config));
  std::unique_ptr<Communicator> communicator;
  TFDIST_RETURN_IF_ERROR(
      MakeCommunicator(transport != nullptr ? transport : "", config, membership, &communicator));
  auto engine = std::make_shared<Engine>(std::move(communicator), config);
  TFDIST_RETURN_IF_ERROR(engine->Open());
  World::Set(std::move(engine));
  return Status::Ok();
}

// Connections as the caller of the C functions makes them.
class CallersConnector : public Connector {
 public:
  CallersConnector(tfdist_listen_t listen, tfdist_connect_t connect)
      : listen_(listen), connect_(connect) {}

  Status Listen(int channel, int* port) override {
    char message[kMessageBytes] = "";
    const int code = listen_(channel, port, message, sizeof(message));
    return Status(static_cast<StatusCode>(code), message);
  }

  Status Connect(int channel, const std::vector<int>& ranks, const std::vector<int>& ports,
                 std::vector<int>* descriptors) override {
    char message[kMessageBytes] = "";
    descriptors->assign(ranks.size(), -1);
    const int code = connect_(channel, ranks.data(), ports.data(), static_cast<int>(ranks.size()),
                              descriptors->data(), message, sizeof(message));
    if (code != 0) descriptors->clear();
    return Status(static_cast<StatusCode>(code), message);
  }

 private:
  static constexpr size_t kMessageBytes = 4096;
  const tfdist_listen_t listen_;
  const tfdist_connect_t connect_;
};

// Runs `body` with the ranks that the caller of a C function has described.
int OnSockets(const tfdist_sockets& given, char* message, int message_size,
              const std::function<Status(const Membership& membership)>& body) {
  const int size = given.size;
  const int code = Guarded(message, message_size, [&] {
    if (size < 1) {
      const std::string received = "a job received " + std::to_string(size) + " ranks";
      return Status(StatusCode::kInvalidArgument, received + "; expected 1 or more.");
    }
    SocketMembership sockets;
    sockets.rank = given.rank;
    sockets.host_ids.assign(given.host_ids, given.host_ids + size);
    sockets.hosts.assign(given.hosts, given.hosts + size);
    sockets.descriptors.assign(given.descriptors, given.descriptors + size);
    sockets.connector = std::make_shared<CallersConnector>(given.listen, given.connect);
    Membership membership;
    membership.sockets = std::move(sockets);
    return body(membership);
  });
  // The transport has copies of them, if it came to that.
  for (int r = 0; r < size; ++r) {
    if (given.descriptors[r] >= 0) close(given.descriptors[r]);
  }
  return code;
}

Status Shutdown(bool clean) {
  if (World::IsForked()) return Status::Ok();  // it is the parent's to end
  if (clean) World::FinishProcessSets();
  // Taken out first: whatever happens to the others, this process has no engine any more.
  const std::shared_ptr<Engine> engine = World::Set(nullptr);
  if (engine == nullptr) return Status::Ok();
  const Status ended = clean ? engine->Shutdown() : Status::Ok();
  engine->timeline().Stop();
  return ended;
}

Status Gather(Engine* engine, const char* name, const int* mine, int count, int* all) {
  GatherOptions options;
  options.name = name;
  options.tensor_names = {name};
  options.equal_rows = true;
  const TensorView input{DType::kInt32, {count}, const_cast<int*>(mine)};
  const auto allocate = [all](int, const std::vector<int64_t>& shape, TensorView* output) {
    *output = TensorView{DType::kInt32, shape, all};
    return Status::Ok();
  };
  std::vector<int64_t> rows;
  return engine->Allgather(options, {input}, allocate, &rows);
}

void EndWithStatus(int exit_status, void*) {
  char message[1024] = "";
  const int clean = exit_status == 0 ? 1 : 0;
  const int code = Guarded(message, sizeof(message), [clean] { return Shutdown(clean != 0); });
  if (code == static_cast<int>(StatusCode::kOk)) return;
  std::fprintf(stderr, "tfdist: %s\n", message);
  std::fflush(nullptr);
  if (code == static_cast<int>(StatusCode::kFailedPrecondition)) std::_Exit(1);
}

Status ParseHierarchy(const char* name, Hierarchy* hierarchy) {
  if (FindHierarchy(name, hierarchy)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, std::string("the hierarchy of hosts is '") + name +
                                                  "'; expected off, nccl or mpi.");
}

Status ParseDType(const char* name, DType* dtype) {
  if (FindDType(name, dtype)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                std::string("a tensor's dtype is '") + name +
                    "'; expected the name of one that collectives carry, such as 'float32'.");
}

Status Plan(const char* const* dtypes, const int64_t* bytes, int count, int64_t threshold_bytes,
            int* bucket_of) {
  if (count < 0 || threshold_bytes < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "a plan of " + std::to_string(count) + " tensors and a threshold of " +
                      std::to_string(threshold_bytes) +
                      " bytes was requested; expected numbers of 0 or more.");
  }
  std::vector<DType> parsed(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    TFDIST_RETURN_IF_ERROR(ParseDType(dtypes[i], &parsed[i]));
    if (bytes[i] < 0) {
      return Status(StatusCode::kInvalidArgument, "tensor " + std::to_string(i) + " has " +
                                                      std::to_string(bytes[i]) +
                                                      " bytes; expected 0 or more.");
    }
  }
  const std::vector<Bucket> plan =
      PlanBuckets(parsed, std::vector<int64_t>(bytes, bytes + count), threshold_bytes);
  for (size_t number = 0; number < plan.size(); ++number) {
    for (int tensor : plan[number]) bucket_of[tensor] = static_cast<int>(number);
  }
  return Status::Ok();
}

template <typename Value>
int FromTopology(Value Topology::* value) {
  const std::shared_ptr<Engine> engine = World::Get();
  return engine == nullptr ? -1 : static_cast<int>(engine->communicator().topology().*value);
}

}  // namespace
}  // namespace tfdist

using tfdist::Engine;
using tfdist::FromTopology;
using tfdist::OnEngine;
using tfdist::Topology;

int tfdist_init(const char* transport, const int* ranks, int count, const int* mpi_communicator,
                const char* settings, char* message, int message_size) {
  return tfdist::Guarded(message, message_size, [&] {
    tfdist::Membership membership;
    if (count > 0) membership.ranks.assign(ranks, ranks + count);
    if (mpi_communicator != nullptr) membership.mpi_communicator = *mpi_communicator;
    return tfdist::Init(transport, membership, settings);
  });
}

int tfdist_init_sockets(const tfdist_sockets* sockets, const char* settings, char* message,
                        int message_size) {
  return tfdist::OnSockets(*sockets, message, message_size, [&](const tfdist::Membership& ranks) {
    return tfdist::Init("socket", ranks, settings);
  });
}

int tfdist_shutdown(int clean, char* message, int message_size) {
  return tfdist::Guarded(message, message_size, [&] { return tfdist::Shutdown(clean != 0); });
}

void tfdist_shutdown_at_exit(void) { on_exit(tfdist::EndWithStatus, nullptr); }

void tfdist_note_ended(int rank) {
  const std::shared_ptr<Engine> engine = tfdist::World::Get();
  if (engine != nullptr) engine->NoteEnded(rank);
}

int tfdist_is_initialized(void) { return tfdist::World::Get() != nullptr ? 1 : 0; }

int tfdist_rank(void) { return FromTopology(&Topology::rank); }
int tfdist_size(void) { return FromTopology(&Topology::size); }
int tfdist_local_rank(void) { return FromTopology(&Topology::local_rank); }
int tfdist_local_size(void) { return FromTopology(&Topology::local_size); }
int tfdist_cross_rank(void) { return FromTopology(&Topology::cross_rank); }
int tfdist_cross_size(void) { return FromTopology(&Topology::cross_size); }
int tfdist_is_homogeneous(void) { return FromTopology(&Topology::is_homogeneous); }
double tfdist_communication_seconds(void) {
  const std::shared_ptr<Engine> engine = tfdist::World::Get();
  return engine == nullptr ? -1 : engine->communication_seconds();
}

int tfdist_read_metrics(char* json, int json_size, char* message, int message_size) {
  return tfdist::Guarded(message, message_size,
                         [&] { return tfdist::ReadMetrics(json, json_size); });
}

int tfdist_check(char* message, int message_size) {
  return OnEngine(message, message_size, [](Engine* engine) { return engine->End(); });
}

int tfdist_check_place(char* message, int message_size) {
  return OnEngine(message, message_size, [](Engine*) { return tfdist::Status::Ok(); });
}

int tfdist_part(char* message, int message_size) {
  return tfdist::Guarded(message, message_size, [] { return tfdist::World::Part(); });
}

int tfdist_meet(const tfdist_sockets* sockets, char* message, int message_size) {
  return tfdist::OnSockets(*sockets, message, message_size, tfdist::World::Meet);
}

int tfdist_timeline_start(const char* path, int mark_cycles, char* message, int message_size) {
  return OnEngine(message, message_size,
                  [&](Engine* engine) { return engine->StartTimeline(path, mark_cycles != 0); });
}

void tfdist_timeline_stop(void) {
  const std::shared_ptr<Engine> engine = tfdist::World::Get();
  if (engine != nullptr && !tfdist::World::IsForked()) engine->timeline().Stop();
}

int tfdist_tune(int64_t fusion_threshold_bytes, int64_t chunk_bytes, const char* hierarchy,
                char* message, int message_size) {
  return OnEngine(message, message_size, [&](Engine* engine) {
    tfdist::Tuning tuning{fusion_threshold_bytes, chunk_bytes, tfdist::Hierarchy::kNone};
    TFDIST_RETURN_IF_ERROR(tfdist::ParseHierarchy(hierarchy, &tuning.hierarchy));
    return engine->Tune(tuning);
  });
}

int64_t tfdist_most_chunk_bytes(void) {
  const std::shared_ptr<Engine> engine = tfdist::World::Get();
  return engine == nullptr ? -1 : engine->MostChunkBytes();
}

int tfdist_barrier(const char* name, char* message, int message_size) {
  return OnEngine(message, message_size,
                  [&](Engine* engine) { return engine->Barrier(name != nullptr ? name : ""); });
}

int tfdist_gather(const char* name, const int* mine, int count, int* all, char* message,
                  int message_size) {
  return OnEngine(message, message_size,
                  [&](Engine* engine) { return tfdist::Gather(engine, name, mine, count, all); });
}

void tfdist_set_calling_thread(const char* name) { tfdist::SetCallingThread(name); }

int tfdist_add_process_set(const int* ranks, int count, int* process_set, char* message,
                           int message_size) {
  return tfdist::Guarded(message, message_size, [&] {
    const std::vector<int> members(ranks, ranks + count);
    return tfdist::World::AddProcessSet(members, process_set);
  });
}

int tfdist_remove_process_set(int process_set, char* message, int message_size) {
  return tfdist::Guarded(message, message_size,
                         [&] { return tfdist::World::RemoveProcessSet(process_set); });
}

int tfdist_plan_buckets(const char* const* dtypes, const int64_t* bytes, int count,
                        int64_t threshold_bytes, int* buckets, char* message, int message_size) {
  return tfdist::Guarded(message, message_size, [&] {
    return tfdist::Plan(dtypes, bytes, count, threshold_bytes, buckets);
  });
}

uint64_t tfdist_digest(const void* bytes, int64_t count) { return tfdist::Digest(bytes, count); }

int tfdist_describe_gpus(const char* settings, char* json, int json_size, char* message,
                         int message_size) {
  return tfdist::Guarded(message, message_size, [&] {
    tfdist::EngineConfig config;
    TFDIST_RETURN_IF_ERROR(tfdist::ReadSettings(settings, &config));
    return tfdist::CopyOut(tfdist::DescribeDevices(config), "the report on the GPUs", json,
                           json_size);
  });
}

const char* tfdist_compressions(void) {
  static const std::string kText = tfdist::DescribeCompressions();
  return kText.c_str();
}
