#include "core/value/digest.h"

#include <array>
#include <cstring>

namespace tfdist {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kHashLanes = 4;  // as many as hide how long a multiplication takes
constexpr int64_t kBlockBytes = kHashLanes * 2 * sizeof(uint64_t);
// Odd, without a pattern.
constexpr uint64_t kFirst = 0x9e3779b97f4a7c15;
constexpr uint64_t kSecond = 0xc2b2ae3d27d4eb4f;

using Lanes = std::array<uint64_t, kHashLanes>;
using Words = std::array<uint64_t, kHashLanes * 2>;

// Both halves of a product, so that every bit of the two changes every bit of the result: the
// multiplication of wyhash (Wang Yi 2019), 16 bytes with one instruction.
inline uint64_t Folded(uint64_t first, uint64_t second) {
  const Wide product = static_cast<Wide>(first) * second;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline void MixIn(const Words& words, Lanes* lanes) {
  for (int lane = 0; lane < kHashLanes; ++lane) {
    const uint64_t before = (*lanes)[lane];
    (*lanes)[lane] = Folded(words[2 * lane] ^ before, words[2 * lane + 1] ^ kSecond) + before;
  }
}

}  // namespace

uint64_t Digest(const void* bytes, int64_t count) {
  const char* next = static_cast<const char*>(bytes);
  Lanes lanes;
  for (int lane = 0; lane < kHashLanes; ++lane) lanes[lane] = kFirst * (lane + 1);
  Words words;
  int64_t left = count;
  for (; left >= kBlockBytes; left -= kBlockBytes, next += kBlockBytes) {
    std::memcpy(words.data(), next, kBlockBytes);
    MixIn(words, &lanes);
  }
  if (left > 0) {
    words.fill(0);
    std::memcpy(words.data(), next, static_cast<size_t>(left));
    MixIn(words, &lanes);
  }
  uint64_t total = static_cast<uint64_t>(count);
  for (const uint64_t lane : lanes) total = Folded(total ^ kFirst, lane ^ kSecond) + total;
  return total;
}

}  // namespace tfdist
