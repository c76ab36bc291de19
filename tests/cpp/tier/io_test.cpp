// SPDX-License-Identifier: Apache-2.0
// One contract for every Io: io_uring in both ways of waiting, threads, and the simulated disk; direct and buffered.
#include "tier/io.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "testing.h"
#include "tier/aligned_memory.h"
#include "tier/io_calls.h"
#include "tier/scratch_directory.h"
#include "tier/simulated_io.h"
#include "tier/uring_abi_check.h"

namespace hkv {
namespace {

using namespace std::chrono_literals;
using Mode = Io::Mode;
using Op = IoRequest::Op;

// A kind of Io that the contract is run on.
struct Subject {
  const char* name;
  // A new Io on the same directory as those made before of the same world.
  std::function<std::unique_ptr<Io>()> another;
};

// Runs `body` on each kind; `body` gets a maker of Ios that share a fresh directory.
void each(const std::function<void(const Subject&)>& body) {
  for (const bool direct : {true, false}) {
    const ScratchDirectory scratch;
    std::vector<Subject> subjects;
    for_each_engine([&](const char* name, auto open) {
      const std::string path = scratch / name;
      subjects.push_back({name, [=] { return open(path, direct); }});
    });
    SimulatedDiskOptions options;
    if (!direct) options.alignment = 1;
    SimulatedIo simulated{SimulatedDisk(options), 8};
    struct Beside final : Io {  // the simulated one is shared: its directory is within it
      explicit Beside(SimulatedIo& io) : io(io) {}
      int open(const std::string& name, Mode mode, FileId& out) override { return io.open(name, mode, out); }
      int close(FileId file) override { return io.close(file); }
      int remove(const std::string& name) override { return io.remove(name); }
      int rename(const std::string& from, const std::string& to) override { return io.rename(from, to); }
      int list(std::vector<std::string>& out) override { return io.list(out); }
      int size(FileId file, std::uint64_t& out) override { return io.size(file, out); }
      int sync_directory() override { return io.sync_directory(); }
      int lock() override { return lock_holder().lock(); }
      std::uint64_t free_bytes() override { return io.free_bytes(); }
      IoAlignment alignment(FileId file) override { return io.alignment(file); }
      void submit(IoRequest* request) override { io.submit(request); }
      std::size_t depth() const override { return io.depth(); }
      std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) override {
        return io.wait(out, at_most);
      }
      void wake() override { io.wake(); }
      const char* name() const override { return io.name(); }
      SimulatedIo& lock_holder() {
        if (!holder) holder = std::make_unique<SimulatedIo>(SimulatedDisk{}, 1, &io);
        return *holder;
      }
      SimulatedIo& io;
      std::unique_ptr<SimulatedIo> holder;
    };
    subjects.push_back({"simulated", [&] { return std::make_unique<Beside>(simulated); }});
    for (const Subject& subject : subjects) {
      const int before = testing::failures;
      body(subject);
      if (testing::failures != before) {
        std::fprintf(stderr, "  of %s, %s\n", subject.name, direct ? "direct" : "buffered");
      }
    }
  }
}

std::vector<std::string> names(Io& io) {
  std::vector<std::string> out;
  EXPECT_EQ(io.list(out), 0);
  std::sort(out.begin(), out.end());
  return out;
}

constexpr std::size_t unit = 4096;

}  // namespace

