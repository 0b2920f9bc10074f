// How fast one core reads what another has just written: the limit of an allreduce within a host,
// beside the copy of memory.
//
//     g++ -O3 -pthread -o core_to_core benchmarks/core_to_core.cc && ./core_to_core
//
// The two cores must not be two threads of one core, which would share its caches.
// Two threads on the first two cores that this process may use take turns: one writes a piece of 64
// KiB, the other copies it to a piece of its own. For the copy of memory both copy 100 MB at once,
// as two ranks would.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kCopyBytes = 100 << 20;
constexpr int kTurns = 20000;
constexpr int kCopies = 20;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The n-th core of those that this process may use.
void KeepToCore(int n) {
  cpu_set_t all;
  sched_getaffinity(0, sizeof(all), &all);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &all) || n-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
  std::fprintf(stderr, "core_to_core: needs two cores\n");
  std::exit(1);
}

// The median time of one piece.
double SecondsAPiece() {
  static char written[kPieceBytes], copied[kPieceBytes];
  std::atomic<int> turn{0};  // even: the writer's
  std::thread writer([&] {
    KeepToCore(0);
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i) sched_yield();
      std::memset(written, i, kPieceBytes);
      turn.store(2 * i + 1, std::memory_order_release);
    }
  });
  std::vector<double> seconds;
  std::thread reader([&] {
    KeepToCore(1);
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) sched_yield();
      const Clock::time_point start = Clock::now();
      std::memcpy(copied, written, kPieceBytes);
      seconds.push_back(SecondsSince(start));
      if (copied[i % kPieceBytes] != static_cast<char>(i)) std::abort();
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  writer.join();
  reader.join();
  std::nth_element(seconds.begin(), seconds.begin() + kTurns / 2, seconds.end());
  return seconds[kTurns / 2];
}

// The median time of a copy of kCopyBytes while the other core does the same.
double SecondsACopy() {
  std::vector<double> seconds(kCopies);
  std::atomic<int> arrived{0};
  const auto copy = [&](int core) {
    KeepToCore(core);
    std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
    for (int i = 0; i < kCopies; ++i) {
      for (++arrived; arrived.load() < 2 * (i + 1);) sched_yield();
      const Clock::time_point start = Clock::now();
      std::memcpy(to.data(), from.data(), kCopyBytes);
      if (core == 0) seconds[i] = SecondsSince(start);
      if (to[i] != 1) std::abort();
    }
  };
  std::thread first(copy, 0), second(copy, 1);
  first.join();
  second.join();
  std::nth_element(seconds.begin(), seconds.begin() + kCopies / 2, seconds.end());
  return seconds[kCopies / 2];
}

}  // namespace

int main() {
  const double piece = SecondsAPiece();
  std::printf("64 KiB from the other core's cache: %.1f us, %.1f GB/s\n", piece * 1e6,
              kPieceBytes / piece / 1e9);
  std::printf("100 MB (2^20 bytes each) of memory, copied by both cores at once: %.1f ms\n",
              SecondsACopy() * 1e3);
  return 0;
}
