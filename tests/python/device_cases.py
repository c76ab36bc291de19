# SPDX-License-Identifier: Apache-2.0
"""Calls of ``hk.ops`` on device arrays under the stand-in driver, each in a process of its own.

``python device_cases.py NAME...`` runs the functions of those names, each in a fork, and prints of each its name,
whether it came through, and what it wrote, as JSON; ``HYBRIDKV_LIBCUDA`` names the library made of
``tests/cpp/fake_cuda``, whose device memory is host memory that is registered with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import ROPE, V4_ROPE, Call, a_call, rows_of
from hybridkv import _core
from hybridkv.doctor import doctor
from hybridkv.errors import KernelContract
from hybridkv.reference import PUBLISHED, published


class DeviceArray:
    """A numpy array as device memory, under ``__cuda_array_interface__``."""

    def __init__(self, array: np.ndarray[Any, Any], *, registered: bool = True) -> None:
        self.array = array
        if registered and array.nbytes:
            root = array
            while isinstance(root.base, np.ndarray):
                root = root.base
            driver().fake_register(ctypes.c_void_p(root.ctypes.data), ctypes.c_size_t(root.nbytes))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = self.array.__array_interface__
        return {**{key: told[key] for key in ("shape", "strides", "typestr", "data")}, "version": 3}


class DlpackArray:
    """A numpy array that says by DLPack that it lies on a CUDA device."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 0) -> None:
        self.known, self.device = DeviceArray(array), device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.device)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream == -1
        capsule = self.known.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        device = (ctypes.c_int32 * 2).from_address(pointer(capsule, b"dltensor") + 8)
        device[:] = self.__dlpack_device__()
        return capsule


def driver() -> ctypes.CDLL:
    """Return the stand-in, which the core has opened or will open too."""
    return ctypes.CDLL(os.environ["HYBRIDKV_LIBCUDA"])


def aligned(shape: tuple[int, ...], rng: np.random.Generator, off: int = 0) -> np.ndarray[Any, Any]:
    """Return random bytes at `off` behind a multiple of 64."""
    size = int(np.prod(shape))
    raw = rng.integers(0, 256, size + 128, np.uint8)
    start = -raw.ctypes.data % 64 + off
    return raw[start : start + size].reshape(shape)


def refused(call: Callable[[], None]) -> KernelContract:
    """Return the refusal of a call."""
    try:
        call()
    except KernelContract as error:
        return error
    raise AssertionError("was taken")


WITHOUT = "doctor_tells_why_there_is_none"
LAYOUT = hk.ops.PageRows(64, 576, None, 8)
IDS = np.array([3, -1, 0, 3, 1], np.int32)


def gather_gives_the_bytes_of_the_host() -> None:
    rng = np.random.default_rng(0)
    pools = [aligned((5, 37_376), rng) for _ in range(3)]
    for rows in (None, np.array([0, 5, 63, -1, 7], np.int32)):
        piece = 37_376 if rows is None else 584
        host, device = (np.full((3, 5, piece), 9, np.uint8) for _ in range(2))
        told, seen = np.full(5, 7, np.int32), np.full(5, 7, np.int32)
        hk.ops.gather(pools, IDS, host, rows=rows, layout=LAYOUT, status=told, null_page=1)
        hk.ops.gather(
            [DeviceArray(pool) for pool in pools], DeviceArray(IDS), DeviceArray(device), layout=LAYOUT,
            rows=None if rows is None else DeviceArray(rows), status=DeviceArray(seen), null_page=1,
        )  # fmt: skip
        assert (host == device).all()
        assert told.tolist() == seen.tolist()


def scatter_gives_the_bytes_of_the_host() -> None:
    rng = np.random.default_rng(1)
    ids = np.array([4, -1, 0, 2], np.int64)
    for off in (0, 8):
        source, host = aligned((4, 1168), rng, off), aligned((5, 2, 640), rng)
        device = aligned((5, 2, 640), rng, off)
        device[:] = host
        hk.ops.scatter(source, host[:, :, :584], ids)
        hk.ops.scatter(DeviceArray(source), DeviceArray(device[:, :, :584]), DeviceArray(ids))
        assert (host == device).all()


