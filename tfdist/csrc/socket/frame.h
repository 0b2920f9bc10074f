// How a message looks on a connection: a head of 8 bytes, then its bytes. Pure values: moves none.
#ifndef TFDIST_SOCKET_FRAME_H_
#define TFDIST_SOCKET_FRAME_H_

#include <cstddef>
#include <cstdint>

namespace tfdist {

enum class FrameKind : uint8_t {
  kData = 1,   // the number says how many bytes follow
  kAbort = 2,  // the sender has failed; the number is 1 + the rank among all that was lost, 0: none
  kNote = 3,   // the number is all
};

// `kind` is as received, perhaps none of the above.
struct FrameHead {
  FrameKind kind;
  int64_t number;  // of 56 bits
};

constexpr size_t kFrameHeadBytes = 8;

// Little endian; the kind is the top byte.
inline void WriteFrameHead(const FrameHead& head, unsigned char* bytes) {
  const uint64_t word = static_cast<uint64_t>(head.kind) << 56 | static_cast<uint64_t>(head.number);
  for (size_t i = 0; i < kFrameHeadBytes; ++i) {
    bytes[i] = static_cast<unsigned char>(word >> (8 * i));
  }
}

inline FrameHead ReadFrameHead(const unsigned char* bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i + 1 < kFrameHeadBytes; ++i) number |= uint64_t{bytes[i]} << (8 * i);
  return {static_cast<FrameKind>(bytes[kFrameHeadBytes - 1]), static_cast<int64_t>(number)};
}

}  // namespace tfdist

#endif  // TFDIST_SOCKET_FRAME_H_
