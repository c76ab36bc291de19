// SPDX-License-Identifier: Apache-2.0
// What the operating system refuses, forbids or takes away: paths, links, modes, full and odd file systems, sandboxes,
// signals, other processes. What needs root says so where it is skipped.
#include "tier/directory.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>

#include "base/check.h"
#include "testing.h"
#include "tier/aligned_memory.h"
#include "tier/io_calls.h"
#include "tier/scratch_directory.h"
#include "tier/thread_io.h"
#include "tier/uring_io.h"

namespace hkv {
namespace {

using namespace std::chrono_literals;
using Mode = Io::Mode;
using Op = IoRequest::Op;

constexpr std::size_t unit = 4096;

// The field of the TierError that opening throws, "" where it throws none.
std::string refused_field(const std::string& path, IoEngine engine = IoEngine::Threads) {
  try {
    open_directory(path, engine, true, 4);
  } catch (const Error& error) {
    EXPECT(error.code == ErrorCode::TierError);
    EXPECT(!error.expected.empty() && !error.got.empty());
    return error.field;
  }
  return "";
}

// Whether the kernel's list of locks has one of this very inode and device, as a person would look for it.
bool locks_name(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return false;
  char name[64];
  std::snprintf(name, sizeof name, " %02x:%02x:%llu ", major(status.st_dev), minor(status.st_dev),
                static_cast<unsigned long long>(status.st_ino));
  std::ifstream locks("/proc/locks");
  const std::string all{std::istreambuf_iterator<char>(locks), {}};
  return all.find(name) != std::string::npos;
}

// Runs `body` in a process of its own, whose failed expectations count here.
void in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    testing::failures = 0;
    try {
      body();
    } catch (const std::exception& error) {
      testing::fail(__FILE__, __LINE__, std::string("threw ") + error.what());
    }
    std::fflush(nullptr);
    ::_exit(testing::failures == 0 ? 0 : 1);
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A file system mounted for one process and its threads alone. Returns whether it could be, and says why not.
bool mount_apart(const std::string& where, const char* type, const char* options) {
  if (::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      ::mount("none", where.c_str(), type, 0, options) == 0) {
    return true;
  }
  std::printf("skipped: %s cannot be mounted (%s), needs root\n", type, std::strerror(errno));
  return false;
}

// Lets one system call fail with `error` from now on, for this process.
void forbid(long call, int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  EXPECT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EXPECT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

unsigned mode_of(const std::string& path) {
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

}  // namespace

HKV_TEST("a directory is made for this user alone, its files too, whatever the umask") {
  const ScratchDirectory scratch;
  const mode_t before = ::umask(0);
  {
    const auto io = open_directory(scratch / "store", IoEngine::Threads, true, 4);
    created(*io, "f");
  }
  ::umask(before);
  EXPECT_EQ(mode_of(scratch / "store"), 0700u);
  EXPECT_EQ(mode_of(scratch / "store/f"), 0600u);
  EXPECT_EQ(refused_field(scratch / "store"), "");
  EXPECT_EQ(refused_field(scratch / "store/"), "");
}

HKV_TEST("a path that cannot be had is refused, and nothing is made") {
  const ScratchDirectory scratch;
  EXPECT_EQ(refused_field(""), "path");
  EXPECT_EQ(refused_field(scratch / "no/store"), "path");
  EXPECT_EQ(refused_field(std::string(scratch / "a") + '\0' + "b"), "path");
  {
    const auto io = open_directory(scratch.path(), IoEngine::Threads, true, 4);
    created(*io, "file");
    std::vector<std::string> names;
    EXPECT_EQ(io->list(names), 0);
    EXPECT(names == std::vector<std::string>{"file"});
  }
  EXPECT_EQ(refused_field(scratch / "file"), "path");
  EXPECT_EQ(refused_field(scratch / "file/store"), "path");
  EXPECT_EQ(::chmod(scratch.path().c_str(), 0770), 0);
  EXPECT_EQ(refused_field(scratch.path()), "path");
  EXPECT_EQ(::chmod(scratch.path().c_str(), 01707), 0);
  EXPECT_EQ(refused_field(scratch.path()), "path");
  EXPECT_EQ(::chmod(scratch.path().c_str(), 0755), 0);
  EXPECT_EQ(refused_field(scratch.path()), "");
  try {
    open_directory(scratch.path(), IoEngine::Threads, true, 0);
    EXPECT(!"a depth of 0 was taken");
  } catch (const Error& error) {
    EXPECT_EQ(error.field, "depth");
  }
}

HKV_TEST("another user's directory is refused, but to root") {
  if (::geteuid() != 0) {
    std::printf("skipped: needs root to have another user\n");
    return;
  }
  const ScratchDirectory scratch;
  EXPECT_EQ(::chmod(scratch.path().c_str(), 0755), 0);
  const int here = ::open(scratch.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  in_child([&] {  // by a path that nobody's rights are asked about
    EXPECT_EQ(::fchdir(here), 0);
    EXPECT_EQ(::setuid(65534), 0);
    EXPECT_EQ(refused_field("."), "path");
  });
  EXPECT_EQ(::fchown(here, 65534, 65534), -1);  // O_PATH cannot
  EXPECT_EQ(::chown(scratch.path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(refused_field(scratch.path()), "");
  in_child([&] {
    EXPECT_EQ(::fchdir(here), 0);
    EXPECT_EQ(::setuid(65534), 0);
    EXPECT_EQ(refused_field("."), "");
  });
  ::close(here);
}

HKV_TEST("links are not followed, and what is no file is not opened") {
  const ScratchDirectory scratch, elsewhere;
  EXPECT_EQ(::symlink((elsewhere / "target").c_str(), (scratch / "dangling").c_str()), 0);
  const int target = ::open((elsewhere / "there").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  EXPECT(target >= 0);
  ::close(target);
  EXPECT_EQ(::symlink((elsewhere / "there").c_str(), (scratch / "link").c_str()), 0);
  EXPECT_EQ(::mkfifo((scratch / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(::mkdir((scratch / "folder").c_str(), 0700), 0);
  const auto io = open_directory(scratch.path(), IoEngine::Threads, true, 4);
  FileId file = no_file;
  EXPECT_EQ(io->open("link", Mode::Read, file), -ELOOP);
  EXPECT_EQ(io->open("link", Mode::Write, file), -ELOOP);
  EXPECT_EQ(io->open("dangling", Mode::Create, file), -EEXIST);
  EXPECT(::access((elsewhere / "target").c_str(), F_OK) != 0);
  EXPECT_EQ(io->open("fifo", Mode::Write, file), -EINVAL);
  EXPECT_EQ(io->open("folder", Mode::Read, file), -EINVAL);
  EXPECT_EQ(io->remove("folder"), -EISDIR);
  EXPECT_EQ(io->rename("fifo", "../fifo"), -EINVAL);
  EXPECT_EQ(io->remove("../x"), -EINVAL);
  // The path itself may lead through one.
  EXPECT_EQ(::symlink(std::filesystem::absolute(scratch.path()).c_str(), (elsewhere / "way").c_str()), 0);
  EXPECT_EQ(refused_field(elsewhere / "way"), "");
}

HKV_TEST(
    "io_uring forbidden in any of its calls: threads where anything will do, else an error that says so") {
  for (const long call : {uring::setup_call, uring::enter_call, uring::register_call}) {
    for (const int error : {EPERM, ENOSYS}) {
      in_child([&] {
        const ScratchDirectory scratch;
        forbid(call, error);
        EXPECT_EQ(refused_field(scratch.path(), IoEngine::Uring), "engine");
        const auto io = open_directory(scratch.path(), IoEngine::Auto, true, 4);
        EXPECT_EQ(std::string(io->name()), "threads");
        if (std::string(io->name()) != "threads") return;  // rather than wait for what nobody submits
        AlignedMemory memory(unit);
        EXPECT_EQ(moved(*io, Op::Write, created(*io, "f"), 0, {memory.piece(0, unit)}), std::int64_t{unit});
      });
    }
  }
  const ScratchDirectory scratch;
  EXPECT_EQ(refused_field(scratch / "no/store", IoEngine::Auto), "path");
}

HKV_TEST("another process has the directory until it is killed") {
  const ScratchDirectory scratch;
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto io = open_directory(scratch.path(), IoEngine::Threads, true, 1);
    const char answer = io->lock() == 0 ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) == 1) ::pause();
    ::_exit(1);
  }
  char answer = 0;
  EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  const auto io = open_directory(scratch.path(), IoEngine::Threads, true, 1);
  EXPECT_EQ(io->lock(), -EWOULDBLOCK);
  const bool told = locks_name(scratch.path());
  EXPECT_EQ(io->locked_by(), told ? child : 0);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  const ScratchDirectory beside;
  const auto other = open_directory(beside.path(), IoEngine::Threads, true, 1);
  EXPECT_EQ(other->lock(), 0);
  EXPECT_EQ(io->locked_by(), 0);
  EXPECT_EQ(io->lock(), 0);
  EXPECT_EQ(io->locked_by(), told ? ::getpid() : 0);
  if (!told) std::printf("     left out: this file system does not say whose lock it is\n");
  ::close(ready[0]);
  ::close(ready[1]);
}

HKV_TEST("a lock ends with its Io although a forked child lives on") {
  const ScratchDirectory scratch;
  auto io = open_directory(scratch.path(), IoEngine::Threads, true, 1);
  EXPECT_EQ(io->lock(), 0);
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char end = 0;
    ::close(ready[1]);
    ::_exit(::read(ready[0], &end, 1) == 0 ? 0 : 1);
  }
  io.reset();
  io = open_directory(scratch.path(), IoEngine::Threads, true, 1);
  EXPECT_EQ(io->lock(), 0);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

HKV_TEST("a directory that is deleted under us gives errors, and files that are open go on") {
  const ScratchDirectory scratch;
  for_each_engine([&](const char* name, auto open) {
    const std::string path = scratch / name;
    const auto io = open(path, true);
    const FileId file = created(*io, "f");
    std::filesystem::remove_all(path);
    AlignedMemory memory(unit);
    EXPECT_EQ(moved(*io, Op::Write, file, 0, {memory.piece(0, unit)}), std::int64_t{unit});
    EXPECT_EQ(synced(*io, file), 0);
    FileId other = no_file;
    EXPECT_EQ(io->open("f", Mode::Read, other), -ENOENT);
    EXPECT_EQ(io->open("g", Mode::Create, other), -ENOENT);
    EXPECT_EQ(io->remove("f"), -ENOENT);
    EXPECT_EQ(io->rename("f", "g"), -ENOENT);
    std::vector<std::string> names = {"x"};
    EXPECT(io->list(names) <= 0);
    EXPECT(names.empty());
    EXPECT(io->sync_directory() <= 0);
    EXPECT(io->free_bytes() > 0);
    EXPECT_EQ(io->lock(), 0);
    EXPECT_EQ(io->close(file), 0);
  });
}

HKV_TEST("a full file system: -ENOSPC or a short write, and what was written stays") {
  const ScratchDirectory scratch;
  in_child([&] {
    if (!mount_apart(scratch.path(), "tmpfs", "size=64k,mode=0700")) return;
    for_each_engine([&](const char* name, auto open) {
      const auto io = open(scratch.path(), true);
      const FileId file = created(*io, name);
      EXPECT(io->free_bytes() <= 64 * 1024);
      AlignedMemory out(128 * 1024), in(unit);
      out.fill(5);
      EXPECT_EQ(moved(*io, Op::Write, file, 0, {out.piece(0, unit)}), std::int64_t{unit});
      EXPECT_EQ(allocated(*io, file, 0, 1024 * 1024), std::int64_t{-ENOSPC});
      const std::int64_t some = moved(*io, Op::Write, file, unit, {out.piece(unit, 124 * 1024)});
      EXPECT(some == -ENOSPC || (some > 0 && some < 124 * 1024));
      EXPECT_EQ(moved(*io, Op::Write, file, 1024 * 1024, {out.piece(0, unit)}), std::int64_t{-ENOSPC});
      EXPECT_EQ(moved(*io, Op::Read, file, 0, {in.piece(0, unit)}), std::int64_t{unit});
      EXPECT(std::memcmp(in.data(), out.data(), unit) == 0);
      EXPECT_EQ(io->close(file), 0);
      EXPECT_EQ(io->remove(name), 0);
    });
  });
}

HKV_TEST("a file system without direct I/O and preallocation: through the page cache, the length alone") {
  const ScratchDirectory scratch;
  in_child([&] {
    if (!mount_apart(scratch.path(), "ramfs", "mode=0700")) return;
    for_each_engine([&](const char* name, auto open) {
      const auto io = open(scratch.path(), true);
      const FileId file = created(*io, name);
      EXPECT_EQ(io->alignment(file).memory, 1u);
      EXPECT_EQ(io->alignment(file).offset, 1u);
      FileId again = no_file;
      EXPECT_EQ(io->open(name, Mode::Create, again), -EEXIST);
      EXPECT_EQ(allocated(*io, file, unit, unit), 0);
      std::uint64_t bytes = 0;
      EXPECT_EQ(io->size(file, bytes), 0);
      EXPECT_EQ(bytes, std::uint64_t{2 * unit});
      EXPECT_EQ(allocated(*io, file, 0, unit), 0);
      EXPECT_EQ(io->size(file, bytes), 0);
      EXPECT_EQ(bytes, std::uint64_t{2 * unit});  // never shorter
      AlignedMemory memory(unit);
      EXPECT_EQ(moved(*io, Op::Write, file, 7, {memory.piece(1, 9)}), 9);
      EXPECT_EQ(io->open(name, Mode::Write, again), 0);
      EXPECT_EQ(io->alignment(again).offset, 1u);
    });
  });
}

HKV_TEST("on a disk, direct I/O is what was asked for") {
  const ScratchDirectory scratch;
  const int fd = ::open((scratch / "probe").c_str(), O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) {
    std::printf("skipped: no direct I/O here (%s); HKV_SCRATCH names another directory\n",
                std::strerror(errno));
    return;
  }
  ::close(fd);
  for_each_engine([&](const char* name, auto open) {
    const auto direct = open(scratch.path(), true), buffered = open(scratch.path(), false);
    const FileId file = created(*direct, name);
    EXPECT(direct->alignment(file).offset > 1);
    EXPECT(direct->alignment(file).offset <= unit);
    AlignedMemory memory(unit);
    EXPECT_EQ(moved(*direct, Op::Write, file, 0, {memory.piece(0, unit)}), std::int64_t{unit});
    EXPECT_EQ(moved(*direct, Op::Read, file, 1, {memory.piece(0, unit)}), std::int64_t{-EINVAL});
    FileId same = no_file;
    EXPECT_EQ(buffered->open(name, Mode::Write, same), 0);
    EXPECT_EQ(buffered->alignment(same).offset, 1u);
    EXPECT_EQ(buffered->alignment(same).memory, 1u);
    EXPECT_EQ(moved(*buffered, Op::Read, same, 1, {memory.piece(1, unit - 1)}), std::int64_t{unit - 1});
  });
}

HKV_TEST("signals interrupt nothing") {
  const ScratchDirectory scratch;
  struct sigaction action{}, before{};
  static volatile sig_atomic_t signals = 0;
  action.sa_handler = [](int) { signals = signals + 1; };  // without SA_RESTART
  EXPECT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 500}, {0, 500}}, never{};
  EXPECT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  for_each_engine([&](const char* name, auto open) {
    const auto io = open(scratch.path(), true);
    const FileId file = created(*io, name);
    AlignedMemory memory(16 * unit);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(moved(*io, Op::Write, file, 0, {memory.piece(0, 16 * unit)}), std::int64_t{16 * unit});
      EXPECT_EQ(synced(*io, file), 0);
      EXPECT_EQ(io->sync_directory(), 0);
    }
    IoRequest* out[1] = {};
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(io->wait(out, 30ms), 0u);
    EXPECT(std::chrono::steady_clock::now() - begin >= 30ms);
  });
  EXPECT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
  EXPECT_EQ(::sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT(signals > 10);
}

HKV_TEST("what is under way is done before the Io is gone") {
  const ScratchDirectory scratch;
  for_each_engine([&](const char* name, auto open) {
    AlignedMemory out(8 * unit), in(8 * unit);
    out.fill(9);
    std::vector<IoRequest> requests(8);
    std::vector<iovec> pieces(8);
    {
      const auto io = open(scratch.path(), true);
      const FileId file = created(*io, name);
      for (std::size_t i = 0; i < 8; ++i) {
        pieces[i] = out.piece(i * unit, unit);
        requests[i] = {Op::Write, file, i * unit, unit, {&pieces[i], 1}, nullptr, 0};
        io->submit(&requests[i]);
      }
      io->wake();
    }
    const auto io = open(scratch.path(), true);
    FileId file = no_file;
    EXPECT_EQ(io->open(name, Mode::Read, file), 0);
    EXPECT_EQ(moved(*io, Op::Read, file, 0, {in.piece(0, 8 * unit)}), std::int64_t{8 * unit});
    EXPECT(std::memcmp(in.data(), out.data(), in.size()) == 0);
  });
}

HKV_TEST("too few descriptors: -EMFILE of a file, an error of an Io, and nothing leaks") {
  const ScratchDirectory scratch;
  in_child([&] {
    const rlimit few{16, 16};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int round = 0; round < 50; ++round) {  // each would leak some of 16
      for_each_engine([&](const char*, auto open) {
        const auto io = open(scratch.path(), true);
        FileId file = no_file;
        created(*io, "f");
        EXPECT_EQ(io->remove("f"), 0);
        EXPECT_EQ(io->open("none", Mode::Read, file), -ENOENT);
      });
      EXPECT_EQ(refused_field(scratch / "no/store"), "path");
    }
    const auto io = open_directory(scratch.path(), IoEngine::Threads, true, 1);
    int result = 0, files = 0;
    for (FileId file = no_file; result == 0 && files < 20; ++files) {
      result = io->open("f" + std::to_string(files), Mode::Create, file);
    }
    EXPECT_EQ(result, -EMFILE);
    EXPECT_EQ(refused_field(scratch.path(), IoEngine::Auto), "path");
  });
}

}  // namespace hkv
