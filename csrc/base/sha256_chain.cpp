// SPDX-License-Identifier: Apache-2.0
// Padding of records, the portable chain, dispatch.
#include "base/sha256_chain.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/sha256_paths.h"

namespace hkv {

Sha256Record::Sha256Record(std::size_t record_bytes, const void* trailer, std::size_t trailer_bytes)
    : bytes(record_bytes),
      whole(record_bytes / sha256_block_bytes),
      end_blocks(record_bytes % sha256_block_bytes + trailer_bytes + 9 <= sha256_block_bytes ? 1 : 2),
      end_is_constant(record_bytes % sha256_block_bytes == 0) {
  HKV_CHECK(trailer_bytes <= sha256_block_bytes - 9);
  const std::size_t rest = record_bytes % sha256_block_bytes;
  std::memcpy(end.data() + rest, trailer, trailer_bytes);
  end[rest + trailer_bytes] = 0x80;
  const std::uint64_t bits = __builtin_bswap64(8 * static_cast<std::uint64_t>(record_bytes + trailer_bytes));
  std::memcpy(end.data() + end_blocks * sha256_block_bytes - sizeof bits, &bits, sizeof bits);
  if (!end_is_constant) return;
  auto& w = end_rounds;
  for (std::size_t i = 0; i < 16; ++i) {
    std::memcpy(&w[i], end.data() + 4 * i, sizeof w[i]);
    w[i] = __builtin_bswap32(w[i]);
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  for (std::size_t i = 0; i < 64; ++i) w[i] += sha256_round_constants[i];
}

void sha256_split(const Sha256Words& words, Key128& head, Key128& tail) noexcept {
  const Sha256Digest bytes = sha256_bytes(words);
  std::memcpy(&head, bytes.data(), sizeof head);
  std::memcpy(&tail, bytes.data() + sizeof head, sizeof tail);
}

Sha256Words sha256_join(const Key128& head, const Key128& tail) noexcept {
  Sha256Words words;
  std::memcpy(words.data(), &head, sizeof head);
  std::memcpy(words.data() + 4, &tail, sizeof tail);
  for (std::uint32_t& word : words) word = __builtin_bswap32(word);
  return words;
}

Sha256Words sha256_link(const Sha256Words& chain, const Sha256Words& local) noexcept {
  const Sha256Digest parent = sha256_bytes(chain), child = sha256_bytes(local);
  return Sha256()
      .update(parent.data(), sha256_link_parent_bytes)
      .update(child.data(), sha256_link_local_bytes)
      .finish();
}

void sha256_chain_portable(const Sha256Record& record, const std::uint8_t* records, std::size_t count,
                           Sha256Words& chain, Key128* heads, Key128* tails) noexcept {
  auto end = record.end;
  for (std::size_t i = 0; i < count; ++i, records += record.bytes) {
    Sha256Words local = sha256_start;
    sha256_blocks_portable(local, records, record.whole);
    std::memcpy(end.data(), records + record.whole * sha256_block_bytes, record.bytes % sha256_block_bytes);
    sha256_blocks_portable(local, end.data(), record.end_blocks);
    chain = sha256_link(chain, local);
    sha256_split(chain, heads[i], tails[i]);
  }
}

void sha256_chain(const Sha256Record& record, const void* records, std::size_t count, Sha256Words& chain,
                  Key128* heads, Key128* tails) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(records);
#if defined(__x86_64__)
  if (sha256_path() == Sha256Path::ShaNi) {
    return sha256_chain_sha_ni(record, bytes, count, chain, heads, tails);
  }
#endif
  sha256_chain_portable(record, bytes, count, chain, heads, tails);
}

}  // namespace hkv
