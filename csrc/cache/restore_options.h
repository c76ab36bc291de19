// SPDX-License-Identifier: Apache-2.0
// What a restore may make usable, and what each length takes: for who weighs loading against computing.
//
// Thread safety: values.
#pragma once
#include <cstdint>
#include <vector>

namespace hkv {

struct RestoreOption {
  std::int64_t tokens = 0;
  std::vector<std::int64_t> pages;  // to be loaded, by group
  // Where the engine resumes then: below `tokens` where groups that can be computed again are not in the record.
  std::int64_t resume_tokens = 0;
};

}  // namespace hkv
