// SPDX-License-Identifier: Apache-2.0
// The stream, the choice of path, and the portable compression.
#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/atomic.h"
#include "base/check.h"
#include "base/sha256_paths.h"

namespace hkv {

alignas(64) const std::uint32_t sha256_round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

namespace {

std::uint32_t big_endian(const std::uint8_t* bytes) noexcept {
  std::uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return __builtin_bswap32(word);
}

void compress(Sha256Words& state, const std::uint8_t* block) noexcept {
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    const std::uint32_t s0 = std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3);
    const std::uint32_t s1 = std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  Sha256Words v = state;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    const std::uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const std::uint32_t t1 = v[7] + s1 + choice + sha256_round_constants[i] + w[i];
    const std::uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    const std::uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    v = {t1 + s0 + majority, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += v[i];
}

Sha256Path first_choice() noexcept {
  const char* wish = std::getenv("HYBRIDKV_SHA256");
  if (wish != nullptr && std::string_view(wish) == sha256_name(Sha256Path::Portable)) {
    return Sha256Path::Portable;
  }
  return sha256_supported(Sha256Path::ShaNi) ? Sha256Path::ShaNi : Sha256Path::Portable;
}

Atom<int>& chosen() noexcept {
  static Atom<int> path(static_cast<int>(first_choice()));
  return path;
}

}  // namespace

void sha256_blocks_portable(Sha256Words& state, const std::uint8_t* data, std::size_t blocks) noexcept {
  for (std::size_t i = 0; i < blocks; ++i) compress(state, data + i * sha256_block_bytes);
}

bool sha256_supported(Sha256Path path) noexcept {
#if defined(__x86_64__)
  static const bool instructions = sha_ni_supported();
  return path == Sha256Path::Portable || instructions;
#else
  return path == Sha256Path::Portable;
#endif
}

Sha256Path sha256_path() noexcept { return static_cast<Sha256Path>(chosen().load()); }

void sha256_choose(Sha256Path path) {
  if (!sha256_supported(path)) {
    throw Error{ErrorCode::ArgumentError, "path", "a SHA-256 path of this machine", sha256_name(path)};
  }
  chosen().store(static_cast<int>(path));
}

const char* sha256_name(Sha256Path path) noexcept {
  return path == Sha256Path::ShaNi ? "sha_ni" : "portable";
}

void sha256_blocks(Sha256Words& state, const void* data, std::size_t blocks) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
#if defined(__x86_64__)
  if (sha256_path() == Sha256Path::ShaNi) return sha256_blocks_sha_ni(state, bytes, blocks);
#endif
  sha256_blocks_portable(state, bytes, blocks);
}

Sha256Digest sha256_bytes(const Sha256Words& words) noexcept {
  Sha256Digest out;
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint32_t word = __builtin_bswap32(words[i]);
    std::memcpy(out.data() + 4 * i, &word, sizeof word);
  }
  return out;
}

Sha256& Sha256::update(const void* data, std::size_t bytes) noexcept {
  if (bytes == 0) return *this;
  const auto* from = static_cast<const std::uint8_t*>(data);
  const std::size_t held = bytes_ % sha256_block_bytes;
  bytes_ += bytes;
  if (held != 0) {
    const std::size_t taken = std::min(bytes, sha256_block_bytes - held);
    std::memcpy(pending_.data() + held, from, taken);
    from += taken;
    bytes -= taken;
    if (held + taken < sha256_block_bytes) return *this;
    sha256_blocks(state_, pending_.data(), 1);
  }
  const std::size_t whole = bytes / sha256_block_bytes;
  if (whole != 0) sha256_blocks(state_, from, whole);
  const std::size_t left = bytes % sha256_block_bytes;
  if (left != 0) std::memcpy(pending_.data(), from + whole * sha256_block_bytes, left);
  return *this;
}

Sha256Words Sha256::finish() noexcept {
  const std::size_t held = bytes_ % sha256_block_bytes;
  std::uint8_t end[2 * sha256_block_bytes] = {};
  std::memcpy(end, pending_.data(), held);
  end[held] = 0x80;
  const std::size_t blocks = held + 9 <= sha256_block_bytes ? 1 : 2;
  const std::uint64_t bits = __builtin_bswap64(bytes_ * 8);
  std::memcpy(end + blocks * sha256_block_bytes - sizeof bits, &bits, sizeof bits);
  sha256_blocks(state_, end, blocks);
  return state_;
}

}  // namespace hkv
