// SPDX-License-Identifier: Apache-2.0
#include "kernels/fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/fingerprint_math.h"
#include "kernels/workers.h"

namespace hkv {
namespace {

using namespace fingerprint_math;

constexpr std::int64_t thread_bytes = std::int64_t{1} << 19;  // what makes another thread worth waking
constexpr std::int64_t share_bytes = std::int64_t{1} << 17;

constexpr std::array<std::uint64_t, chunk_words> make_keys() {
  std::array<std::uint64_t, chunk_words> keys{};
  for (std::uint64_t i = 0; i < chunk_words; ++i) keys[i] = term(i);
  return keys;
}
alignas(64) constexpr std::array<std::uint64_t, chunk_words> keys = make_keys();

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// The sum of products over `pairs` pairs of words from the start of a chunk.
U128 sum_of(const std::byte* at, std::int64_t pairs) {
  U128 even = 0, odd = 0;  // two sums, so that one does not wait for the carry of the other
  std::int64_t i = 0;
  for (; i + 2 <= pairs; i += 2) {
    const std::byte* four = at + 16 * i;
    even += U128{word_at(four) + keys[2 * i]} * (word_at(four + 8) + keys[2 * i + 1]);
    odd += U128{word_at(four + 16) + keys[2 * i + 2]} * (word_at(four + 24) + keys[2 * i + 3]);
  }
  if (i < pairs)
    even += U128{word_at(at + 16 * i) + keys[2 * i]} * (word_at(at + 16 * i + 8) + keys[2 * i + 1]);
  return even + odd;
}

// Chunks of one content, in order.
class Digest {
 public:
  explicit Digest(std::int64_t bytes) : sum_(reduced(static_cast<std::uint64_t>(bytes))) {}

  // The next chunk. Requires: all but the last are whole; what is missing of the last pair is read as zeros.
  void add(const std::byte* at, std::int64_t bytes) {
    const std::int64_t pairs = bytes / 16, rest = bytes % 16;
    U128 chunk = sum_of(at, pairs);
    if (rest != 0) {
      std::byte end[16] = {};
      std::memcpy(end, at + 16 * pairs, static_cast<std::size_t>(rest));
      chunk += U128{word_at(end) + keys[2 * pairs]} * (word_at(end + 8) + keys[2 * pairs + 1]);
    }
    sum_ = reduced(U128{sum_} + U128{times(chunk_value(chunk), power_)});
    power_ = times(power_, base3);
  }
  std::uint64_t value() const { return mix(sum_ + 1); }

 private:
  std::uint64_t sum_;
  std::uint64_t power_ = 1;
};

// A page whose packed form is in several pieces: chunks are put together first.
class Packer {
 public:
  explicit Packer(std::int64_t bytes) : digest_(bytes) {}
  void add(const std::byte* at, std::int64_t bytes) {
    while (bytes != 0) {
      const std::int64_t taken = std::min(bytes, chunk_bytes - held_);
      std::memcpy(chunk_ + held_, at, static_cast<std::size_t>(taken));
      held_ += taken;
      at += taken;
      bytes -= taken;
      if (held_ == chunk_bytes) flush();
    }
  }
  std::uint64_t value() {
    if (held_ != 0) flush();
    return digest_.value();
  }

 private:
  void flush() {
    digest_.add(chunk_, held_);
    held_ = 0;
  }

  Digest digest_;
  std::int64_t held_ = 0;
  alignas(64) std::byte chunk_[chunk_bytes];
};

// Bytes in one piece, while those at `next` (null: none) are fetched: pages are scattered, and each would begin with
// misses that nothing foresaw.
std::uint64_t of_piece(const std::byte* at, std::int64_t bytes, const std::byte* next) {
  Digest digest(bytes);
  for (std::int64_t from = 0; from < bytes; from += chunk_bytes) {
    const std::int64_t chunk = std::min(bytes - from, chunk_bytes);
    for (std::int64_t line = 0; next != nullptr && line < chunk; line += 64) {
      __builtin_prefetch(next + from + line, 0, 2);
    }
    digest.add(at + from, chunk);
  }
  return digest.value();
}

std::uint64_t of_page(const std::byte* at, const PageRows& page, const std::byte* next) {
  if (page.in_one_piece()) return of_piece(at, page.packed_bytes(), next);
  Packer packer(page.packed_bytes());
  for (std::int64_t row = 0; row < page.rows; ++row) packer.add(at + row * page.row_stride, page.row_bytes);
  packer.add(at + page.footer_offset, page.rows * page.footer_bytes);
  return packer.value();
}

}  // namespace

std::uint64_t fingerprint_of(const void* data, std::int64_t bytes) noexcept {
  return of_piece(static_cast<const std::byte*>(data), bytes, nullptr);
}

void fingerprint(const FingerprintGroup* groups, int group_count, int threads) noexcept {
  std::int64_t total = 0;
  for (int g = 0; g < group_count; ++g) {
    total += groups[g].page.packed_bytes() * groups[g].pieces.count * groups[g].layer_count;
  }
  const auto worth = static_cast<int>(std::min<std::int64_t>(threads, total / thread_bytes));
  for (int g = 0; g < group_count; ++g) {
    const FingerprintGroup& group = groups[g];
    const std::int64_t n = group.pieces.count;
    // Where a page is, null where it is missing.
    const auto place = [&group, n](std::int64_t i) -> const std::byte* {
      const PoolLayer& pool = group.layers[i / n];
      return group.pieces.is_missing(i % n) ? nullptr
                                            : pool.base + group.pieces.page(i % n) * pool.page_stride;
    };
    const auto some = [&group, &place](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        const std::byte* const page = place(i);
        const std::byte* const next = i + 1 < to ? place(i + 1) : nullptr;
        group.out[i] = page == nullptr ? 0 : of_page(page, group.page, next);
      }
    };
    const std::int64_t bytes = std::max<std::int64_t>(group.page.packed_bytes(), 1);
    share_out(n * group.layer_count, std::max<std::int64_t>(share_bytes / bytes, 1), worth, some);
  }
}

}  // namespace hkv
