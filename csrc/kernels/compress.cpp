// SPDX-License-Identifier: Apache-2.0
// The CPU's tail compression: windows shared out over threads, then carries, so that a carry may be updated in place.
#include "kernels/compress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/compress_path.h"
#include "kernels/workers.h"

namespace hkv {
namespace {

// What makes another thread worth waking, and what a thread takes at a time.
constexpr std::int64_t thread_bytes = std::int64_t{1} << 18;
constexpr std::int64_t share_bytes = std::int64_t{1} << 20;
// Rows are fetched so many tokens ahead, in whole windows where those are shorter.
constexpr std::int64_t ahead_tokens = 8;

// The memory of one thread of a call, kept from call to call by the thread that calls: helpers come and go.
class ScratchMemory {
 public:
  // Progress: allocates where a call needs more than any before.
  WindowScratch scratch(const CompressTail& call) {
    const std::int64_t padded = (call.width + channel_block - 1) / channel_block * channel_block;
    const std::int64_t row = padded * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t packed = (call.layout.row_bytes + 63) / 64 * 64;
    const std::int64_t need = (23 + 2 * chunk_slots) * row + (padded + 63) / 64 * 64 + packed + 64;
    if (static_cast<std::int64_t>(memory_.size()) < need) memory_.resize(static_cast<std::size_t>(need));
    auto* at = memory_.data() + (0 - reinterpret_cast<std::uintptr_t>(memory_.data())) % 64;
    const auto take = [&](std::int64_t bytes) { return std::exchange(at, at + bytes); };
    WindowScratch made;
    made.padded = padded;
    for (float** field : {&made.powers, &made.sums, &made.largest, &made.entry, &made.weight, &made.reach}) {
      *field = reinterpret_cast<float*>(take(row));
    }
    made.undecided = reinterpret_cast<std::int32_t*>(take(row));
    made.wide.channels = reinterpret_cast<std::int32_t*>(take(2 * row));
    made.wide.largest = reinterpret_cast<float*>(take(2 * row));
    made.wide.powers = reinterpret_cast<double*>(take(4 * row));
    made.wide.entry = reinterpret_cast<double*>(take(4 * row));
    made.staged = reinterpret_cast<float*>(take(2 * chunk_slots * row));
    made.cosines = reinterpret_cast<double*>(take(row));  // half as many pairs as channels
    made.sines = reinterpret_cast<double*>(take(row));
    made.packed = reinterpret_cast<std::uint8_t*>(take(packed));
    made.codes = reinterpret_cast<std::uint8_t*>(take(padded));
    std::memset(made.packed, 0, static_cast<std::size_t>(packed));  // what no part covers stays 0
    return made;
  }

 private:
  std::vector<std::byte> memory_;
};

// The slots of one window: those of the window before it, then its own.
class WindowSlots {
 public:
  WindowSlots(const CompressTail& call, std::int64_t request, std::int64_t entry)
      : call_(call),
        request_(request),
        position_(call.position(request)),
        first_position_(entry * call.ratio),
        row_(call.starts[request] - position_),
        closing_(call.end_entry(request) * call.ratio),
        first_((entry - 1) * call.ratio),
        drawn_(call.overlap && entry > 0 ? call.ratio : 0),
        ahead_((ahead_tokens + call.ratio - 1) / call.ratio * call.ratio) {
    if (call.ratio > ahead_tokens) ahead_ = call.overlap ? call.ratio : ahead_tokens;
  }

  std::int64_t count() const { return drawn_ + call_.ratio; }
  WindowRows rows() const {
    const auto fill = [](const void* of, std::int64_t from, int count, Slot* slots) {
      return static_cast<const WindowSlots*>(of)->fill(from, count, slots);
    };
    return {this, fill, count(), call_.width, first_position_};
  }

  // Slots [from, from + count) into `slots`. Returns: the bytes that they are.
  std::int64_t fill(std::int64_t from, int count, Slot* slots) const {
    std::int64_t bytes = 0;
    for (int k = 0; k < count; ++k) {
      const bool own = from + k >= drawn_;
      const std::int64_t token = first_ + from + k + (drawn_ == 0 ? call_.ratio : 0);
      slots[k] = token < position_ ? carried(token, own) : given(token, own);
      bytes += call_.width * ((slots[k].kv_wide ? 4 : 2) + (slots[k].score_wide ? 4 : 2));
    }
    return bytes;
  }

 private:
  std::int64_t first_channel(bool own) const { return own && call_.overlap ? call_.width : 0; }

