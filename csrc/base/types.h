// SPDX-License-Identifier: Apache-2.0
// Strong ids and units. An index, a count and a size are different things and do not mix silently.
#pragma once
#include <cstdint>

namespace hkv {

// 128 bits that name a unit of tokens and everything before it: the first 16 bytes of its digest, each
// half in the byte order of the machine (x86-64: little endian), so that a digest array can be viewed.
struct Key128 {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  friend constexpr bool operator==(const Key128&, const Key128&) = default;
};
static_assert(sizeof(Key128) == 16);

enum class DescriptorId : std::uint32_t {};  // index of a descriptor, below `blocks`
enum class PageId : std::uint32_t {};        // index of a page in its group's pool

inline constexpr std::uint32_t none_u32 = 0xFFFFFFFFu;
inline constexpr DescriptorId no_descriptor{none_u32};
inline constexpr PageId no_page{none_u32};

constexpr std::uint32_t index(DescriptorId id) { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t index(PageId id) { return static_cast<std::uint32_t>(id); }

}  // namespace hkv
