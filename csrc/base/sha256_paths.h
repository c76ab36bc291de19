// SPDX-License-Identifier: Apache-2.0
// The two implementations behind sha256.h and sha256_chain.h. Included by those sources only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/sha256.h"
#include "base/sha256_chain.h"

namespace hkv {

// Round constants of the standard.
extern const std::uint32_t sha256_round_constants[64];

void sha256_blocks_portable(Sha256Words& state, const std::uint8_t* data, std::size_t blocks) noexcept;
void sha256_chain_portable(const Sha256Record& record, const std::uint8_t* records, std::size_t count,
                           Sha256Words& chain, Key128* heads, Key128* tails) noexcept;
#if defined(__x86_64__)
bool sha_ni_supported() noexcept;
void sha256_blocks_sha_ni(Sha256Words& state, const std::uint8_t* data, std::size_t blocks) noexcept;
void sha256_chain_sha_ni(const Sha256Record& record, const std::uint8_t* records, std::size_t count,
                         Sha256Words& chain, Key128* heads, Key128* tails) noexcept;
#endif

}  // namespace hkv
