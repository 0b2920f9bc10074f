// A file of trace events that is a whole JSON array after every write, so that whatever ends the
// process between two writes leaves one. One killed within a write may leave a part of it, of which
// the lines before can be read. Knows nothing of what the events mean.
//
// For one thread at a time. The destructor closes the file.
#ifndef TFDIST_CORE_WATCH_TRACE_FILE_H_
#define TFDIST_CORE_WATCH_TRACE_FILE_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "core/value/status.h"

namespace tfdist {

class TraceFile {
 public:
  TraceFile() = default;
  ~TraceFile() { Close(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Makes an empty array, and the folders on the way to it; overwrites a file that is there.
  Status Create(const std::string& path);

  // Appends events, JSON objects with commas between them, in one write over the closing bracket.
  // After an error the file has the events of before.
  Status Append(const std::string& events);

  void Close();

 private:
  Status Write(const std::string& text);
  Status Failed(const char* what) const;

  std::string path_;
  std::FILE* file_ = nullptr;
  int64_t end_ = 0;  // where the closing bracket's line begins
  bool empty_ = true;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_TRACE_FILE_H_
