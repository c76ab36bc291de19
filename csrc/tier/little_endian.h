// SPDX-License-Identifier: Apache-2.0
// Integers and keys at places of a byte array, little endian on every machine; compilers make one move of it.
//
// Thread safety: pure. Requires, of every operation: the place lies within the bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace hkv {

template <class T>
void put_le(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> 8 * i);
}
template <class T>
T get_le(const std::byte* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << 8 * i);
  return value;
}
inline void put_le(std::byte* at, const Key128& key) {
  put_le(at, key.lo);
  put_le(at + 8, key.hi);
}
template <>
inline Key128 get_le<Key128>(const std::byte* at) {
  return {get_le<std::uint64_t>(at), get_le<std::uint64_t>(at + 8)};
}

}  // namespace hkv
