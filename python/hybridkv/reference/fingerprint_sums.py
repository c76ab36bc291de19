# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of bytes: NH over chunks of 128 words of 64 bits, then a polynomial modulo 2**61 - 1.

With p = 2**61 - 1 and keys k[0..127] and r drawn by SplitMix64 from a fixed seed:

1. The bytes, zeros appended up to a multiple of 16, are little-endian 64-bit words w; chunk j holds words 128 j to
   128 j + 127, the last chunk those that are left.
2. ``A[j] = sum over even i of ((w[i] + k[i]) mod 2**64) * ((w[i + 1] + k[i + 1]) mod 2**64) mod 2**128``, indices
   within the chunk.
3. ``F = bytes + sum_j (A[j] mod 2**43) r**(3 j + 1) + (A[j] >> 43 mod 2**43) r**(3 j + 2) + (A[j] >> 86) r**(3 j + 3)``
   modulo p.
4. ``fingerprint = mix(F + 1)``, never 0.

Sums may be taken in any order, by any number of threads. No cryptographic hash: the keys are constants.

Source of NH: UMAC (RFC 4418); of the mixing function and the sequence: SplitMix64 (Steele, Lea, Flood, 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PRIME = 2**61 - 1
WORD = 2**64
CHUNK_WORDS = 128
SEED = 0x6879627269646B76
STEP = 0x9E3779B97F4A7C15
LIMB_BITS = 43


def mix(number: int) -> int:
    """Permute the integers below 2**64, as SplitMix64 does."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % WORD
    return number ^ (number >> 31)


_DRAWN = [mix((SEED + (i + 1) * STEP) % WORD) for i in range(CHUNK_WORDS + 1)]

WORD_KEYS: tuple[int, ...] = tuple(_DRAWN[:CHUNK_WORDS])
"""k: one for each word of a chunk."""

BASE = _DRAWN[CHUNK_WORDS] % PRIME
"""r: the base of the polynomial."""


def fingerprint_of(content: npt.NDArray[np.uint8] | bytes) -> int:
    """Return the fingerprint of bytes.

    Parameters
    ----------
    content : uint8 ndarray, [[bytes]], or bytes
        Any number of them, none included.

    Returns
    -------
    int
        In [1, 2**64).
    """
    data = content if isinstance(content, bytes) else content.tobytes()
    padded = data + bytes(-len(data) % 16)
    words: list[int] = np.frombuffer(padded, "<u8").tolist()  # Python's integers: nothing overflows
    total, power = len(data), 1
    for first in range(0, len(words), CHUNK_WORDS):
        keyed = [(w + k) % WORD for w, k in zip(words[first : first + CHUNK_WORDS], WORD_KEYS, strict=False)]
        rest = sum(a * b for a, b in zip(keyed[0::2], keyed[1::2], strict=True)) % 2**128
        for bits in (LIMB_BITS, LIMB_BITS, 128 - 2 * LIMB_BITS):
            power = power * BASE % PRIME
            total += (rest % 2**bits) * power
            rest >>= bits
    return mix(total % PRIME + 1)