HKV_TEST("names: made once, found, renamed over another, listed, removed") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    FileId file = no_file, other = no_file;
    EXPECT_EQ(io->open("a", Mode::Read, file), -ENOENT);
    EXPECT(file == no_file);
    file = created(*io, "a");
    EXPECT_EQ(io->open("a", Mode::Create, other), -EEXIST);
    EXPECT_EQ(io->open("a", Mode::Write, other), 0);
    EXPECT(other != file);
    EXPECT_EQ(io->close(other), 0);
    EXPECT_EQ(io->close(other), -EBADF);
    EXPECT_EQ(io->close(no_file), -EBADF);
    other = created(*io, "b");
    AlignedMemory memory(unit);
    memory.fill(1);
    EXPECT_EQ(moved(*io, Op::Write, other, 0, {memory.piece(0, unit)}), std::int64_t{unit});
    EXPECT(names(*io) == (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(io->rename("b", "a"), 0);
    EXPECT_EQ(io->rename("b", "a"), -ENOENT);
    EXPECT(names(*io) == (std::vector<std::string>{"a"}));
    std::uint64_t bytes = 1;
    EXPECT_EQ(io->size(file, bytes), 0);  // the old one, which has no name any more
    EXPECT_EQ(bytes, 0u);
    FileId again = no_file;
    EXPECT_EQ(io->open("a", Mode::Read, again), 0);
    EXPECT_EQ(io->size(again, bytes), 0);
    EXPECT_EQ(bytes, std::uint64_t{unit});
    EXPECT_EQ(io->sync_directory(), 0);
    EXPECT_EQ(io->remove("a"), 0);
    EXPECT_EQ(io->remove("a"), -ENOENT);
    EXPECT(names(*io).empty());
    EXPECT_EQ(moved(*io, Op::Read, again, 0, {memory.piece(0, unit)}), std::int64_t{unit});
    for (const FileId id : {file, other, again}) EXPECT_EQ(io->close(id), 0);
    EXPECT_EQ(io->size(again, bytes), -EBADF);
    EXPECT(io->free_bytes() > 0);
  });
}

HKV_TEST("names that leave the directory are refused") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    FileId file = no_file;
    for (const char* name : {"", ".", "..", "../x", "a/b", "/x"}) {
      EXPECT_EQ(io->open(name, Mode::Create, file), -EINVAL);
      EXPECT(file == no_file);
    }
  });
}

HKV_TEST("what is written is read: one piece, several, at an offset, after a sync and by another") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    const FileId file = created(*io, "f");
    const IoAlignment alignment = io->alignment(file);
    EXPECT(alignment.memory <= unit && alignment.offset <= unit && alignment.memory > 0 &&
           alignment.offset > 0);
    EXPECT_EQ(allocated(*io, file, 0, 16 * unit), 0);
    std::uint64_t bytes = 0;
    EXPECT_EQ(io->size(file, bytes), 0);
    EXPECT_EQ(bytes, std::uint64_t{16 * unit});
    AlignedMemory out(8 * unit), in(8 * unit), zeros(8 * unit);
    out.fill(7);
    EXPECT_EQ(moved(*io, Op::Write, file, 2 * unit, {out.piece(0, unit)}), std::int64_t{unit});
    EXPECT_EQ(moved(*io, Op::Write, file, 3 * unit,
                    {out.piece(unit, unit), out.piece(4 * unit, 4 * unit), out.piece(2 * unit, 2 * unit)}),
              std::int64_t{7 * unit});
    EXPECT_EQ(synced(*io, file), 0);
    EXPECT_EQ(moved(*io, Op::Read, file, 2 * unit,
                    {in.piece(0, 2 * unit), in.piece(4 * unit, 4 * unit), in.piece(2 * unit, 2 * unit)}),
              std::int64_t{8 * unit});
    EXPECT(std::memcmp(out.data(), in.data(), 8 * unit) == 0);
    EXPECT_EQ(moved(*io, Op::Read, file, 10 * unit, {in.piece(0, 6 * unit)}), std::int64_t{6 * unit});
    EXPECT(std::memcmp(in.data(), zeros.data(), 6 * unit) == 0);
    const auto beside = subject.another();
    FileId same = no_file;
    EXPECT_EQ(beside->open("f", Mode::Read, same), 0);
    EXPECT_EQ(moved(*beside, Op::Read, same, 2 * unit, {in.piece(0, unit)}), std::int64_t{unit});
    EXPECT(std::memcmp(out.data(), in.data(), unit) == 0);
    EXPECT_EQ(beside->close(same), 0);
    EXPECT_EQ(io->close(file), 0);
  });
}

