// SPDX-License-Identifier: Apache-2.0
// Io over a SimulatedDisk: deterministic, counted, with a script of faults and a power cut at any call.
//
// Every call of the interface but depth, alignment, free_bytes, name and wake has a number, from 0. A request is begun by its
// submit and done when a wait gives it back, first come first served or as `choose` says: until then nobody sees what it
// writes, and a power cut may have left any part of it.
//
// After a power cut the Io is dead: every call and every request fails with -EIO and changes nothing; `disk()` is what a
// restart begins from.
//
// Thread safety: as Io; everything else under one mutex, so that a test may look and change while a tier's thread runs.
#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "tier/io.h"
#include "tier/simulated_disk.h"

namespace hkv {

// One line of the script: what happens to calls first..last that it can happen to, `times` of them.
struct SimulatedFault {
  enum class Kind : std::uint8_t {
    Error,        // fails with -value; a write has stored the first `sectors` before
    Short,        // moves `value` bytes at most, and says so
    Torn,         // stores the first `value` sectors, says that all are
    Misdirected,  // stores at offset `value` instead, or reads from there
    Flip,         // bit `value` of the bytes is flipped on their way
    Frozen        // is never done, until `thaw`
  };
  Kind kind = Kind::Error;
  std::uint64_t value = 0;
  std::size_t first = 0, last = std::numeric_limits<std::size_t>::max(), times = 1;
  // Only requests of this kind, where it says one. Error alone happens to calls that are not requests.
  enum class Only : std::uint8_t { Any, Read, Write, Sync, Allocate, Names } only = Only::Any;
  std::size_t sectors = 0;
};

// One numbered call.
struct SimulatedCall {
  enum class What : std::uint8_t {
    Open,
    Create,
    Close,
    Remove,
    Rename,
    List,
    Size,
    SyncDirectory,
    Lock,
    Submit,
    Wait
  };
  What what;
  std::string name;  // of calls on names
  IoRequest::Op op = IoRequest::Op::Read;
  std::uint64_t offset = 0, bytes = 0;
  explicit SimulatedCall(What what, std::string name = {}) : what(what), name(std::move(name)) {}
  explicit SimulatedCall(const IoRequest& request)
      : what(What::Submit), op(request.op), offset(request.offset), bytes(request.bytes) {}
};

class SimulatedIo final : public Io {
 public:
  // Which of `count` requests under way is done next, oldest first.
  using Choose = std::function<std::size_t(std::size_t count)>;

  explicit SimulatedIo(SimulatedDisk disk, std::size_t depth = 16, SimulatedIo* beside = nullptr)
      : disk_(std::move(disk)),
        depth_(depth),
        locked_(beside ? beside->locked_ : std::make_shared<bool>(false)) {}
  ~SimulatedIo() override {
    if (owner_) *locked_ = false;
  }

  // ---- what a test does ------------------------------------------------------------------------
  void add(const SimulatedFault& fault) {
    at_once([&] { faults_.push_back(fault); });
  }
  void clear_faults() {
    at_once([&] { faults_.clear(); });
  }
  // The power goes as call `number` begins, or `after` it took effect and before its caller hears of it.
  void cut_at(std::size_t number, bool after = false) {
    at_once([&] {
      cut_ = number;
      cut_after_ = after;
    });
  }
  void cut_now() {
    at_once([&] { cut(); });
  }
  void thaw() {
    at_once([&] {
      for (Flying& flying : flying_) flying.frozen = false;
      changed_.notify_all();
    });
  }
  void choose(Choose choose) {
    at_once([&] { choose_ = std::move(choose); });
  }
  // How many requests a wait gives back at most.
  void per_wait(std::size_t most) {
    at_once([&] { per_wait_ = most; });
  }

  bool dead() const {
    return at_once([&] { return dead_; });
  }
  std::size_t calls() const {
    return at_once([&] { return calls_.size(); });
  }
  std::vector<SimulatedCall> log() const {
    return at_once([&] { return calls_; });
  }
  std::size_t in_flight() const {
    return at_once([&] { return flying_.size(); });
  }
  std::size_t open_files() const {
    return at_once(
        [&] { return std::count_if(files_.begin(), files_.end(), [](auto f) { return f != 0; }); });
  }
  SimulatedDisk disk() const {
    return at_once([&] { return disk_; });
  }
  // The disk under the feet of whoever uses it: rot, foreign hands.
  void change_disk(const std::function<void(SimulatedDisk&)>& change) {
    at_once([&] { change(disk_); });
  }

