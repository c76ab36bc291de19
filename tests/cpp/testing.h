// SPDX-License-Identifier: Apache-2.0
// A test program in one header: HKV_TEST("a sentence") { EXPECT(x); EXPECT_EQ(a, b); } and a main.
//
// Each *_test.cpp is a program of its own and includes this file once. A failed expectation prints file,
// line and values, and the test goes on; the program ends with 1 if any failed, and with 2 if it holds
// no test at all. Expectations may be made from any thread.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace hkv::testing {

struct Test {
  const char* sentence;
  void (*body)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline std::atomic<int> failures{0};
inline bool add(const char* sentence, void (*body)()) {
  tests().push_back({sentence, body});
  return true;
}

template <class T>
std::string shown(const T& value) {
  if constexpr (requires(std::ostream& out) { out << value; }) {
    std::ostringstream out;
    out << std::boolalpha << value;
    return out.str();
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else {
    return "<" + std::to_string(sizeof(T)) + " bytes>";
  }
}
inline void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}
template <class A, class B>
void expect_eq(const char* file, int line, const char* text, const A& a, const B& b) {
  if (!(a == b)) fail(file, line, std::string(text) + ": " + shown(a) + " != " + shown(b));
}

}  // namespace hkv::testing

#define HKV_JOIN2(a, b) a##b
#define HKV_JOIN(a, b) HKV_JOIN2(a, b)
#define HKV_TEST(sentence) HKV_TEST_AS(sentence, HKV_JOIN(hkv_test_, __LINE__))
#define HKV_TEST_AS(sentence, name)                                                               \
  static void name();                                                                             \
  [[maybe_unused]] static const bool HKV_JOIN(name, _added) = hkv::testing::add(sentence, &name); \
  static void name()
#define EXPECT(c) ((c) ? (void)0 : hkv::testing::fail(__FILE__, __LINE__, "expected " #c))
#define EXPECT_EQ(a, b) hkv::testing::expect_eq(__FILE__, __LINE__, #a " == " #b, (a), (b))

int main(int argc, char** argv) {  // an argument selects the tests whose sentence contains it
  int run = 0;
  for (const auto& test : hkv::testing::tests()) {
    if (argc > 1 && !std::strstr(test.sentence, argv[1])) continue;
    const int before = hkv::testing::failures;
    try {
      test.body();
    } catch (const std::exception& e) {
      hkv::testing::fail(__FILE__, __LINE__, std::string("threw ") + e.what());
    }
    std::printf("%s %s\n", hkv::testing::failures == before ? "ok  " : "FAIL", test.sentence);
    ++run;
  }
  if (run == 0) std::fprintf(stderr, "no test was run\n");
  return run == 0 ? 2 : hkv::testing::failures != 0;
}
