// SPDX-License-Identifier: Apache-2.0
#include "tier/uring_ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/atomic.h"
#include "base/check.h"

namespace hkv {
namespace {

template <class... Args>
int called(long number, Args... args) {
  const long result = ::syscall(number, args...);
  return result < 0 ? -errno : static_cast<int>(result);
}

constexpr uring::Opcode needed[] = {uring::Nop,       uring::Readv,     uring::Writev,
                                    uring::Fsync,     uring::ReadFixed, uring::WriteFixed,
                                    uring::Fallocate, uring::Read,      uring::Write};

int probe(int ring, bool& fixes_pieces) {
  uring::Probe probe{};
  const int result = called(uring::register_call, ring, uring::register_probe, &probe, std::size(probe.op));
  if (result < 0) return result == -EINVAL ? -EOPNOTSUPP : result;  // EINVAL: older than Linux 5.6
  const auto supported = [&](uring::Opcode opcode) {
    return opcode <= probe.last_op && (probe.op[opcode].flags & uring::probed_supported) != 0;
  };
  for (const uring::Opcode opcode : needed) {
    if (!supported(opcode)) return -EOPNOTSUPP;
  }
  fixes_pieces = supported(uring::ReadvFixed) && supported(uring::WritevFixed);
  return 0;
}

}  // namespace

UringRing::~UringRing() {
  if (submissions_ != nullptr) ::munmap(submissions_, submissions_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

int UringRing::open(std::uint32_t entries) {
  uring::Parameters parameters{};
  parameters.flags = uring::setup_coop_taskrun;  // no interrupt for a completion that is waited for anyway
  descriptor_ = called(uring::setup_call, entries, &parameters);
  if (descriptor_ == -EINVAL) {  // older than Linux 5.19
    parameters = {};
    descriptor_ = called(uring::setup_call, entries, &parameters);
  }
  if (descriptor_ < 0) return descriptor_;
  constexpr std::uint32_t must = uring::feature_single_mmap | uring::feature_no_drop;  // Linux 5.5
  if ((parameters.features & must) != must) return -EOPNOTSUPP;
  timed_ = (parameters.features & uring::feature_extended) != 0;
  if (const int result = probe(descriptor_, fixes_pieces_); result < 0) return result;
  if (const int result = map(parameters); result < 0) return result;
  return prove();
}

int UringRing::map(const uring::Parameters& parameters) {
  const auto mapped = [this](std::size_t bytes, std::uint64_t offset) -> void* {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_,
                      static_cast<off_t>(offset));
    return at == MAP_FAILED ? nullptr : at;
  };
  const auto& submissions = parameters.submissions;
  const auto& completions = parameters.completions;
  rings_bytes_ = std::max<std::size_t>(
      submissions.array + parameters.submission_entries * sizeof(std::uint32_t),
      completions.completions + parameters.completion_entries * sizeof(uring::Completion));
  rings_ = mapped(rings_bytes_, uring::offset_of_submission_ring);
  if (rings_ == nullptr) return -errno;
  submissions_bytes_ = parameters.submission_entries * sizeof(uring::Submission);
  submissions_ = static_cast<uring::Submission*>(mapped(submissions_bytes_, uring::offset_of_submissions));
  if (submissions_ == nullptr) return -errno;
  auto* base = static_cast<unsigned char*>(rings_);
  const auto at = [base](std::uint32_t offset) { return reinterpret_cast<std::uint32_t*>(base + offset); };
  submission_head_ = at(submissions.head);
  submission_tail_ = at(submissions.tail);
  submission_mask_ = *at(submissions.mask);
  completion_head_ = at(completions.head);
  completion_tail_ = at(completions.tail);
  completion_mask_ = *at(completions.mask);
  completions_ = reinterpret_cast<const uring::Completion*>(base + completions.completions);
  // Slot i always holds entry i, so that the array is never written again.
  for (std::uint32_t i = 0; i < parameters.submission_entries; ++i) at(submissions.array)[i] = i;
  return 0;
}

// A sandbox may allow one call and forbid the next: shown with an operation that does nothing.
int UringRing::prove() {
  next().opcode = uring::Nop;
  int result = 0;
  uring::Completion completion{};
  do {
    result = enter(true, std::chrono::seconds(10));
  } while (result == -EINTR);
  if (result < 0) return result;
  return take(completion) ? completion.result : -EIO;
}

int UringRing::make_table(std::uint32_t entries) {
  uring::Table table{};
  table.entries = entries;
  table.flags = uring::table_sparse;
  return called(uring::register_call, descriptor_, uring::register_table, &table, sizeof table);
}

int UringRing::set_buffer(std::uint32_t place, const iovec& buffer) const {
  uring::TableChange change{};
  change.place = place;
  change.pieces = reinterpret_cast<std::uint64_t>(&buffer);
  change.entries = 1;
  const int result =
      called(uring::register_call, descriptor_, uring::register_table_change, &change, sizeof change);
  return result < 0 ? result : result == 1 ? 0 : -EIO;
}

uring::Submission& UringRing::next() {
  const std::uint32_t tail = *submission_tail_;
  HKV_CHECK(tail - *submission_head_ <= submission_mask_);
  uring::Submission& entry = submissions_[tail & submission_mask_];
  entry = {};
  *submission_tail_ = tail + 1;  // the kernel looks at it during `enter` alone, a call of this thread
  ++pending_;
  return entry;
}

bool UringRing::take(uring::Completion& out) {
  const std::uint32_t head = *completion_head_;
  if (head == *completion_tail_) return false;
  reads_before_loads();  // the index before the entry that it hands over
  out = completions_[head & completion_mask_];
  reads_before_loads();  // the entry before the kernel may write it again: as an acquire fence orders later stores too
  *completion_head_ = head + 1;
  return true;
}

int UringRing::enter(bool wait, std::chrono::nanoseconds at_most) {
  raises_before_writes();  // entries before the call
  const std::uint32_t flags = wait ? uring::enter_get_events : 0;
  int result = 0;
  if (wait && timed_ && !unbounded(at_most)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
    const uring::Timespec time{seconds.count(), (at_most - seconds).count()};
    uring::WaitArgument argument{};
    argument.timespec = reinterpret_cast<std::uint64_t>(&time);
    result = called(uring::enter_call, descriptor_, pending_, 1u, flags | uring::enter_extended, &argument,
                    sizeof argument);
  } else {
    result = called(uring::enter_call, descriptor_, pending_, wait ? 1u : 0u, flags, nullptr, std::size_t{0});
  }
  // What it took shows in the ring, whatever it returned.
  const std::uint32_t left = *submission_tail_ - *submission_head_;
  const bool some_left = left != 0;
  pending_ = left;
  if (result < 0) return result;
  return some_left && !wait ? -EAGAIN : 0;
}

}  // namespace hkv
