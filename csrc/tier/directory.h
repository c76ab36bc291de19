// SPDX-License-Identifier: Apache-2.0
// The blocking half of an Io: names in one directory, whatever engine moves the bytes.
//
// Thread safety: as Io; `close_all` and the destructor when nothing is under way.
//
// Invariants, and why each holds:
//  1. No file outside the directory is opened, made, renamed or removed: names are single components, every call is
//     relative to the directory's descriptor, and a symbolic link is not followed (O_NOFOLLOW).
//  2. Nobody else writes in the directory: it is made with mode 0700 and files with 0600; one that is there must belong
//     to this user (or this user is root) and not be writable by group or others. The path itself may lead through
//     symbolic links, as that of PostgreSQL's data directory may: whoever may place them may also name another path.
//  3. What is durable in the directory is not lost with the directory's own name: its parent is synced at every opening.
//  4. At most one Io has the lock: flock of the directory itself, which no removed lock file can get around. A child
//     that this process forks holds it too, until it ends or the Io is destroyed.
//  5. A file that is opened for direct I/O can do it with the alignment told: the kernel says so, or a read was tried.
#pragma once
#include <string>
#include <vector>

#include "tier/io.h"

namespace hkv {

class DirectoryIo : public Io {
 public:
  // Throws TierError("path"): cannot be made or opened, or not this user's alone. Only the last component is made.
  DirectoryIo(const std::string& path, bool direct);
  ~DirectoryIo() override;
  DirectoryIo(const DirectoryIo&) = delete;
  DirectoryIo& operator=(const DirectoryIo&) = delete;

  int open(const std::string& name, Mode mode, FileId& out) override;
  int close(FileId file) override;
  int remove(const std::string& name) override;
  int rename(const std::string& from, const std::string& to) override;
  int list(std::vector<std::string>& out) override;
  int size(FileId file, std::uint64_t& out) override;
  int sync_directory() override;
  int lock() override;
  int locked_by() override;
  std::uint64_t free_bytes() override;
  IoAlignment alignment(FileId file) override;

 protected:
  // The descriptor of a file that is open, else -1.
  int descriptor(FileId file) const;
  // What Allocate falls back to where the file system cannot preallocate: the file has the length, and a write may find
  // the device full. Returns: 0 or -errno.
  static int extend(int descriptor, std::uint64_t length);

 private:
  struct File {
    int descriptor = -1;
    IoAlignment alignment;
  };
  int open_descriptor(const std::string& name, Mode mode, File& file) const;

  int directory_ = -1;
  bool direct_;
  std::vector<File> files_;  // by FileId; closed ones are used again
};

}  // namespace hkv
