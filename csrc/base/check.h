// SPDX-License-Identifier: Apache-2.0
// Three strengths of checking, kept apart: HKV_ASSERT (debug builds), HKV_CHECK (always, aborts) and
// Error (an argument or an operating condition that the caller can act on).
#pragma once
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

namespace hkv {

// One code per Python error class; the binding maps the name of the code to the class of that name.
enum class ErrorCode {
  SpecError,
  ArgumentError,
  OutOfPages,
  Busy,
  KernelContract,
  LeaseExpired,
  FillClosed,
  Closed,
  TierError
};

// What was wrong: the field, what was expected there and what came. Nothing has changed when it is thrown.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string field, std::string expected, std::string got)
      : std::runtime_error(field + ": expected " + expected + ", got " + got),
        code(code),
        field(std::move(field)),
        expected(std::move(expected)),
        got(std::move(got)) {}
  ErrorCode code;
  std::string field, expected, got;
};

// A pool (or the table, "blocks") that has not enough room.
class OutOfPagesError : public Error {
 public:
  OutOfPagesError(std::string pool, long long needed, long long free)
      : Error(ErrorCode::OutOfPages, pool == "blocks" ? pool : "pages[" + pool + "]",
              std::to_string(needed) + " free", std::to_string(free)),
        pool(std::move(pool)),
        needed(needed),
        free(free) {}
  std::string pool;
  long long needed, free;
};

[[noreturn]] inline void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "hybridkv: broken invariant at %s:%d: %s\n", file, line, what);
  std::abort();
}

}  // namespace hkv

#define HKV_CHECK(condition) ((condition) ? (void)0 : ::hkv::check_failed(#condition, __FILE__, __LINE__))
#ifdef NDEBUG
#define HKV_ASSERT(condition) ((void)0)
#else
#define HKV_ASSERT(condition) HKV_CHECK(condition)
#endif
