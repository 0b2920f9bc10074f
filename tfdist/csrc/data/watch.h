// What a trainer has read through a data service, by the name of the dataset. Not what reads it.
//
// Names come from Python and are never forgotten: an iterator may outlive the dataset's Python
// object. Thread safe.
#ifndef TFDIST_DATA_WATCH_H_
#define TFDIST_DATA_WATCH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/value/export.h"
#include "data/id_set.h"

namespace tfdist {

// One pass of an iterator over the data.
struct PassReading {
  int64_t number = 0;  // from 1 on; 0: there was none
  int64_t elements = 0;
  int64_t ids = 0;           // that came with the elements
  int64_t distinct_ids = 0;  // of them
  int64_t id_bytes = 0;      // memory that they take
  bool ended = false;        // read to its end
};

struct WatchReading {
  int64_t elements = 0;  // of all passes
  int64_t waited_ns = 0;
  int64_t longest_wait_ns = 0;
  PassReading newest;
  PassReading newest_ended;
};

class TFDIST_API Watch {
 public:
  // The one of this name; made where there is none yet.
  static std::shared_ptr<Watch> Named(const std::string& name);
  // Null where there is none.
  static std::shared_ptr<Watch> Find(const std::string& name);

  class Pass;
  std::shared_ptr<Pass> BeginPass();

  // A wait, whatever comes of it. Several may go on side by side; times are those of one clock.
  void BeginWait(int64_t start_ns);
  void EndWait(int64_t start_ns, int64_t end_ns);

  // An element of a pass. `ids` may be null where `count` is 0.
  void AddElement(Pass* pass, const int64_t* ids, int64_t count);
  void EndPass(const std::shared_ptr<Pass>& pass);

  // `waited_ns` has what the waits that go on have taken by `now_ns`; `longest_wait_ns` has not.
  WatchReading Read(int64_t now_ns) const;

 private:
  mutable std::mutex mutex_;
  int64_t elements_ = 0;
  int64_t waited_ns_ = 0;
  int64_t longest_wait_ns_ = 0;
  int64_t open_waits_ = 0;
  int64_t open_starts_ns_ = 0;  // their sum
  int64_t passes_ = 0;
  std::shared_ptr<Pass> newest_;  // null once it has ended
  PassReading newest_ended_;
};

// Belongs to its watch, whose mutex guards it.
class TFDIST_API Watch::Pass {
 private:
  friend class Watch;

  PassReading Read() const;

  int64_t number_ = 0;
  int64_t elements_ = 0;
  int64_t id_count_ = 0;
  IdSet ids_;
  bool ended_ = false;
};

// What is known to be wrong with a service, such as the names of dead workers; it goes into the
// error of a wait that lasts too long. An empty text takes the note back.
void SetServiceNote(const std::string& service, const std::string& note);
TFDIST_API std::string ServiceNote(const std::string& service);

}  // namespace tfdist

#endif  // TFDIST_DATA_WATCH_H_
