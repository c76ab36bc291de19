# SPDX-License-Identifier: Apache-2.0
"""Field cases of isolation: weak hashes, crafted collisions, objects sent as bytes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import full_swa, give_back, keys_of
from hybridkv import _core
from hybridkv.tiers import RecordKey, RecordKind

PACKAGE = Path(hk.__file__).resolve().parent


def colliding_words() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two token lists of one CRC-32: the second is the first but for four words, of which three are free."""
    one = np.arange(16, dtype=np.uint32)
    wanted, seen = zlib.crc32(one.tobytes()), {}
    base = one.copy()
    # CRC is linear: the change of the last word alone reaches every value, so it can undo any change before.
    base[3] ^= 0x55AA
    states = [zlib.crc32(base[:15].tobytes() + (1 << bit).to_bytes(4, "little")) for bit in range(32)]
    zero = zlib.crc32(base[:15].tobytes() + bytes(4))
    rows = {bit: state ^ zero for bit, state in enumerate(states)}
    left, word = wanted ^ zero, 0
    for bit in range(32):  # elimination over GF(2)
        combined, mask = rows[bit], 1 << bit
        for lead, (value, bits) in seen.items():
            if combined >> lead & 1:
                combined, mask = combined ^ value, mask ^ bits
        if combined:
            lead = combined.bit_length() - 1
            seen = {k: (v ^ combined, b ^ mask) if v >> lead & 1 else (v, b) for k, (v, b) in seen.items()}
            seen[lead] = (combined, mask)
    for lead in sorted(seen, reverse=True):
        if left >> lead & 1:
            left, word = left ^ seen[lead][0], word ^ seen[lead][1]
    base[15] = word
    return one, base


def test_FC_196_lists_that_collide_under_a_weak_hash_are_apart() -> None:
    one, two = colliding_words()
    assert zlib.crc32(one.tobytes()) == zlib.crc32(two.tobytes())
    assert not np.array_equal(one, two)
    cache = full_swa()
    cache.insert(hk.block_keys(one, 16))
    assert cache.match(hk.block_keys(two, 16), limit=17).outcome is hk.Outcome.MISS
    assert give_back(cache.match(hk.block_keys(one, 16), limit=17)) == 16


def test_FC_197_hashes_of_an_engine_take_no_salt_and_are_no_parents() -> None:
    """A chain that is not ours cannot be salted here, so nobody is told that it were."""
    with pytest.raises(TypeError):
        hk.BlockKeys.from_hashes([b"h" * 16], 16, identity=hk.Identity(salt=b"s"))  # type: ignore[call-arg]
    foreign = hk.BlockKeys.from_hashes([b"h" * 16], 16)
    assert foreign.identity is None
    with pytest.raises(hk.ArgumentError):
        hk.block_keys(range(16), 16, parent=foreign, identity=hk.Identity(salt=b"s"))
    for short in (b"", b"h" * 8, b"h" * 15):
        with pytest.raises(hk.ArgumentError):
            hk.BlockKeys.from_hashes([short], 16)


def test_FC_199_nothing_listens() -> None:
    """No module of the package opens a port; bytes of others are data with checked lengths (test_fuzz.py).

    The probe asks a service, and is a client alone.
    """
    client = {"probe/endpoint.py": {"http", "socket", "ssl"}}
    network = {"socket", "socketserver", "asyncio", "http", "xmlrpc", "multiprocessing", "zmq", "ssl", "selectors"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            allowed = client.get(path.relative_to(PACKAGE).as_posix(), set())
            assert not {name.partition(".")[0] for name in names} & network - allowed, path.name
            called = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            assert called not in ("listen", "create_server", "bind_and_activate", "serve_forever"), path.name


@pytest.mark.parametrize("crafted", [b"\x80\x04\x95", object(), {"digest": b"x" * 16}, "x", 7, None])
def test_FC_200_what_frees_blocks_takes_keys_and_no_objects(crafted: Any) -> None:
    cache = full_swa()
    cache.insert(keys_of(32))
    with hk.MemoryTier(1 << 20) as tier:
        with pytest.raises(hk.ArgumentError):
            tier.remove([crafted])
        with pytest.raises(hk.ArgumentError):
            cache.evict(crafted)
    for digest in (crafted, b"x" * 15):
        with pytest.raises(hk.ArgumentError):
            RecordKey(digest, b"f" * 16, RecordKind.BLOCK)
    assert give_back(cache.match(keys_of(33))) == 32


def test_FC_202_the_hash_is_one_and_all_of_it_counts() -> None:
    """No setting chooses another: what can be chosen computes the same; keys that share 64 bits are apart."""
    chosen = _core.sha256_path()
    rows = {}
    try:
        for path in ("portable", "sha_ni"):
            if _core.sha256_supported(path):
                _core.sha256_choose(path)
                rows[path] = hk.block_keys(range(4096), 16, identity=hk.Identity("m", salt=b"s")).digests.tobytes()
    finally:
        _core.sha256_choose(chosen)
    assert len(set(rows.values())) == 1
    for half in (slice(0, 8), slice(8, 16)):
        one, two = bytearray(b"k" * 16), bytearray(b"k" * 16)
        two[half] = b"l" * 8
        cache = full_swa()
        cache.insert(hk.BlockKeys.from_hashes([bytes(one)], 16))
        verdict = cache.match(hk.BlockKeys.from_hashes([bytes(two), b"x" * 16], 16), limit=17)
        assert verdict.outcome is hk.Outcome.MISS


_PRINTED = "import hybridkv as hk; print(hk.block_keys(range(64), 16).digests.tobytes().hex())"


def test_FC_203_no_key_depends_on_a_seed() -> None:
    """The chain is cryptographic: a seed that is known, or 0, makes nothing easier."""
    printed = set()
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", _PRINTED]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        printed.add(run.stdout.strip())
    assert printed == {hk.block_keys(range(64), 16).digests.tobytes().hex()}
