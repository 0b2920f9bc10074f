// Memory that the ranks of a host see, and the counters by which they meet in it. An interface: who
// makes the memory implements it. Not a collective: see window_collective.h, and host_meeting.h for
// the meeting before each.
//
// A stream of chunks runs through a window. Chunk k uses slot k % kSlots of every rank's part, and
// a rank tells by its counters how far it is. Only the owner of a part writes to it.
#ifndef TFDIST_CORE_PLACE_WINDOW_H_
#define TFDIST_CORE_PLACE_WINDOW_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/place/activity.h"

namespace tfdist {

class Window {
 public:
  static constexpr int kSlots = 4;

  // How many chunks the owner has put into its slots, reduced, and no longer reads in others'
  // slots.
  enum Stage { kPosted = 0, kReduced = 1, kDone = 2, kStages = 3 };

  struct alignas(64) Counters {
    std::atomic<uint64_t> chunks[kStages];
    std::atomic<uint32_t> failed;  // not 0: the owner has given up
  };

  // What a rank shows before a collective.
  static constexpr int64_t kHeaderBytes = 24;

  // Where a rank meets the others before each collective. A header is in the place of its meeting's
  // parity: nobody comes to the meeting after the next while others still read.
  struct alignas(64) Meeting {
    std::atomic<uint64_t> shown;  // the last meeting that the owner has shown its header for
    std::atomic<uint64_t> told;   // of the first rank: the last one whose headers of all are here
    char headers[2][kHeaderBytes];
  };

  // In `shown`: the owner has given up.
  static constexpr uint64_t kGivenUp = uint64_t{1} << 63;

  // The slot for `bytes` of memory a rank.
  static int64_t SlotBytes(int64_t bytes) { return bytes / (2 * kSlots) / 64 * 64; }

  // Bytes that a window of `size` of `all` ranks takes, for slots of `slot_bytes`, a multiple of
  // 64.
  static int64_t Bytes(int size, int all, int64_t slot_bytes) {
    const int64_t headers = (all * kHeaderBytes + 63) / 64 * 64;
    return size * (kHeadBytes + kSlots * 2 * slot_bytes) + headers;
  }

  // `memory` has Bytes(size, all, slot_bytes) bytes, zeros at first, and is aligned to 64 bytes.
  Window(char* memory, int rank, int size, int64_t slot_bytes)
      : memory_(memory),
        rank_(rank),
        size_(size),
        slot_bytes_(slot_bytes),
        chunk_bytes_(slot_bytes) {}
  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t slot_bytes() const { return slot_bytes_; }

  // What a collective puts into a slot at most: the slot, or less.
  int64_t chunk_bytes() const { return chunk_bytes_; }

  // A multiple of 64, slot_bytes() at most; 0 for that. All ranks change it between the same two
  // collectives.
  void SetChunkBytes(int64_t bytes) { chunk_bytes_ = bytes == 0 ? slot_bytes_ : bytes; }

  Counters& counters(int rank) const { return reinterpret_cast<Counters*>(memory_)[rank]; }

  // What the owner of a part does, for reports: of a window of all ranks only.
  ActivitySlot& activity(int rank) const {
    return reinterpret_cast<ActivitySlot*>(memory_ + size_ * sizeof(Counters))[rank];
  }

  // The next meeting; the same on every rank.
  uint64_t NextMeeting() { return ++meeting_; }
  Meeting& meeting(int rank) const {
    char* const first = memory_ + size_ * (sizeof(Counters) + sizeof(ActivitySlot));
    return reinterpret_cast<Meeting*>(first)[rank];
  }

  // The headers of all ranks, on other hosts too: written by the first rank.
  char* all_headers() const { return memory_ + size_ * (kHeadBytes + kSlots * 2 * slot_bytes_); }

  // What `rank` shows the others of chunk `chunk`: as it was, and reduced.
  char* posted(int rank, uint64_t chunk) const { return Slot(rank, chunk, 0); }
  char* reduced(int rank, uint64_t chunk) const { return Slot(rank, chunk, 1); }

  // The first chunk of the next collective; the same on every rank.
  uint64_t next_chunk() const { return next_chunk_; }
  void Advance(uint64_t chunks) { next_chunk_ += chunks; }

  // Tells the others that this rank will not go on.
  void GiveUp() {
    counters(rank_).failed.store(1, std::memory_order_release);
    meeting(rank_).shown.fetch_or(kGivenUp, std::memory_order_release);
  }

  // Whether `rank` has given up.
  bool HasGivenUp(int rank) const {
    return counters(rank).failed.load(std::memory_order_acquire) != 0;
  }

  // Ranks whose process has ended, ascending. Quick enough for every few polls.
  virtual std::vector<int> EndedRanks() const = 0;

 private:
  static constexpr int64_t kHeadBytes = sizeof(Counters) + sizeof(ActivitySlot) + sizeof(Meeting);

  char* Slot(int rank, uint64_t chunk, int area) const {
    const int64_t slot = (rank * int64_t{kSlots} + static_cast<int64_t>(chunk % kSlots)) * 2 + area;
    return memory_ + size_ * kHeadBytes + slot * slot_bytes_;
  }

  char* const memory_;
  const int rank_;
  const int size_;
  const int64_t slot_bytes_;
  int64_t chunk_bytes_;
  uint64_t next_chunk_ = 0;
  uint64_t meeting_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_PLACE_WINDOW_H_
