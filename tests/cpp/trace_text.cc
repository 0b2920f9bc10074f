#include "trace_text.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "expect.h"

namespace {

// What stands behind "key": up to a comma or bracket; without quotes.
std::string ValueOf(const std::string& text, const std::string& key) {
  const std::string head = "\"" + key + "\":";
  const size_t at = text.find(head);
  if (at == std::string::npos) return "";
  const size_t begin = at + head.size();
  if (text[begin] == '"') return text.substr(begin + 1, text.find('"', begin + 1) - begin - 1);
  return text.substr(begin, text.find_first_of(",}", begin) - begin);
}

// "12.345" microseconds.
int64_t Nanoseconds(const std::string& value) {
  const size_t point = value.find('.');
  if (point == std::string::npos) return 0;
  EXPECT_EQ(value.size() - point, 4u);
  return std::stoll(value.substr(0, point) + value.substr(point + 1));
}

}  // namespace

TraceFolder::TraceFolder() {
  char name[] = "/tmp/tfdist-trace.XXXXXX";
  path_ = mkdtemp(name);
}

TraceFolder::~TraceFolder() { std::filesystem::remove_all(path_); }

std::string TraceFolder::File(int rank) const {
  return path_ + "/made/run." + std::to_string(rank) + ".json";
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int64_t TraceLine::Number(const std::string& key) const {
  const std::string value = ValueOf(text, key);
  return value.empty() ? -1 : std::stoll(value);
}

std::vector<TraceLine> ReadTrace(const std::string& path) {
  std::istringstream text(ReadText(path));
  std::vector<TraceLine> lines;
  std::string line;
  EXPECT(std::getline(text, line) && line == "[");
  bool ended = false;
  while (std::getline(text, line)) {
    if (line == "]") {
      ended = true;
      continue;
    }
    EXPECT(!ended);
    const bool more = line.size() > 1 && line.back() == ',';
    if (more) line.pop_back();
    EXPECT(line.front() == '{' && line.back() == '}');
    EXPECT_EQ(more, text.peek() != ']');
    TraceLine found{line, ValueOf(line, "cat"), ValueOf(line, "name"), 0, 0};
    found.begin_ns = Nanoseconds(ValueOf(line, "ts"));
    found.end_ns = found.begin_ns + Nanoseconds(ValueOf(line, "dur"));
    lines.push_back(found);
  }
  EXPECT(ended);
  return lines;
}

std::vector<TraceLine> OfCategory(const std::vector<TraceLine>& lines,
                                  const std::string& category) {
  std::vector<TraceLine> found;
  for (const TraceLine& line : lines) {
    if (line.category == category) found.push_back(line);
  }
  return found;
}
