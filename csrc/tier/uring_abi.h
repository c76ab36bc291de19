// SPDX-License-Identifier: Apache-2.0
// The part of the kernel's io_uring interface that the disk tier uses, in definitions of its own: the headers that
// portable wheels are built against know nothing of it. A test compares them with <linux/io_uring.h> where that is.
//
// Thread safety: values.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hkv::uring {

// System call numbers, the same on every architecture that Linux got since 2011, x86-64 included.
inline constexpr long setup_call = 425, enter_call = 426, register_call = 427;

struct Submission {
  std::uint8_t opcode;
  std::uint8_t flags;
  std::uint16_t priority;
  std::int32_t file;
  std::uint64_t offset;
  std::uint64_t address;  // memory or pieces; of Fallocate: bytes
  std::uint32_t length;   // bytes or pieces; of Fallocate: mode
  std::uint32_t op_flags;
  std::uint64_t user;
  std::uint16_t buffer;  // of the table, where the opcode says so
  std::uint16_t rest1[3];
  std::uint64_t rest[2];
};
static_assert(sizeof(Submission) == 64);

struct Completion {
  std::uint64_t user;
  std::int32_t result;
  std::uint32_t flags;
};
static_assert(sizeof(Completion) == 16);

struct SubmissionOffsets {
  std::uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
  std::uint64_t user_address;
};
struct CompletionOffsets {
  std::uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
  std::uint64_t user_address;
};
struct Parameters {
  std::uint32_t submission_entries, completion_entries, flags, thread_cpu, thread_idle, features, wq_file;
  std::uint32_t reserved[3];
  SubmissionOffsets submissions;
  CompletionOffsets completions;
};
static_assert(sizeof(Parameters) == 120);

// What a wait takes with enter_extended.
struct Timespec {
  std::int64_t seconds, nanoseconds;
};
struct WaitArgument {
  std::uint64_t signal_mask;
  std::uint32_t signal_mask_bytes, reserved;
  std::uint64_t timespec;
};
static_assert(sizeof(WaitArgument) == 24);

struct ProbedOp {
  std::uint8_t opcode, reserved;
  std::uint16_t flags;
  std::uint32_t reserved2;
};
struct Probe {
  std::uint8_t last_op, ops;
  std::uint16_t reserved;
  std::uint32_t reserved2[3];
  ProbedOp op[64];
};
static_assert(sizeof(Probe) == 16 + 64 * 8);

// A table of fixed buffers, and a change of one place of it: the piece there (none: null, 0 bytes).
struct Table {
  std::uint32_t entries, flags;
  std::uint64_t reserved, pieces, tags;
};
static_assert(sizeof(Table) == 32);
struct TableChange {
  std::uint32_t place, reserved;
  std::uint64_t pieces, tags;
  std::uint32_t entries, reserved2;
};
static_assert(sizeof(TableChange) == 32);

enum Opcode : std::uint8_t {
  Nop = 0,
  Readv = 1,
  Writev = 2,
  Fsync = 3,
  ReadFixed = 4,
  WriteFixed = 5,
  Fallocate = 17,
  Read = 22,
  Write = 23,
  ReadvFixed = 60,  // Linux 6.15
  WritevFixed = 61
};

inline constexpr std::uint32_t setup_coop_taskrun = 1u << 8;
inline constexpr std::uint32_t feature_single_mmap = 1u << 0, feature_no_drop = 1u << 1,
                               feature_extended = 1u << 8;
inline constexpr std::uint32_t enter_get_events = 1u << 0, enter_extended = 1u << 3;
inline constexpr std::uint8_t submission_async = 1u << 4;
inline constexpr std::uint32_t fsync_data = 1u << 0;
inline constexpr unsigned register_probe = 8, register_table = 15, register_table_change = 16;
inline constexpr std::uint32_t table_sparse = 1u << 0;       // Linux 5.19
inline constexpr std::uint64_t most_fixed_bytes = 1u << 30;  // of one buffer
inline constexpr std::uint32_t most_fixed_buffers = 1u << 14;
inline constexpr std::uint16_t probed_supported = 1u << 0;
inline constexpr std::uint64_t offset_of_submission_ring = 0, offset_of_submissions = 0x10000000;

}  // namespace hkv::uring