def fingerprints_are_those_of_the_host() -> None:
    rng = np.random.default_rng(2)
    pools = [aligned((5, 4096), rng), aligned((5, 4096), rng)]
    host, device = np.zeros((2, 5), np.uint64), np.zeros((2, 5), np.uint64)
    hk.ops.fingerprint(pools, IDS, host)
    hk.ops.fingerprint([DeviceArray(pool) for pool in pools], DeviceArray(IDS), DeviceArray(device))
    assert host.tolist() == device.tolist()
    assert host[0, 0] != 0 and host[0, 1] == 0


def several_groups_are_one_launch_on_the_callers_stream() -> None:
    rng = np.random.default_rng(3)
    pools = {name: aligned((4, size), rng) for name, size in (("a", 4096), ("b", 132), ("c", 64))}
    ids = {name: np.array([1, 2], np.int32) for name in pools}
    host = {name: np.zeros((2, pool.shape[1]), np.uint8) for name, pool in pools.items()}
    device = {name: np.zeros_like(array) for name, array in host.items()}

    def there(arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, DeviceArray]:
        return {name: DeviceArray(array) for name, array in arrays.items()}

    before = driver().fake_launches()
    hk.ops.gather(pools, ids, host)
    hk.ops.gather(there(pools), there(ids), there(device), stream=0x1230)
    assert driver().fake_launches() == before + 1
    assert driver().fake_last_stream() == 0x1230
    assert all((host[name] == device[name]).all() for name in pools)
    loads = driver().fake_loads_of_code()
    hk.ops.gather(there(pools), there(ids), there(device))
    assert driver().fake_loads_of_code() == loads  # code comes once, not in a launch that may be captured
    assert driver().fake_last_stream() == 0


def streams_are_handles_or_have_one() -> None:
    class Stream:
        cuda_stream = 77

    class Other:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 78)

    pool, ids, out = (DeviceArray(a) for a in (np.zeros((2, 16), np.uint8), IDS[1:2], np.zeros((1, 16), np.uint8)))
    for stream, handle in ((Stream(), 77), (Other(), 78), (5, 5)):
        hk.ops.gather(pool, ids, out, stream=stream)
        assert driver().fake_last_stream() == handle
    for stream in (-1, "main", 1.5):
        assert refused(lambda stream=stream: hk.ops.gather(pool, ids, out, stream=stream)).field == "stream"


def dlpack_gives_the_bytes_of_the_host() -> None:
    rng = np.random.default_rng(5)
    pool, ids = aligned((5, 4, 48), rng)[:, :, :32], np.array([4, 2], np.int64)
    host, device = np.zeros((2, 128), np.uint8), np.zeros((2, 128), np.uint8)
    hk.ops.gather(pool, ids, host)
    hk.ops.gather(DlpackArray(pool), DlpackArray(ids), DlpackArray(device))
    assert (host == device).all()
    error = refused(lambda: hk.ops.gather(DlpackArray(pool), DlpackArray(ids), DlpackArray(device, device=1)))
    assert (error.field, error.expected, error.got) == ("out", "an array on CUDA device 0", "CUDA device 1")