  Slot carried(std::int64_t token, bool own) const {
    const float* const row = call_.carry.row(request_, token % call_.ring_rows()) + first_channel(own);
    Slot slot;
    slot.kv = slot.kv_ahead = reinterpret_cast<const std::byte*>(row);
    slot.score = slot.score_ahead = reinterpret_cast<const std::byte*>(row + call_.row_width());
    slot.kv_wide = slot.score_wide = true;
    return slot;
  }
  Slot given(std::int64_t token, bool own) const {
    const std::int64_t kv_at = first_channel(own) * (call_.kv.wide ? 4 : 2);
    const std::int64_t score_at = first_channel(own) * (call_.score.wide ? 4 : 2);
    const std::int64_t closing = own ? closing_ : closing_ - call_.ratio;
    const std::int64_t row = row_ + token, next = token + ahead_ < closing ? row + ahead_ : row;
    return {call_.kv.row(row) + kv_at,
            call_.score.row(row) + score_at,
            call_.kv.row(next) + kv_at,
            call_.score.row(next) + score_at,
            call_.kv.wide,
            call_.score.wide};
  }

  const CompressTail& call_;
  std::int64_t request_, position_;
  std::int64_t first_position_;  // of the window's first token
  std::int64_t row_;             // of the token at 0, were it there
  std::int64_t closing_;         // behind the last token of a window that closes
  std::int64_t first_, drawn_, ahead_;
};

// Windows of a call, shared out by number.
class WindowWork {
 public:
  WindowWork(const CompressTail& call, const std::vector<std::int64_t>& before, int threads)
      : call_(call), before_(before), path_(compress_path()) {
    thread_local std::array<ScratchMemory, most_threads> memories;
    for (int thread = 0; thread < threads; ++thread) {
      scratches_[thread] = memories[thread].scratch(call);
      path_.take_weights(call, scratches_[thread]);
    }
  }

  void operator()(std::int64_t from, std::int64_t to, int thread) const noexcept {
    if (from == to) return;
    const WindowScratch& scratch = scratches_[thread];
    std::int64_t read = 0, written = 0;
    const auto above = std::upper_bound(before_.begin(), before_.begin() + call_.requests + 1, from);
    std::int64_t q = above - before_.begin() - 1;
    for (std::int64_t window = from; window < to; ++window) {
      while (before_[q + 1] <= window) ++q;
      const std::int64_t entry = call_.first_entry(q) + window - before_[q];
      const std::int64_t slot = entry_slot(call_, q, entry, window);
      if (slot < 0) continue;
      read += close(WindowSlots(call_, q, entry), scratch);
      store(slot, scratch.packed);
      written += call_.layout.row_bytes;
    }
    if (call_.traffic == nullptr) return;
    call_.traffic->read.fetch_add(read);
    call_.traffic->written.fetch_add(written);
  }

 private:
  // One window's packed row into the scratch. Returns: the bytes read.
  std::int64_t close(const WindowSlots& window, const WindowScratch& scratch) const {
    Slot slots[chunk_slots];
    std::int64_t read = 0;
    bool near = true;
    for (std::int64_t at = 0; at < window.count() && near; at += chunk_slots) {
      const int count = static_cast<int>(std::min<std::int64_t>(chunk_slots, window.count() - at));
      read += window.fill(at, count, slots);
      near = path_.pool(slots, count, call_.width, at == 0, scratch);
    }
    if (near) {
      const double mean_square = path_.divide(call_.width, scratch);
      if (mean_square >= least_mean_square && std::isfinite(mean_square)) {
        return read + path_.finish(call_, window.rows(), mean_square, 1, scratch);
      }
    }
    return read + close_again(window, scratch);
  }

  // The same for scores and values of any size.
  std::int64_t close_again(const WindowSlots& window, const WindowScratch& scratch) const {
    Slot slots[chunk_slots];
    std::int64_t read = 0;
    std::uint32_t most_value = 0;
    bool numbers = true;
    const auto chunks = [&](auto&& body) {
      for (std::int64_t at = 0; at < window.count(); at += chunk_slots) {
        const int count = static_cast<int>(std::min<std::int64_t>(chunk_slots, window.count() - at));
        read += window.fill(at, count, slots);
        body(count, at == 0);
      }
    };
    chunks([&](int count, bool first) {
      numbers &= path_.scan(slots, count, call_.width, first, scratch, most_value);
    });
    for (std::int64_t i = 0; i < call_.width; ++i)
      numbers &= scratch.largest[i] != -std::numeric_limits<float>::infinity();
    const float scale = most_value >= large_value_bits ? large_value_scale : 1.0f;
    if (numbers) {
      chunks(
          [&](int count, bool first) { path_.pool_below(slots, count, call_.width, first, scratch, scale); });
    } else {  // no softmax of such scores: the entry is no number in any channel
      std::fill_n(scratch.sums, scratch.padded, std::numeric_limits<float>::quiet_NaN());
      std::fill_n(scratch.powers, scratch.padded, 1.0f);
    }
    const double mean_square = path_.divide(call_.width, scratch);
    return read + path_.finish(call_, window.rows(), mean_square, static_cast<double>(scale), scratch);
  }

