// Timelines as tests read them: a folder for the files, and their events by line. No JSON parser.
#ifndef TESTS_CPP_TRACE_TEXT_H_
#define TESTS_CPP_TRACE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

// A new folder, removed with what is in it at the end of the scope.
class TraceFolder {
 public:
  TraceFolder();
  ~TraceFolder();
  TraceFolder(const TraceFolder&) = delete;
  TraceFolder& operator=(const TraceFolder&) = delete;

  std::string File(int rank) const;

 private:
  std::string path_;
};

std::string ReadText(const std::string& path);

// One event, which has a line of the file.
struct TraceLine {
  std::string text;
  std::string category;  // "call", "bucket", "phase", ...; empty for metadata
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  bool Has(const std::string& part) const { return text.find(part) != std::string::npos; }
  // The value of a key that is a number; -1 where it has none.
  int64_t Number(const std::string& key) const;
};

// The events of a file, and a failed expectation where the file is no array of a line each.
std::vector<TraceLine> ReadTrace(const std::string& path);

std::vector<TraceLine> OfCategory(const std::vector<TraceLine>& lines, const std::string& category);

#endif  // TESTS_CPP_TRACE_TEXT_H_
