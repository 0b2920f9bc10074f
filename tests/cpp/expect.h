// A minimal test harness, so that a bare machine with a compiler can run the tests. Not GoogleTest.
//
// TEST(name) registers a function; EXPECT records a failure and goes on, from any thread.
// RunTests runs all tests whose name contains the first argument.
#ifndef TESTS_CPP_EXPECT_H_
#define TESTS_CPP_EXPECT_H_

#include <atomic>
#include <cstdio>
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

// Prints the first failures only: a wrong tensor would print a million lines.
inline void Fail(const char* file, int line, const std::string& text) {
  if (++Failures() <= 50) std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
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

inline int RunTests(const std::string& filter) {
  int ran = 0;
  for (const Test& test : Tests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    const int before = Failures();
    test.body();
    ++ran;
    std::printf("%s %s\n", Failures() == before ? "ok    " : "FAILED", test.name);
  }
  std::printf("%d tests, %d failed expectations\n", ran, Failures().load());
  return Failures() == 0 && ran > 0 ? 0 : 1;
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