HKV_TEST("a read is short at the end of the file and 0 behind it; what cannot be is -errno") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    const FileId file = created(*io, "f");
    AlignedMemory memory(4 * unit);
    EXPECT_EQ(moved(*io, Op::Write, file, 0, {memory.piece(0, 2 * unit)}), std::int64_t{2 * unit});
    EXPECT_EQ(moved(*io, Op::Read, file, unit, {memory.piece(0, 2 * unit), memory.piece(2 * unit, unit)}),
              std::int64_t{unit});
    EXPECT_EQ(moved(*io, Op::Read, file, 8 * unit, {memory.piece(0, unit)}), 0);
    EXPECT_EQ(moved(*io, Op::Read, no_file, 0, {memory.piece(0, unit)}), std::int64_t{-EBADF});
    EXPECT_EQ(synced(*io, no_file), std::int64_t{-EBADF});
    FileId reader = no_file;
    EXPECT_EQ(io->open("f", Mode::Read, reader), 0);
    EXPECT_EQ(moved(*io, Op::Write, reader, 0, {memory.piece(0, unit)}), std::int64_t{-EBADF});
    EXPECT_EQ(allocated(*io, reader, 0, unit), std::int64_t{-EBADF});
    const IoAlignment alignment = io->alignment(file);
    if (alignment.offset > 1) {
      EXPECT_EQ(moved(*io, Op::Read, file, 1, {memory.piece(0, unit)}), std::int64_t{-EINVAL});
      EXPECT_EQ(moved(*io, Op::Write, file, 0, {memory.piece(0, alignment.offset / 2)}),
                std::int64_t{-EINVAL});
      EXPECT_EQ(moved(*io, Op::Read, file, 0, {memory.piece(0, alignment.offset)}),
                std::int64_t{alignment.offset});
    } else {
      memory.fill(3);
      EXPECT_EQ(moved(*io, Op::Write, file, 5, {memory.piece(1, 3)}), 3);
      AlignedMemory in(16);
      EXPECT_EQ(moved(*io, Op::Read, file, 5, {in.piece(0, 3)}), 3);
      EXPECT(std::memcmp(in.data(), memory.data() + 1, 3) == 0);
    }
    EXPECT_EQ(io->close(file), 0);
    EXPECT_EQ(io->close(reader), 0);
  });
}

HKV_TEST("as many at a time as it takes, each given back once, in parts as small as asked for") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    const FileId file = created(*io, "f");
    const std::size_t depth = io->depth();
    AlignedMemory out(depth * unit), in(depth * unit);
    for (unsigned round = 0; round < 20; ++round) {
      out.fill(round);
      std::vector<IoRequest> requests(depth);
      std::vector<iovec> pieces(depth);
      for (std::size_t i = 0; i < depth; ++i) {
        const bool read = round % 2 == 1;
        pieces[i] = (read ? in : out).piece(i * unit, unit);
        requests[i].op = read ? Op::Read : Op::Write;
        requests[i].file = file;
        requests[i].offset = i * unit;
        requests[i].bytes = unit;
        requests[i].pieces = {&pieces[i], 1};
        requests[i].owner = &requests[i];
        io->submit(&requests[i]);
      }
      std::vector<IoRequest*> got;
      while (got.size() < depth) {
        IoRequest* some[3] = {};
        const std::size_t count = io->wait({some, 1 + got.size() % 3}, 10s);
        EXPECT(count >= 1 && count <= 1 + got.size() % 3);
        if (count == 0) return;
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_EQ(some[i]->result, std::int64_t{unit});
          EXPECT(some[i]->owner == some[i]);
          got.push_back(some[i]);
        }
      }
      std::sort(got.begin(), got.end());
      for (std::size_t i = 0; i < depth; ++i) EXPECT(got[i] == &requests[i]);
      if (round % 2 == 1) {
        out.fill(round - 1);
        EXPECT(std::memcmp(in.data(), out.data(), in.size()) == 0);
      }
    }
    IoRequest* none[1] = {};
    EXPECT_EQ(io->wait(none, 0ns), 0u);
    EXPECT_EQ(io->close(file), 0);
  });
}

HKV_TEST("a wait ends in time, at a wake during it, and at once after a wake before it") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    IoRequest* out[1] = {};
    const auto waited = [&](std::chrono::nanoseconds at_most) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(io->wait(out, at_most), 0u);
      return std::chrono::steady_clock::now() - begin;
    };
    EXPECT(waited(-1ns) < 4s);
    io->wake();
    io->wake();  // two are as one
    EXPECT(waited(5s) < 4s);
    EXPECT(waited(20ms) >= 20ms);
    const int failures = testing::failures;
    for (const std::chrono::nanoseconds at_most :
         {std::chrono::nanoseconds(5s), std::chrono::nanoseconds(5s), std::chrono::nanoseconds::max()}) {
      if (testing::failures != failures) return;  // rather than forever
      std::thread other([&] {
        std::this_thread::sleep_for(10ms);
        io->wake();
      });
      EXPECT(waited(at_most) < 4s);
      other.join();
    }
    EXPECT(waited(20ms) >= 20ms);
  });
}

