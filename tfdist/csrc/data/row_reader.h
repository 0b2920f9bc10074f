// Hands reads of rows to a reader in another language, such as Python, on threads of its own.
// Reads nothing itself.
//
// The caller never waits for the reader, nor for a lock that the reader's language has, such as
// Python's: it can give a read up at any time. So a thread that holds that lock may safely wait for
// callers to end, which is what ending a server of a data service does.
#ifndef TFDIST_DATA_ROW_READER_H_
#define TFDIST_DATA_ROW_READER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/value/export.h"
#include "core/value/status.h"
#include "core/watch/steady_condition.h"

namespace tfdist {

// One read: what is asked for, and where the result goes. `Fail`, `Give` and `Finish` are called by
// one thread; the others by any.
class TFDIST_API RowRead {
 public:
  struct Column {
    std::vector<int64_t> shape;
    const void* values;
    int64_t bytes;
    const int64_t* ends;  // null, or for strings: where in `values` each begins, and the last ends
  };

  virtual ~RowRead() = default;
  virtual const std::string& request() const = 0;
  virtual bool wanted() const = 0;                           // false once nobody waits for it
  virtual Status Give(int column, const Column& value) = 0;  // copies
  virtual void Fail(const Status& status) = 0;  // the first one counts; `Finish` follows
  virtual void Finish() = 0;
};

class TFDIST_API RowReader {
 public:
  // Reads, gives the columns, and returns. `read` is the RowRead* of this one call.
  using Function = void (*)(void* read, const char* request, int64_t request_bytes);

  RowReader() = default;
  // Gives up what waits, and waits for what runs, without a deadline: for tests.
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // The one of this process. Never destroyed: threads may be inside the function to the end.
  static RowReader& OfProcess();

  // From now on up to `threads` threads call `function`; they start when there is work.
  void Open(Function function, int threads);

  // Fails what waits and all that comes, until the next Open. Returns whether nothing runs any more
  // after at most this long.
  bool Close(double seconds);

  // Returns at once. `read->Finish()` is called once by one of the threads or, where nobody can
  // read, from here.
  void Submit(std::shared_ptr<RowRead> read);

 private:
  void Run();

  std::mutex mutex_;
  SteadyCondition changed_;
  std::deque<std::shared_ptr<RowRead>> waiting_;
  std::vector<std::thread> threads_;
  Function function_ = nullptr;
  int most_threads_ = 0;
  int running_ = 0;
  bool ends_ = false;
};

}  // namespace tfdist

#endif  // TFDIST_DATA_ROW_READER_H_