def put(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments whose arrays are device memory, copied."""
    return {
        name: DeviceArray(value.copy()) if isinstance(value, np.ndarray) else value for name, value in arguments.items()
    }


def compressed(call: Call, **changed: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Return pages and carry as a device makes them, and the launches that it took."""
    out, carry = call.out(), np.full_like(call.arguments["carry"], np.nan)
    given = put(call.arguments | changed)
    before = driver().fake_launches()
    hk.ops.compress_tail(
        given.pop("kv"), given.pop("score"), DeviceArray(out), new_carry=DeviceArray(carry), stream=0x40, **given
    )
    assert driver().fake_last_stream() == 0x40
    return out, carry, driver().fake_launches() - before


def compress_tail_gives_the_bytes_of_the_host() -> None:
    for seed, name in enumerate(sorted(PUBLISHED)):
        ratio = (1, 2, 4, 6, 16, 128)[seed % 6]
        call = a_call(
            seed, ratio, seed % 3 != 0, PUBLISHED[name].paged(5), rope=V4_ROPE, bits=seed % 2 == 0, most_rows=60
        )
        host, carry = call.run()
        there, kept, launches = compressed(call)
        assert (there == host).all(), name
        assert np.array_equal(kept, carry, equal_nan=True), name
        assert launches == 1


def compress_tail_is_within_the_bound() -> None:
    row_format = published.plain("float32", 40, page_rows=3)
    call = a_call(2, 4, True, row_format, rope=ROPE)
    slots, written = call.slots(), call.places() >= 0
    exact = call.compressor.entries(slots)
    bound = (ref.float32_bound(call.compressor, slots) + np.abs(exact) * 2.0**-24)[written]
    out, carry, _ = compressed(call)
    values = rows_of(out, call).view(np.float32)
    assert np.sum(written) > 10
    assert (np.abs(values - exact[written]) <= bound).all()
    assert np.array_equal(carry, call.specified()[1], equal_nan=True)


def compress_tail_in_place_and_in_order_is_as_on_the_host() -> None:
    call = a_call(4, 2, False, published.plain("bfloat16", 24, page_rows=3))
    given = call.arguments | {"page_ids": None}
    count = len(call.places())
    pages = [np.full((-(-count // 3), call.row_format.page_stride), 0xA5, np.uint8) for _ in range(2)]
    rings = [given["carry"].copy() for _ in range(2)]
    for index, (out, ring) in enumerate(zip(pages, rings, strict=True)):
        there = DeviceArray if index else lambda array: array
        arguments = (put(given) if index else dict(given)) | {"carry": there(ring), "new_carry": there(ring)}
        hk.ops.compress_tail(arguments.pop("kv"), arguments.pop("score"), there(out), **arguments)
    assert (pages[0] == pages[1]).all()
    assert np.array_equal(rings[0], rings[1], equal_nan=True)


def compress_tail_leaves_out_what_a_host_refuses() -> None:
    call = a_call(4, 4, True, published.plain("float32", 8, page_rows=3), most_requests=4, most_rows=60)
    ids = call.arguments["page_ids"].copy()
    ids[0] = -1
    host, _ = call.run(page_ids=ids.copy())
    ids[0] = call.pages + np.arange(ids.shape[1])
    assert refused(lambda: call.run(page_ids=ids) and None).field == "page_ids"
    there, _, _ = compressed(call, page_ids=ids)
    assert (there == host).all()


def compress_tail_refuses_other_devices_and_wide_rows() -> None:
    call = a_call(1, 4, True, published.plain("float32", 8), most_rows=60)
    given = put(call.arguments) | {"positions": call.arguments["positions"]}
    out = call.out()
    run = partial(hk.ops.compress_tail, given.pop("kv"), given.pop("score"), DeviceArray(out))
    error = refused(lambda: run(**given))
    assert (error.field, error.got) == ("positions", "host memory")
    wide = a_call(1, 1, False, published.plain("bfloat16", 2049, page_rows=1), most_rows=3, most_requests=1)
    assert refused(lambda: compressed(wide) and None).field == "norm_weight"
    long = published.plain("bfloat16", 2048, page_rows=1)
    long = replace(long, row_bytes=10_256, data_bytes=10_256)
    assert refused(lambda: compressed(a_call(1, 1, False, long, most_rows=3)) and None).field == "row_format"
    turned = a_call(1, 1, False, published.plain("bfloat16", 800), rope=ref.Rope(770, 1e4), most_rows=3)
    assert refused(lambda: compressed(turned) and None).field == "rope"
    parts = tuple(published.Part(f"part {k}", 2, "bfloat16", 4 * k) for k in range(9))
    many = replace(published.plain("bfloat16", 18), parts=parts)
    assert refused(lambda: compressed(a_call(1, 1, False, many, most_rows=3)) and None).field == "row_format"
    assert (out == call.out()).all()


def compress_tail_takes_dlpack() -> None:
    call = a_call(3, 2, True, published.plain("float32", 16, page_rows=3), bits=False, most_rows=40)
    host, _ = call.run()
    out = call.out()
    given = {
        name: DlpackArray(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in call.arguments.items()
    }
    hk.ops.compress_tail(given.pop("kv"), given.pop("score"), DlpackArray(out), **given)
    assert (out == host).all()


def handouts_are_verified() -> None:
    pool, out = np.arange(64, dtype=np.uint8).reshape(4, 16), np.full((3, 16), 9, np.uint8)
    counts, expected = np.array([1, 2, 3, 4], np.uint64), np.array([2, 9, 4], np.uint64)
    status = np.full(3, 7, np.int32)
    ids = np.array([1, 2, 3], np.int32)
    given = [DeviceArray(a) for a in (pool, ids, out, counts, expected, status)]
    hk.ops.gather(*given[:3], handouts=(given[3], given[4]), status=given[5])
    assert status.tolist() == [hk.ops.CopyStatus.OK, hk.ops.CopyStatus.STALE, hk.ops.CopyStatus.OK]
    assert out[0].tolist() == pool[1].tolist()
    assert not out[1].any()


def ids_out_of_range_are_told() -> None:
    pool, out, status = np.ones((4, 16), np.uint8), np.full((3, 16), 9, np.uint8), np.zeros(3, np.int32)
    ids = np.array([4, -2, 0], np.int32)
    hk.ops.gather(*(DeviceArray(a) for a in (pool, ids, out)), status=DeviceArray(status))
    assert status.tolist() == [4, 4, 0]
    assert not out[:2].any() and out[2].all()


def mixed_devices_are_refused() -> None:
    pool, out, ids = np.ones((4, 16), np.uint8), np.zeros((1, 16), np.uint8), np.array([1], np.int32)
    error = refused(lambda: hk.ops.gather(DeviceArray(pool), ids, DeviceArray(out)))
    assert (error.field, error.got) == ("page_ids", "host memory")
    error = refused(lambda: hk.ops.gather(pool, ids, DeviceArray(out)))
    assert (error.field, error.got) == ("out", "memory of a CUDA device")
    assert refused(lambda: hk.ops.gather(pool, ids, out, stream=1)).field == "stream"
    assert not out.any()


def overlap_alignment_and_size_are_refused() -> None:
    rng = np.random.default_rng(4)
    pool, ids = aligned((4, 32), rng), DeviceArray(np.array([1], np.int32))
    assert refused(lambda: hk.ops.gather(DeviceArray(pool), ids, DeviceArray(pool[2:3]))).field == "out"
    odd = aligned((1, 32), rng, off=8)
    assert "multiple of 16" in refused(lambda: hk.ops.gather(DeviceArray(pool), ids, DeviceArray(odd))).expected
    many = [DeviceArray(pool)] * 129
    out = DeviceArray(np.zeros((129, 1, 32), np.uint8))
    assert "at most 128" in refused(lambda: hk.ops.gather(many, ids, out)).expected


def a_fault_of_the_kernel_reaches_the_caller() -> None:
    pool, ids, out = np.ones((4, 16), np.uint8), np.array([1], np.int32), np.zeros((1, 16), np.uint8)
    unknown = DeviceArray(out, registered=False)
    error = refused(lambda: hk.ops.gather(DeviceArray(pool), DeviceArray(ids), unknown))
    assert "hkv_gather_by_warp" in error.got and "global memory" in error.got


def doctor_tells_the_device() -> None:
    assert doctor()["cuda"] == "1 devices, driver for CUDA 13.0"


def doctor_tells_why_there_is_none() -> None:
    reason = os.environ["HKV_REASON"]
    assert reason in doctor()["cuda"], doctor()["cuda"]
    pool, ids, out = np.ones((4, 16), np.uint8), np.array([1], np.int32), np.zeros((1, 16), np.uint8)
    error = refused(lambda: hk.ops.gather(DeviceArray(pool, registered=False), ids, out))
    assert reason in error.expected


CASES = {
    name: item
    for name, item in list(globals().items())
    if callable(item) and getattr(item, "__module__", "") == __name__ and item.__annotations__ == {"return": "None"}
    and name not in ("main", "run")
}  # fmt: skip


def run(name: str) -> tuple[bool, str]:
    """Run one case in a fork of this process, which has not opened the driver; tell whether it came through."""
    with tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if child == 0:
            os.dup2(told.fileno(), 2)
            status = 1
            try:
                assert name == WITHOUT or _core.cuda_facts()["available"], _core.cuda_facts()
                CASES[name]()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        return status == 0, told.read()


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps([case, *run(case)]), flush=True)