  // ---- Io --------------------------------------------------------------------------------------
  int open(const std::string& name, Mode mode, FileId& out) override {
    out = no_file;
    const auto what = mode == Mode::Create ? SimulatedCall::What::Create : SimulatedCall::What::Open;
    return call(SimulatedCall(what, name), [&] {
      if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) return -EINVAL;
      SimulatedDisk::Inode inode = disk_.find(name);
      if (mode == Mode::Create && inode != 0) return -EEXIST;
      if (mode != Mode::Create && inode == 0) return -ENOENT;
      if (mode == Mode::Create) inode = disk_.create(name);
      disk_.hold(inode);
      out = FileId{
          static_cast<std::int32_t>(files_.size())};  // no id is used twice: who keeps one is found out
      files_.push_back(inode);
      readable_only_.push_back(mode == Mode::Read);
      return 0;
    });
  }
  int close(FileId file) override {
    return call(SimulatedCall(SimulatedCall::What::Close), [&] {
      const SimulatedDisk::Inode inode = inode_of(file);
      if (inode == 0) return -EBADF;
      for (const Flying& flying : flying_) HKV_CHECK(flying.request->file != file);
      disk_.release(inode);
      files_[static_cast<std::size_t>(file)] = 0;
      return 0;
    });
  }
  int remove(const std::string& name) override {
    return call(SimulatedCall(SimulatedCall::What::Remove, name), [&] {
      if (disk_.find(name) == 0) return -ENOENT;
      disk_.remove(name);
      return 0;
    });
  }
  int rename(const std::string& from, const std::string& to) override {
    return call(SimulatedCall(SimulatedCall::What::Rename, from + " -> " + to), [&] {
      if (disk_.find(from) == 0) return -ENOENT;
      disk_.rename(from, to);
      return 0;
    });
  }
  int list(std::vector<std::string>& out) override {
    out.clear();
    return call(SimulatedCall(SimulatedCall::What::List), [&] {
      out = disk_.list();
      return 0;
    });
  }
  int size(FileId file, std::uint64_t& out) override {
    return call(SimulatedCall(SimulatedCall::What::Size), [&] {
      if (inode_of(file) == 0) return -EBADF;
      out = disk_.size(inode_of(file));
      return 0;
    });
  }
  int sync_directory() override {
    return call(SimulatedCall(SimulatedCall::What::SyncDirectory), [&] {
      disk_.sync_directory();
      return 0;
    });
  }
  int lock() override {
    return call(SimulatedCall(SimulatedCall::What::Lock), [&] {
      if (*locked_ && !owner_) return -EWOULDBLOCK;
      *locked_ = owner_ = true;
      return 0;
    });
  }
  std::uint64_t free_bytes() override {
    return at_once([&] { return disk_.free_bytes(); });
  }
  IoAlignment alignment(FileId) override { return {disk_.options().alignment, disk_.options().alignment}; }
  std::size_t depth() const override { return depth_; }
  const char* name() const override { return "simulated"; }

  void submit(IoRequest* request) override {
    std::uint64_t bytes = 0;
    for (const iovec& piece : request->pieces) bytes += piece.iov_len;
    if (moves(*request)) HKV_CHECK(bytes == request->bytes);
    call(SimulatedCall(*request), [&] {
      HKV_CHECK(flying_.size() < depth_);
      request->fixed = moves(*request) && run_of(request->pieces) == request->pieces.size();
      Flying flying{request, ++now_, {}, false};
      if (!dead_) {
        flying.fault = take_fault(calls_.size() - 1, only_of(request->op));
        flying.frozen = flying.fault && flying.fault->kind == SimulatedFault::Kind::Frozen;
      }
      flying_.push_back(std::move(flying));
      return 0;
    });
  }