  void store(std::int64_t slot, const std::uint8_t* packed) const {
    const RowLayout& layout = call_.layout;
    std::byte* const page = call_.pages + slot / layout.page_rows * call_.page_stride;
    const std::int64_t row = slot % layout.page_rows, footer = layout.footer_bytes();
    std::memcpy(page + row * layout.data_bytes, packed, static_cast<std::size_t>(layout.data_bytes));
    if (footer == 0) return;
    std::memcpy(page + layout.page_rows * layout.data_bytes + row * footer, packed + layout.data_bytes,
                static_cast<std::size_t>(footer));
  }

  const CompressTail& call_;
  const std::vector<std::int64_t>& before_;  // windows of the requests before each, and of all
  const CompressPath& path_;
  std::array<WindowScratch, most_threads> scratches_;
};

// New carries, shared out by request.
class CarryWork {
 public:
  explicit CarryWork(const CompressTail& call) : call_(call), path_(compress_path()) {}

  void operator()(std::int64_t from, std::int64_t to) const noexcept {
    std::int64_t read = 0, written = 0;
    for (std::int64_t q = from; q < to; ++q) {
      const std::int64_t last = call_.last(q), opened = last - last % call_.ratio;
      for (std::int64_t token = call_.first_live(last); token < last; ++token) {
        const std::int64_t live = token >= opened ? call_.row_width() : call_.width;
        const std::int64_t bytes = keep(q, token, live);
        read += bytes;
        if (bytes != 0) written += 2 * live * static_cast<std::int64_t>(sizeof(float));
      }
    }
    if (call_.traffic == nullptr) return;
    call_.traffic->read.fetch_add(read);
    call_.traffic->written.fetch_add(written);
  }

 private:
  // One token's live channels into the new carry. Returns: the bytes read, 0 where they are there already.
  std::int64_t keep(std::int64_t q, std::int64_t token, std::int64_t live) const {
    const std::int64_t slot = token % call_.ring_rows(), position = call_.position(q);
    float* const to = call_.new_carry.row(q, slot);
    if (token < position) {
      const float* const from = call_.carry.row(q, slot);
      if (from == to) return 0;
      const std::size_t bytes = static_cast<std::size_t>(live) * sizeof(float);
      std::memcpy(to, from, bytes);
      std::memcpy(to + call_.row_width(), from + call_.row_width(), bytes);
      return static_cast<std::int64_t>(2 * bytes);
    }
    const std::int64_t row = call_.starts[q] + token - position;
    path_.widen(call_.kv.row(row), call_.kv.wide, live, to);
    path_.widen(call_.score.row(row), call_.score.wide, live, to + call_.row_width());
    return live * ((call_.kv.wide ? 4 : 2) + (call_.score.wide ? 4 : 2));
  }

  const CompressTail& call_;
  const CompressPath& path_;
};

}  // namespace

void compress_tail(const CompressTail& call, int threads) noexcept {
  thread_local std::vector<std::int64_t> kept;
  std::vector<std::int64_t>& before = kept;
  if (static_cast<std::int64_t>(before.size()) <= call.requests)
    before.resize(static_cast<std::size_t>(call.requests) + 1);
  std::int64_t windows = 0;
  for (std::int64_t q = 0; q < call.requests; ++q) {
    before[q] = windows;
    windows += call.end_entry(q) - call.first_entry(q);
  }
  before[call.requests] = windows;
  const std::int64_t row_bytes = call.row_width() * ((call.kv.wide ? 4 : 2) + (call.score.wide ? 4 : 2));
  const auto worth =
      static_cast<int>(std::clamp<std::int64_t>(call.rows * row_bytes / thread_bytes, 1, threads));
  const WindowWork closing(call, before, worth);
  // Where windows overlap a share reads again what the one before it read last: few shares, but some for each thread.
  const std::int64_t windows_a_share =
      std::min(share_bytes / (row_bytes * call.ratio), windows / (4 * worth));
  share_out(windows, std::max<std::int64_t>(windows_a_share, 1), worth, closing);
  if (call.new_carry.base == nullptr) return;
  const CarryWork keeping(call);
  const std::int64_t ring_bytes = call.ring_rows() * call.row_width() * 8;
  share_out(call.requests, std::max<std::int64_t>(share_bytes / ring_bytes, 1), worth, keeping);
}

}  // namespace hkv