HKV_TEST("a wait of more than a second sleeps that long") {
  const ScratchDirectory scratch;
  std::vector<std::thread> threads;
  for_each_engine([&](const char* name, auto open) {
    threads.emplace_back([path = scratch / name, open] {
      const auto cpu = [] {
        timespec time{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
      };
      const auto io = open(path, true);
      IoRequest* out[1] = {};
      const auto begin = std::chrono::steady_clock::now();
      const auto cpu_before = cpu();
      EXPECT_EQ(io->wait(out, 1050ms), 0u);
      EXPECT(std::chrono::steady_clock::now() - begin >= 1050ms);
      EXPECT(cpu() - cpu_before < 300ms);
    });
  });
  for (std::thread& thread : threads) thread.join();
}

HKV_TEST("a wake beside requests loses neither") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    const FileId file = created(*io, "f");
    AlignedMemory memory(unit);
    EXPECT_EQ(moved(*io, Op::Write, file, 0, {memory.piece(0, unit)}), std::int64_t{unit});
    std::atomic<int> woken{0}, asked{0};
    std::thread other([&] {
      for (int i = 0; i < 200; ++i) {
        io->wake();
        ++woken;
        while (asked.load() < woken.load()) std::this_thread::yield();
      }
    });
    const iovec piece = memory.piece(0, unit);
    int reads = 0;
    while (asked.load() < 200) {
      IoRequest request;
      request.file = file;
      request.bytes = unit;
      request.pieces = {&piece, 1};
      io->submit(&request);
      IoRequest* out[1] = {};
      while (io->wait(out, 10s) == 0) {  // ended by a wake
      }
      EXPECT_EQ(request.result, std::int64_t{unit});
      ++reads;
      if (asked.load() < woken.load()) ++asked;
    }
    other.join();
    EXPECT(reads >= 200);
    EXPECT_EQ(io->close(file), 0);
  });
}

HKV_TEST("one opener has the directory at a time") {
  each([](const Subject& subject) {
    auto first = subject.another();
    const auto second = subject.another();
    EXPECT_EQ(first->lock(), 0);
    EXPECT_EQ(first->lock(), 0);
    EXPECT_EQ(second->lock(), -EWOULDBLOCK);
    first.reset();
    EXPECT_EQ(second->lock(), 0);
  });
}

// ---- memory that stays ----------------------------------------------------------------------

namespace {

// A request, and whether it went fixed.
bool fixed_move(Io& io, Op op, FileId file, std::vector<iovec> pieces) {
  IoRequest request;
  request.op = op;
  request.file = file;
  request.pieces = pieces;
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  EXPECT_EQ(done(io, request), static_cast<std::int64_t>(bytes));
  return request.fixed;
}

}  // namespace

HKV_TEST("arenas: an engine that fixes them moves the same bytes, and no others fixed") {
  each([](const Subject& subject) {
    const auto io = subject.another();
    const FileId file = created(*io, "f");
    AlignedMemory out(8 * unit), in(8 * unit), beside(unit);
    out.fill(3);
    std::size_t fixed = 0;
    const bool takes = io->add_arena(in.data() + unit, 6 * unit) && io->add_arena(out.data(), 8 * unit);
    EXPECT_EQ(takes, std::string(subject.name).starts_with("io_uring"));
    fixed += fixed_move(*io, Op::Write, file, {out.piece(0, 8 * unit)});
    const auto read = [&](std::vector<iovec> pieces) {
      in.fill(4);
      const bool so = fixed_move(*io, Op::Read, file, pieces);
      std::size_t at = 0;
      for (const iovec& piece : pieces) {
        EXPECT(std::memcmp(piece.iov_base, out.data() + at, piece.iov_len) == 0);
        at += piece.iov_len;
      }
      EXPECT_EQ(io->fixed_run(pieces) == pieces.size(), so);
      return so;
    };
    fixed += read({in.piece(unit, 6 * unit)});
    fixed += read({in.piece(3 * unit, unit)});
    EXPECT_EQ(fixed, takes ? 3u : 0u);
    EXPECT(!read({in.piece(0, 2 * unit)}));         // begins before it
    EXPECT(!read({in.piece(6 * unit, 2 * unit)}));  // ends behind it
    EXPECT(!read({beside.piece(0, unit)}));
    EXPECT(!read({in.piece(unit, unit), beside.piece(0, unit)}));
    const bool both = read({in.piece(5 * unit, 2 * unit), in.piece(unit, unit)});  // where the kernel can
    const std::vector<iovec> pieces{in.piece(2 * unit, unit), in.piece(unit, unit), beside.piece(0, unit)};
    EXPECT_EQ(io->fixed_run(pieces), takes ? (both ? 2u : 1u) : 0u);
    if (takes) io->drop_arena(in.data() + unit);
    EXPECT(!read({in.piece(unit, 6 * unit)}));
    EXPECT_EQ(io->add_arena(in.data(), 2 * unit), takes);  // another, where the old one was
    EXPECT_EQ(read({in.piece(0, 2 * unit)}), takes);
    EXPECT(!read({in.piece(2 * unit, unit)}));
    EXPECT_EQ(io->close(file), 0);
  });
}

