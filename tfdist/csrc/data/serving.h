// What this process serves to trainers as a worker of a data service, and whether it is to stop
// taking new work. All of the process in one place; not the data. Thread safe.
#ifndef TFDIST_DATA_SERVING_H_
#define TFDIST_DATA_SERVING_H_

#include <atomic>
#include <cstdint>

#include "core/value/export.h"

namespace tfdist {

struct TFDIST_API Serving {
  std::atomic<int64_t> elements{0};
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> busy_ns{0};          // inside the datasets' own steps
  std::atomic<int64_t> splits{0};           // parts of the data taken from the dispatcher
  std::atomic<int64_t> open_iterators{0};   // that exist
  std::atomic<int64_t> ended_iterators{0};  // that came to their end, existing or not
  // Of those, the ones between two elements: asked for no other, as all that TensorFlow keeps ahead
  // of the trainers are made and not yet fetched. How many that are TensorFlow tells nobody.
  std::atomic<int64_t> waiting_iterators{0};
  // A draining process takes no further split: an iterator ends with what it holds.
  std::atomic<bool> draining{false};

  // The one of this process; lives to its end.
  static Serving& Get();
};

}  // namespace tfdist

#endif  // TFDIST_DATA_SERVING_H_
