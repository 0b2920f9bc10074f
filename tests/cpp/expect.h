// A minimal test harness, so that a bare machine with a compiler can run the tests. Not GoogleTest.
//
// TEST(name) registers a function; EXPECT records a failure and goes on, from any thread.
// RunTests runs the tests whose name contains a filter, or one of several parts of them, and tells
// again at its end what failed.
#ifndef TESTS_CPP_EXPECT_H_
#define TESTS_CPP_EXPECT_H_

#include <atomic>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace expect {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline std::atomic<int>& Failures() {
  static std::atomic<int> failures{0};
  return failures;
}

inline bool Register(const char* name, void (*body)()) {
  Tests().push_back({name, body});
  return true;
}

// What failed, in lines that RunTests prints last: of a long output often only the end is kept.
class Summary {
 public:
  void Add(const std::string& line) {
    std::lock_guard<std::mutex> lock(mutex_);
    text_ += line;
  }
  std::string Text() {
    std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

inline Summary& Failed() {
  static Summary summary;
  return summary;
}

// Prints the first failures only: a wrong tensor would print a million lines.
inline void Fail(const char* file, int line, const std::string& text) {
  if (++Failures() > 50) return;
  const std::string message = std::string(file) + ":" + std::to_string(line) + ": " + text + "\n";
  std::fputs(message.c_str(), stderr);
  Failed().Add("  " + message);
}

template <typename A, typename B>
void Equal(const A& actual, const B& expected, const char* what, const char* file, int line) {
  if (actual == expected) return;
  std::ostringstream text;
  text << what << " is " << actual << ", expected " << expected;
  Fail(file, line, text.str());
}

inline void Contains(const std::string& text, const std::string& part, const char* file, int line) {
  if (text.find(part) != std::string::npos) return;
  Fail(file, line, "'" + text + "' does not contain '" + part + "'");
}

// Of the tests that match, those of `part`, which is 0 to `parts` - 1.
inline int RunTests(const std::string& filter, int part, int parts) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // in the order of what goes to stderr
  int matching = 0;
  int ran = 0;
  for (const Test& test : Tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    if (matching++ % parts != part) continue;
    const int before = Failures();
    test.body();
    ++ran;
    const bool passed = Failures() == before;
    if (!passed) Failed().Add("FAILED " + std::string(test.name) + "\n");
    std::printf("%s %s\n", passed ? "ok    " : "FAILED", test.name);
  }
  std::fputs(Failed().Text().c_str(), stdout);
  std::printf("%d tests, %d failed expectations\n", ran, Failures().load());
  return Failures() == 0 && matching > 0 ? 0 : 1;
}

}  // namespace expect

#define TEST(name)                                                        \
  static void name();                                                     \
  static const bool name##_registered = ::expect::Register(#name, &name); \
  static void name()
#define EXPECT(condition) \
  if (!(condition)) ::expect::Fail(__FILE__, __LINE__, "expected " #condition)
#define EXPECT_EQ(actual, expected) ::expect::Equal(actual, expected, #actual, __FILE__, __LINE__)
#define EXPECT_CONTAINS(text, part) ::expect::Contains(text, part, __FILE__, __LINE__)

#endif  // TESTS_CPP_EXPECT_H_
