// SPDX-License-Identifier: Apache-2.0
// Our definitions of the kernel's interface are the kernel's, where its header is there and new enough to say so.
//
// Thread safety: none needed.
#pragma once
#include <cstddef>

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

#include "tier/uring_abi.h"

namespace hkv {

#if __has_include(<linux/io_uring.h>)
#define HKV_SAME(ours, field, theirs, their_field)                               \
  static_assert(offsetof(uring::ours, field) == offsetof(theirs, their_field) && \
                sizeof(uring::ours::field) == sizeof(theirs::their_field))
static_assert(sizeof(uring::Submission) == sizeof(io_uring_sqe));
HKV_SAME(Submission, opcode, io_uring_sqe, opcode);
HKV_SAME(Submission, flags, io_uring_sqe, flags);
HKV_SAME(Submission, priority, io_uring_sqe, ioprio);
HKV_SAME(Submission, file, io_uring_sqe, fd);
HKV_SAME(Submission, offset, io_uring_sqe, off);
HKV_SAME(Submission, address, io_uring_sqe, addr);
HKV_SAME(Submission, length, io_uring_sqe, len);
HKV_SAME(Submission, op_flags, io_uring_sqe, fsync_flags);
HKV_SAME(Submission, user, io_uring_sqe, user_data);
HKV_SAME(Submission, buffer, io_uring_sqe, buf_index);
HKV_SAME(Completion, user, io_uring_cqe, user_data);
HKV_SAME(Completion, result, io_uring_cqe, res);
HKV_SAME(Completion, flags, io_uring_cqe, flags);
static_assert(sizeof(uring::Parameters) == sizeof(io_uring_params));
HKV_SAME(Parameters, submission_entries, io_uring_params, sq_entries);
HKV_SAME(Parameters, completion_entries, io_uring_params, cq_entries);
HKV_SAME(Parameters, flags, io_uring_params, flags);
HKV_SAME(Parameters, features, io_uring_params, features);
HKV_SAME(Parameters, submissions, io_uring_params, sq_off);
HKV_SAME(Parameters, completions, io_uring_params, cq_off);
HKV_SAME(SubmissionOffsets, head, io_sqring_offsets, head);
HKV_SAME(SubmissionOffsets, tail, io_sqring_offsets, tail);
HKV_SAME(SubmissionOffsets, mask, io_sqring_offsets, ring_mask);
HKV_SAME(SubmissionOffsets, array, io_sqring_offsets, array);
HKV_SAME(CompletionOffsets, head, io_cqring_offsets, head);
HKV_SAME(CompletionOffsets, tail, io_cqring_offsets, tail);
HKV_SAME(CompletionOffsets, mask, io_cqring_offsets, ring_mask);
HKV_SAME(CompletionOffsets, completions, io_cqring_offsets, cqes);
HKV_SAME(ProbedOp, flags, io_uring_probe_op, flags);
static_assert(sizeof(uring::ProbedOp) == sizeof(io_uring_probe_op));
static_assert(offsetof(uring::Probe, op) == sizeof(io_uring_probe));
static_assert(uring::ReadFixed == int{IORING_OP_READ_FIXED} &&
              uring::WriteFixed == int{IORING_OP_WRITE_FIXED});
static_assert(uring::Nop == int{IORING_OP_NOP} && uring::Readv == int{IORING_OP_READV});
static_assert(uring::Writev == int{IORING_OP_WRITEV} && uring::Fsync == int{IORING_OP_FSYNC});
static_assert(uring::fsync_data == IORING_FSYNC_DATASYNC && uring::submission_async == IOSQE_ASYNC);
static_assert(uring::enter_get_events == IORING_ENTER_GETEVENTS);
static_assert(uring::offset_of_submission_ring == IORING_OFF_SQ_RING);
static_assert(uring::offset_of_submissions == IORING_OFF_SQES);
#if defined(IORING_FEAT_EXT_ARG)  // Linux 5.11
static_assert(sizeof(uring::WaitArgument) == sizeof(io_uring_getevents_arg));
HKV_SAME(WaitArgument, timespec, io_uring_getevents_arg, ts);
static_assert(uring::Fallocate == int{IORING_OP_FALLOCATE} && uring::Read == int{IORING_OP_READ});
static_assert(uring::Write == int{IORING_OP_WRITE} &&
              uring::register_probe == unsigned{IORING_REGISTER_PROBE});
static_assert(uring::enter_extended == IORING_ENTER_EXT_ARG &&
              uring::feature_extended == IORING_FEAT_EXT_ARG);
static_assert(uring::feature_single_mmap == IORING_FEAT_SINGLE_MMAP &&
              uring::feature_no_drop == IORING_FEAT_NODROP);
static_assert(uring::probed_supported == IO_URING_OP_SUPPORTED);
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)  // Linux 5.19
static_assert(uring::setup_coop_taskrun == IORING_SETUP_COOP_TASKRUN);
static_assert(uring::table_sparse == IORING_RSRC_REGISTER_SPARSE);
static_assert(uring::register_table == unsigned{IORING_REGISTER_BUFFERS2} &&
              uring::register_table_change == unsigned{IORING_REGISTER_BUFFERS_UPDATE});
static_assert(sizeof(uring::Table) == sizeof(io_uring_rsrc_register));
HKV_SAME(Table, entries, io_uring_rsrc_register, nr);
HKV_SAME(Table, flags, io_uring_rsrc_register, flags);
HKV_SAME(Table, pieces, io_uring_rsrc_register, data);
HKV_SAME(Table, tags, io_uring_rsrc_register, tags);
static_assert(sizeof(uring::TableChange) == sizeof(io_uring_rsrc_update2));
HKV_SAME(TableChange, place, io_uring_rsrc_update2, offset);
HKV_SAME(TableChange, pieces, io_uring_rsrc_update2, data);
HKV_SAME(TableChange, tags, io_uring_rsrc_update2, tags);
HKV_SAME(TableChange, entries, io_uring_rsrc_update2, nr);
#endif
#endif

}  // namespace hkv
