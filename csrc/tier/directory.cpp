// SPDX-License-Identifier: Apache-2.0
#include "tier/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace hkv {
namespace {

constexpr std::uint32_t usual_alignment = 4096;  // of every device and file system that does not tell

// Calls until a signal no longer interrupts. Returns: the result, or -errno.
template <class F>
auto retried(F call) -> decltype(call()) {
  for (;;) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

bool one_component(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

[[noreturn]] void refuse(const std::string& path, const char* expected, const std::string& got) {
  throw Error{ErrorCode::TierError, "path", expected, path + ": " + got};
}

// Returns: 0 or -errno.
int sync_parent(const std::string& path) {
  std::string parent = path;
  while (parent.size() > 1 && parent.back() == '/') parent.pop_back();
  const std::size_t slash = parent.rfind('/');
  parent = slash == std::string::npos ? "." : slash == 0 ? "/" : parent.substr(0, slash);
  const int fd = retried([&] { return ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) return fd;
  const int result = retried([&] { return ::fsync(fd); });
  ::close(fd);
  return result == -EINVAL ? 0 : result;  // the file system has no sync of directories
}

int open_directory_at(const std::string& path) {
  const bool made = retried([&] { return ::mkdir(path.c_str(), 0700); }) == 0;
  const int fd = retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) refuse(path, "a directory, or a name for one in a directory that is there", std::strerror(-fd));
  struct stat status{};
  const int known = retried([&] { return ::fstat(fd, &status); });
  const bool ours = status.st_uid == ::geteuid() || ::geteuid() == 0;
  if (known < 0 || !ours || (status.st_mode & 022) != 0) {
    ::close(fd);
    if (known < 0) refuse(path, "a directory that can be looked at", std::strerror(-known));
    if (!ours) refuse(path, "a directory of this user", "one of user " + std::to_string(status.st_uid));
    refuse(path, "a directory that only its owner can write (chmod go-w)", "one that others can write");
  }
  // Even if it was there: who made it may have been killed before this. Whoever may not read the parent did not make it.
  const int synced = sync_parent(path);
  if (synced < 0 && (made || (synced != -EACCES && synced != -EPERM))) {
    ::close(fd);
    refuse(path, "a directory whose parent can be synced", std::strerror(-synced));
  }
  return fd;
}

// What statx says of direct I/O: struct statx of headers that are older than the kernel lacks the fields.
struct DirectIo {
  bool told = false;
  IoAlignment alignment;  // 0, 0: not on this file
};
DirectIo ask_direct(int fd) {
  constexpr unsigned want = 0x2000;  // STATX_DIOALIGN
  constexpr std::size_t memory_at = 152, offset_at = 156;
  alignas(8) unsigned char status[256] = {};
  if (retried([&] { return ::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, want, status); }) < 0) return {};
  std::uint32_t mask = 0;
  std::memcpy(&mask, status, sizeof mask);
  DirectIo out;
  out.told = (mask & want) != 0;
  std::memcpy(&out.alignment.memory, status + memory_at, sizeof(std::uint32_t));
  std::memcpy(&out.alignment.offset, status + offset_at, sizeof(std::uint32_t));
  return out;
}

// Whether a direct read of the usual alignment is taken.
bool try_direct(int fd) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, usual_alignment, usual_alignment) != 0) return false;
  const auto got = retried([&] { return ::pread(fd, memory, usual_alignment, 0); });
  std::free(memory);
  return got != -EINVAL && got != -EOPNOTSUPP;
}

// The alignment of a file opened with O_DIRECT; takes the flag off where the file system cannot.
IoAlignment settle_direct(int fd) {
  const DirectIo direct = ask_direct(fd);
  if (direct.told && direct.alignment.memory != 0 && direct.alignment.offset != 0) return direct.alignment;
  if (!direct.told && try_direct(fd)) return {usual_alignment, usual_alignment};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags & ~O_DIRECT);
  return {};
}

}  // namespace

DirectoryIo::DirectoryIo(const std::string& path, bool direct) : direct_(direct) {
  if (path.empty() || path.find('\0') != std::string::npos) refuse(path, "the path of a directory", "none");
  directory_ = open_directory_at(path);
}

DirectoryIo::~DirectoryIo() {
  for (const File& file : files_) {
    if (file.descriptor >= 0) ::close(file.descriptor);
  }
  ::flock(directory_, LOCK_UN);  // a forked child may have the descriptor too
  ::close(directory_);
}