  std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) override {
    const auto year = std::chrono::hours(24 * 365);
    const auto end = std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(at_most, year);
    call(SimulatedCall(SimulatedCall::What::Wait), [] { return 0; });
    std::unique_lock<std::mutex> guard(mutex_);
    const bool last = cut_after_ && calls_.size() - 1 == cut_;
    for (;;) {
      std::size_t count = 0;
      while (count < std::min(out.size(), per_wait_) && finish_one(out[count])) ++count;
      if (last) {  // done, and nobody hears of it
        cut();
        for (std::size_t i = 0; i < count; ++i) out[i]->result = -EIO;
      }
      if (count != 0 || woken_) {
        woken_ = false;
        return count;
      }
      if (changed_.wait_until(guard, end) == std::cv_status::timeout && !woken_) return 0;
    }
  }
  // Takes every arena, and fixes what lies in one whole.
  bool add_arena(void* data, std::size_t bytes) override {
    const auto from = reinterpret_cast<std::uintptr_t>(data);
    return at_once([&] { return arenas_.emplace(from, from + bytes).second; });
  }
  void drop_arena(void* data) override {
    at_once([&] { HKV_CHECK(arenas_.erase(reinterpret_cast<std::uintptr_t>(data)) == 1); });
  }
  std::size_t fixed_run(std::span<const iovec> pieces) const override {
    return at_once([&] { return run_of(pieces); });
  }
  std::size_t arenas() const {
    return at_once([&] { return arenas_.size(); });
  }
  void wake() override {
    at_once([&] {
      woken_ = true;
      changed_.notify_all();
    });
  }

 private:
  struct Flying {
    IoRequest* request;
    std::uint64_t begun;
    std::shared_ptr<const SimulatedFault> fault;
    bool frozen;
  };

  template <class F>
  auto at_once(F f) const -> decltype(f()) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return f();
  }

  // One numbered call: the power cut around it, the script, then what it does.
  template <class F>
  int call(const SimulatedCall& what, F f) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const std::size_t number = calls_.size();
    calls_.push_back(what);
    if (number == cut_ && !cut_after_) cut();
    const bool is_submit = what.what == SimulatedCall::What::Submit;
    if (dead_ && !is_submit) return -EIO;
    if (!is_submit && what.what != SimulatedCall::What::Wait) {
      if (const auto fault = take_fault(number, SimulatedFault::Only::Names))
        return -static_cast<int>(fault->value);
    }
    const int result = f();
    if (number == cut_ && cut_after_ && what.what != SimulatedCall::What::Wait) cut();
    return dead_ ? -EIO : result;
  }

  void cut() {
    if (dead_) return;
    dead_ = true;
    for (const Flying& flying : flying_) {
      const IoRequest& request = *flying.request;
      const SimulatedDisk::Inode inode = inode_of(request.file);
      if (request.op != IoRequest::Op::Write || inode == 0 || refused(request) != 0) continue;
      const std::vector<std::byte> bytes = gathered(request);
      disk_.write_unfinished(inode, request.offset, bytes.data(), bytes.size());
    }
    changed_.notify_all();
  }

  static bool moves(const IoRequest& request) {
    return request.op == IoRequest::Op::Read || request.op == IoRequest::Op::Write;
  }
  static SimulatedFault::Only only_of(IoRequest::Op op) {
    return static_cast<SimulatedFault::Only>(static_cast<int>(op) + 1);
  }
  std::shared_ptr<const SimulatedFault> take_fault(std::size_t number, SimulatedFault::Only what) {
    using Only = SimulatedFault::Only;
    for (SimulatedFault& fault : faults_) {
      if (fault.times == 0 || number < fault.first || number > fault.last) continue;
      if (fault.only != Only::Any && fault.only != what) continue;
      const bool data = what == Only::Read || what == Only::Write;
      const bool any = fault.kind == SimulatedFault::Kind::Error ||
                       (fault.kind == SimulatedFault::Kind::Frozen && what != Only::Names);
      if (!any && !data) continue;
      if (fault.kind == SimulatedFault::Kind::Torn && what != Only::Write) continue;
      --fault.times;
      return std::make_shared<const SimulatedFault>(fault);
    }
    return nullptr;
  }

  std::size_t run_of(std::span<const iovec> pieces) const {
    std::uintptr_t from = 0, to = 0;
    std::size_t count = 0;
    for (const iovec& piece : pieces) {
      const auto at = reinterpret_cast<std::uintptr_t>(piece.iov_base);
      if (count == 0) {
        const auto after = arenas_.upper_bound(at);
        if (after == arenas_.begin()) break;
        std::tie(from, to) = *std::prev(after);
      }
      if (at < from || at >= to || piece.iov_len > to - at) break;
      ++count;
    }
    return count;
  }
  SimulatedDisk::Inode inode_of(FileId file) const {
    const auto at = static_cast<std::size_t>(file);
    return at < files_.size() ? files_[at] : SimulatedDisk::no_inode;
  }
  static std::vector<std::byte> gathered(const IoRequest& request) {
    std::vector<std::byte> out;
    for (const iovec& piece : request.pieces) {
      const auto* from = static_cast<const std::byte*>(piece.iov_base);
      out.insert(out.end(), from, from + piece.iov_len);
    }
    return out;
  }
  static void scatter(const std::vector<std::byte>& bytes, const IoRequest& request) {
    std::size_t at = 0;
    for (const iovec& piece : request.pieces) {
      const std::size_t count = std::min(piece.iov_len, bytes.size() - at);
      if (count != 0) std::memcpy(piece.iov_base, bytes.data() + at, count);
      at += count;
    }
  }
  // 0, or what a kernel refuses such a request with.
  int refused(const IoRequest& request) const {
    if (inode_of(request.file) == 0) return -EBADF;
    if (request.op != IoRequest::Op::Read && request.op != IoRequest::Op::Sync &&
        readable_only_[static_cast<std::size_t>(request.file)]) {
      return -EBADF;
    }
    if (!moves(request)) return 0;
    const std::uint32_t unit = disk_.options().alignment;
    bool aligned = request.offset % unit == 0;
    for (const iovec& piece : request.pieces) {
      aligned = aligned && reinterpret_cast<std::uintptr_t>(piece.iov_base) % unit == 0 &&
                piece.iov_len % unit == 0;
    }
    return aligned ? 0 : -EINVAL;
  }

  // Does what a request asks for. Returns its result.
  std::int64_t perform(const Flying& flying) {
    using Kind = SimulatedFault::Kind;
    const IoRequest& request = *flying.request;
    const SimulatedFault* fault = flying.fault.get();
    if (dead_) return -EIO;
    if (const int error = refused(request); error != 0) return error;
    const SimulatedDisk::Inode inode = inode_of(request.file);
    const bool error = fault && fault->kind == Kind::Error;
    if (request.op == IoRequest::Op::Sync) {
      disk_.sync(inode, flying.begun, error);
      return error ? -static_cast<std::int64_t>(fault->value) : 0;
    }
    if (request.op == IoRequest::Op::Allocate) {
      if (error) return -static_cast<std::int64_t>(fault->value);
      return disk_.grow(inode, request.offset + request.bytes, now_) ? 0 : -ENOSPC;
    }
    return request.op == IoRequest::Op::Read ? read(request, inode, fault) : write(request, inode, fault);
  }
  std::int64_t read(const IoRequest& request, SimulatedDisk::Inode inode, const SimulatedFault* fault) {
    using Kind = SimulatedFault::Kind;
    if (fault && fault->kind == Kind::Error) return -static_cast<std::int64_t>(fault->value);
    std::vector<std::byte> bytes(request.bytes);
    const bool elsewhere = fault && fault->kind == Kind::Misdirected;
    const std::uint64_t offset = elsewhere ? fault->value : request.offset;
    bytes.resize(disk_.read(inode, offset, bytes.data(), bytes.size()));
    if (fault && fault->kind == Kind::Short) bytes.resize(std::min<std::size_t>(bytes.size(), fault->value));
    if (fault && fault->kind == Kind::Flip) flip(bytes, fault->value);
    scatter(bytes, request);
    return static_cast<std::int64_t>(bytes.size());
  }
  std::int64_t write(const IoRequest& request, SimulatedDisk::Inode inode, const SimulatedFault* fault) {
    using Kind = SimulatedFault::Kind;
    std::vector<std::byte> bytes = gathered(request);
    std::uint64_t offset = request.offset;
    std::int64_t result = static_cast<std::int64_t>(bytes.size());
    const auto keep = [&](std::uint64_t count) {
      bytes.resize(std::min<std::uint64_t>(bytes.size(), count));
    };
    if (fault && fault->kind == Kind::Error) {
      keep(fault->sectors * disk_.options().sector_bytes);
      result = -static_cast<std::int64_t>(fault->value);
    }
    if (fault && fault->kind == Kind::Short) {
      keep(fault->value);
      result = static_cast<std::int64_t>(bytes.size());
    }
    if (fault && fault->kind == Kind::Torn) keep(fault->value * disk_.options().sector_bytes);
    if (fault && fault->kind == Kind::Misdirected) offset = fault->value;
    if (fault && fault->kind == Kind::Flip) flip(bytes, fault->value);
    if (!bytes.empty() && !disk_.write(inode, offset, bytes.data(), bytes.size(), now_)) return -ENOSPC;
    return result;
  }
  static void flip(std::vector<std::byte>& bytes, std::uint64_t bit) {
    if (!bytes.empty()) bytes[bit / 8 % bytes.size()] ^= std::byte{1} << (bit % 8);
  }

  bool finish_one(IoRequest*& out) {
    std::vector<std::size_t> able;
    for (std::size_t i = 0; i < flying_.size(); ++i) {
      if (dead_ || !flying_[i].frozen) able.push_back(i);
    }
    if (able.empty()) return false;
    const std::size_t which = choose_ ? choose_(able.size()) : 0;
    HKV_CHECK(which < able.size());
    const Flying flying = flying_[able[which]];
    flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(able[which]));
    ++now_;
    flying.request->result = perform(flying);
    out = flying.request;
    return true;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  SimulatedDisk disk_;
  const std::size_t depth_;
  std::shared_ptr<bool> locked_;  // of all that stand beside each other
  bool owner_ = false;
  std::vector<SimulatedDisk::Inode> files_;  // by FileId; 0: closed
  std::vector<bool> readable_only_;
  std::deque<Flying> flying_;
  std::map<std::uintptr_t, std::uintptr_t> arenas_;  // from, to
  std::uint64_t now_ = 0;
  std::vector<SimulatedFault> faults_;
  Choose choose_;
  std::size_t per_wait_ = std::numeric_limits<std::size_t>::max();
  std::vector<SimulatedCall> calls_;
  std::size_t cut_ = std::numeric_limits<std::size_t>::max();
  bool cut_after_ = false, dead_ = false, woken_ = false;
};

}  // namespace hkv
