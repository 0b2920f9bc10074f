#include "shm/mapped_window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shm/descriptor.h"
#include "shm/process_watch.h"

namespace tfdist {
namespace {

// What a rank tells the others of its host.
struct Introduction {
  int64_t process = 0;
  int64_t descriptor = -1;  // of the memory, in the process that made it
  uint64_t mark = 0;        // stands in the memory: process numbers may differ between containers
};

Status Failed(const std::string& doing) {
  return Status(StatusCode::kInternal, doing + " failed: " + std::strerror(errno));
}

Status Stranger(const std::string& path) {
  return Status(StatusCode::kInternal, path +
                                           " is a different file: the ranks of this host cannot "
                                           "see each other's processes");
}

struct Unmap {
  size_t bytes = 0;
  void operator()(char* memory) const { munmap(memory, bytes); }
};
using Mapping = std::unique_ptr<char, Unmap>;

class MappedWindow : public Window {
 public:
  MappedWindow(Mapping memory, const Topology& host, int64_t slot_bytes, ProcessWatch processes)
      : Window(memory.get(), host.rank, host.size, slot_bytes),
        memory_(std::move(memory)),
        processes_(std::move(processes)) {}

  std::vector<int> EndedRanks() const override { return processes_.Ended(); }

 private:
  const Mapping memory_;
  const ProcessWatch processes_;  // by rank
};

Status Map(int descriptor, size_t bytes, Mapping* memory) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    return Failed("mapping " + std::to_string(bytes) + " bytes of shared memory");
  }
  madvise(mapped, bytes, MADV_HUGEPAGE);  // a hint: fewer page faults where the kernel follows it
  *memory = Mapping(static_cast<char*>(mapped), Unmap{bytes});
  return Status::Ok();
}

// Where the mark stands: behind what the window uses.
uint64_t* MarkOf(const Mapping& memory) {
  return reinterpret_cast<uint64_t*>(memory.get() + memory.get_deleter().bytes) - 1;
}

// The first rank's part: memory of its own.
Status Make(size_t bytes, Mapping* memory, Introduction* own) {
  const int descriptor = memfd_create("tfdist-window", MFD_CLOEXEC);
  if (descriptor < 0) return Failed("creating shared memory (memfd_create)");
  own->descriptor = descriptor;
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return Failed("making " + std::to_string(bytes) + " bytes of shared memory");
  }
  TFDIST_RETURN_IF_ERROR(Map(descriptor, bytes, memory));
  std::random_device device;
  own->mark = (static_cast<uint64_t>(device()) << 32 | device()) | 1;
  *MarkOf(*memory) = own->mark;
  return Status::Ok();
}

// Every other rank's part: the same memory, through the process that made it.
Status Open(const Introduction& maker, size_t bytes, Mapping* memory) {
  if (maker.mark == 0) {
    return Status(StatusCode::kInternal,
                  "the first rank of this host could not create shared "
                  "memory");
  }
  const std::string path =
      "/proc/" + std::to_string(maker.process) + "/fd/" + std::to_string(maker.descriptor);
  const Descriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (descriptor.get() < 0) return Failed("opening " + path);
  struct stat found = {};
  if (fstat(descriptor.get(), &found) != 0 || static_cast<size_t>(found.st_size) != bytes) {
    return Stranger(path);
  }
  TFDIST_RETURN_IF_ERROR(Map(descriptor.get(), bytes, memory));
  return *MarkOf(*memory) == maker.mark ? Status::Ok() : Stranger(path);
}

// Sends `own` to the host's other ranks and receives theirs, by rank on the host.
Status Introduce(const Topology& host, Introduction* own, Communicator* communicator, Wait* wait,
                 std::vector<Introduction>* all) {
  const std::vector<int>& ranks = communicator->topology().world_ranks;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  all->assign(static_cast<size_t>(host.size), *own);
  size_t local = 0;
  for (int r = 0; r < communicator->size() && local < all->size(); ++r) {
    if (ranks[r] != host.world_ranks[local]) continue;
    if (r != communicator->rank()) {
      sends.push_back({r, own, sizeof(Introduction)});
      receives.push_back({r, &(*all)[local], sizeof(Introduction)});
    }
    ++local;
  }
  return communicator->Exchange(sends, receives, wait);
}

}  // namespace

Status MapWindow(int64_t bytes, Communicator* communicator, Wait* wait,
                 std::unique_ptr<Window>* window) {
  const Topology host = HostTopology(communicator->topology());
  const int64_t slot_bytes = Window::SlotBytes(bytes);
  constexpr size_t kMarkBytes = 64;
  const size_t mapped_bytes =
      static_cast<size_t>(Window::Bytes(host.size, communicator->size(), slot_bytes)) + kMarkBytes;
  Introduction own;
  own.process = getpid();
  Mapping memory;
  Status status;
  if (host.rank == 0) status = Make(mapped_bytes, &memory, &own);
  const Descriptor made(own.descriptor);
  std::vector<Introduction> all;
  TFDIST_RETURN_IF_ERROR(Introduce(host, &own, communicator, wait, &all));
  if (status.ok() && host.rank != 0) status = Open(all[0], mapped_bytes, &memory);
  ProcessWatch processes;
  for (int r = 0; r < host.size && status.ok(); ++r) {
    if (r == host.rank) {
      processes.AddNone();
    } else {
      status = processes.Add(all[r].process);
    }
  }
  // Once more, so that the first rank keeps its descriptor until everybody has opened it.
  TFDIST_RETURN_IF_ERROR(Introduce(host, &own, communicator, wait, &all));
  if (!status.ok()) return status;
  *window =
      std::make_unique<MappedWindow>(std::move(memory), host, slot_bytes, std::move(processes));
  return Status::Ok();
}

}  // namespace tfdist