int DirectoryIo::open_descriptor(const std::string& name, Mode mode, File& file) const {
  if (!one_component(name)) return -EINVAL;
  if (mode != Mode::Create) {  // opening a FIFO or a device may wait or do something
    struct stat status{};
    const int known =
        retried([&] { return ::fstatat(directory_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW); });
    if (known < 0) return known;
    if (S_ISLNK(status.st_mode)) return -ELOOP;
    if (!S_ISREG(status.st_mode)) return -EINVAL;
  }
  int flags = O_CLOEXEC | O_NOFOLLOW | (mode == Mode::Read ? O_RDONLY : O_RDWR);
  if (mode == Mode::Create) flags |= O_CREAT | O_EXCL;
  const auto open_with = [&](int more) {
    return retried([&] { return ::openat(directory_, name.c_str(), flags | more, 0600); });
  };
  int fd = open_with(direct_ ? O_DIRECT : 0);
  if (fd == -EINVAL && direct_) {  // no direct I/O there; some have made the file before they say so
    fd = open_with(0);
    if (fd == -EEXIST) {
      flags &= ~(O_CREAT | O_EXCL);
      fd = open_with(0);
    }
  } else if (fd >= 0 && direct_) {
    file.alignment = settle_direct(fd);
  }
  if (fd < 0) return fd;
  file.descriptor = fd;
  return 0;
}

int DirectoryIo::open(const std::string& name, Mode mode, FileId& out) {
  out = no_file;
  std::size_t at = 0;
  while (at < files_.size() && files_[at].descriptor >= 0) ++at;
  if (at == files_.size()) files_.emplace_back();
  files_[at] = {};
  const int result = open_descriptor(name, mode, files_[at]);
  if (result == 0) out = FileId{static_cast<std::int32_t>(at)};
  return result;
}

int DirectoryIo::close(FileId file) {
  const int fd = descriptor(file);
  if (fd < 0) return -EBADF;
  files_[static_cast<std::size_t>(file)] = {};
  return ::close(fd) < 0 && errno != EINTR ? -errno : 0;  // closed even then
}

int DirectoryIo::remove(const std::string& name) {
  if (!one_component(name)) return -EINVAL;
  return retried([&] { return ::unlinkat(directory_, name.c_str(), 0); });
}

int DirectoryIo::rename(const std::string& from, const std::string& to) {
  if (!one_component(from) || !one_component(to)) return -EINVAL;
  return retried([&] { return ::renameat(directory_, from.c_str(), directory_, to.c_str()); });
}

int DirectoryIo::list(std::vector<std::string>& out) {
  out.clear();
  // A description of its own: reading moves the offset.
  const int fd = retried([&] { return ::openat(directory_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) return fd;
  DIR* stream = ::fdopendir(fd);
  if (stream == nullptr) {
    const int error = errno;
    ::close(fd);
    return -error;
  }
  int result = 0;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream);
    if (entry == nullptr) {
      result = -errno;
      break;
    }
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) {
      out.emplace_back(entry->d_name);
    }
  }
  ::closedir(stream);
  return result;
}

int DirectoryIo::size(FileId file, std::uint64_t& out) {
  struct stat status{};
  const int fd = descriptor(file);
  if (fd < 0) return -EBADF;
  const int result = retried([&] { return ::fstat(fd, &status); });
  if (result == 0) out = static_cast<std::uint64_t>(status.st_size);
  return result;
}

int DirectoryIo::sync_directory() {
  return retried([&] { return ::fsync(directory_); });
}

int DirectoryIo::lock() {
  return retried([&] { return ::flock(directory_, LOCK_EX | LOCK_NB); });
}

// The kernel's list of locks names each by the device and inode of its file. Where the file system tells another device
// (as btrfs does), where the list is not to be read, or the owner is in another namespace of processes, nobody knows.
int DirectoryIo::locked_by() {
  struct stat status{};
  if (retried([&] { return ::fstat(directory_, &status); }) != 0) return 0;
  std::FILE* locks = std::fopen("/proc/locks", "re");
  if (locks == nullptr) return 0;
  int owner = 0;
  char line[256];
  while (owner <= 0 && std::fgets(line, sizeof line, locks) != nullptr) {
    int pid = 0;
    unsigned major_number = 0, minor_number = 0;
    unsigned long long inode = 0;
    if (std::sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid, &major_number, &minor_number, &inode) ==
            4 &&
        makedev(major_number, minor_number) == status.st_dev && inode == status.st_ino)
      owner = pid;
  }
  std::fclose(locks);
  return std::max(owner, 0);
}

std::uint64_t DirectoryIo::free_bytes() {
  struct statvfs status{};
  if (retried([&] { return ::fstatvfs(directory_, &status); }) < 0) return ~std::uint64_t{0};
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

IoAlignment DirectoryIo::alignment(FileId file) {
  return descriptor(file) < 0 ? IoAlignment{} : files_[static_cast<std::size_t>(file)].alignment;
}

int DirectoryIo::descriptor(FileId file) const {
  const auto at = static_cast<std::size_t>(file);  // no_file is beyond every file
  return at < files_.size() ? files_[at].descriptor : -1;
}

int DirectoryIo::extend(int descriptor, std::uint64_t length) {
  struct stat status{};
  const int known = retried([&] { return ::fstat(descriptor, &status); });
  if (known < 0 || static_cast<std::uint64_t>(status.st_size) >= length) return known;
  return retried([&] { return ::ftruncate(descriptor, static_cast<off_t>(length)); });
}

}  // namespace hkv
