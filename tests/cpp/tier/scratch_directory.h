// SPDX-License-Identifier: Apache-2.0
// A directory of a test alone, removed with all that is in it. Where: $HKV_SCRATCH, else the working directory, which
// lies on a disk more often than the directory for temporary files does.
//
// Thread safety: a value that one thread has.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace hkv {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    const char* wish = std::getenv("HKV_SCRATCH");
    path_ = std::string(wish != nullptr ? wish : ".") + "/hkv-scratch-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no directory for a test: " + path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace hkv