HKV_TEST("arenas: no room in the table, and no memory that may be locked, are no errors") {
  if (!uring_there()) return;
  const ScratchDirectory scratch;
  {
    UringIo io(scratch / "two", true, 8, UringIo::Waiting::Best, 2);
    AlignedMemory memory(3 * unit);
    EXPECT(io.add_arena(memory.data(), unit));
    EXPECT(io.add_arena(memory.data() + unit, unit));
    EXPECT(!io.add_arena(memory.data() + 2 * unit, unit));
    io.drop_arena(memory.data() + 2 * unit);  // it was not taken
    io.drop_arena(memory.data());
    EXPECT(io.add_arena(memory.data() + 2 * unit, unit));
    EXPECT_EQ(io.fixed_run(std::vector<iovec>{memory.piece(2 * unit, unit)}), 1u);
    EXPECT_EQ(io.fixed_run(std::vector<iovec>{memory.piece(0, unit)}), 0u);
  }
  // An address where nothing is mapped: the kernel refuses it, and nothing of it stays.
  {
    UringIo io(scratch / "none", true, 8, UringIo::Waiting::Best, 1);
    void* const hole = ::mmap(nullptr, 4 * unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(!io.add_arena(hole, 4 * unit));
    EXPECT_EQ(io.fixed_run(std::vector<iovec>{{hole, unit}}), 0u);
    ::munmap(hole, 4 * unit);
    AlignedMemory memory(unit);
    EXPECT(io.add_arena(memory.data(), unit));
  }
  const pid_t child = ::fork();  // which loses the right to lock more than its limit
  if (child == 0) {
    const rlimit little{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0) ::_exit(3);
    if (::geteuid() == 0 &&
        (::chown(scratch.path().c_str(), 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0))
      ::_exit(3);
    int code = 4;
    try {
      UringIo io(scratch / "limited", true, 8);
      AlignedMemory memory(256 * unit);
      memory.fill(1);
      const bool large = io.add_arena(memory.data(), memory.size());
      const FileId file = created(io, "f");
      const bool moved = !fixed_move(io, Op::Write, file, {memory.piece(0, 8 * unit)});
      const bool small =
          io.add_arena(memory.data(), unit) && fixed_move(io, Op::Read, file, {memory.piece(0, unit)});
      code = !large && moved && small && testing::failures == 0 ? 0 : 1;
    } catch (const Error&) {
      code = 5;  // a ring needs locked memory itself, before Linux 5.12
    }
    ::_exit(code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT(WIFEXITED(status));
  if (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 5) {
    std::printf("     left out: the limit of locked memory cannot be set here, or no ring made under it\n");
    return;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

HKV_TEST("arenas: memory that was dropped is the process's again") {
  if (!uring_there()) return;
  const ScratchDirectory scratch;
  UringIo io(scratch / "store", true, 8);
  const FileId file = created(io, "f");
  AlignedMemory out(unit);
  out.fill(5);
  EXPECT_EQ(moved(io, Op::Write, file, 0, {out.piece(0, unit)}), std::int64_t{unit});
  void* const at = ::mmap(nullptr, unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(io.add_arena(at, unit));
  io.drop_arena(at);
  // Other pages at the same address: a read must find these.
  EXPECT(::mmap(at, unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
  EXPECT_EQ(moved(io, Op::Read, file, 0, {iovec{at, unit}}), std::int64_t{unit});
  EXPECT(std::memcmp(at, out.data(), unit) == 0);
  ::munmap(at, unit);
  EXPECT_EQ(io.close(file), 0);
}

}  // namespace hkv
