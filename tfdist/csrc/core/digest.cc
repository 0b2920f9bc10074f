#include "core/digest.h"

#include <array>
#include <cstring>

namespace tfdist {
namespace {

constexpr int kLanes = 8;  // as many as hide how long a multiplication takes
constexpr int64_t kBlockBytes = kLanes * sizeof(uint64_t);
// Odd, so that multiplying by them loses nothing.
constexpr uint64_t kLaneFactor = 0x9e3779b97f4a7c15;
constexpr uint64_t kWordFactor = 0xc2b2ae3d27d4eb4f;

using Words = std::array<uint64_t, kLanes>;

// One to one in `lane` and in `word`: a round of xxHash64 (Collet 2014). A multiplication moves
// bits up only. Of the two here, with a rotation between them, any one bit of a word changes many
// of the lane, so that a change to one more bit of a later word cannot undo it.
inline uint64_t Mixed(uint64_t lane, uint64_t word) {
  const uint64_t sum = lane + word * kWordFactor;
  return (sum << 31 | sum >> 33) * kLaneFactor;
}

inline void MixIn(const Words& words, Words* lanes) {
  for (int lane = 0; lane < kLanes; ++lane) (*lanes)[lane] = Mixed((*lanes)[lane], words[lane]);
}

}  // namespace

uint64_t Digest(const void* bytes, int64_t count) {
  const char* next = static_cast<const char*>(bytes);
  Words lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = kLaneFactor * (lane + 1);
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
  for (const uint64_t lane : lanes) total = Mixed(total, lane);
  return Mixed(total, total >> 32);
}

}  // namespace tfdist
