// The wall clock of this program, which a test may move: who waits by it shows.
#ifndef TFDIST_TESTS_CPP_WALL_CLOCK_H_
#define TFDIST_TESTS_CPP_WALL_CLOCK_H_

#include <cstdint>

// Moves it by so many seconds from the true time, ahead where they are positive, until destruction.
class MovedWallClock {
 public:
  explicit MovedWallClock(int64_t seconds);
  ~MovedWallClock();
  MovedWallClock(const MovedWallClock&) = delete;
  MovedWallClock& operator=(const MovedWallClock&) = delete;
};

#endif  // TFDIST_TESTS_CPP_WALL_CLOCK_H_
