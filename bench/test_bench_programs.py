# SPDX-License-Identifier: Apache-2.0
"""The C++ programs: built by `make bench`, run here, their figures put into the table."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

_FOLDER = os.environ.get("HYBRIDKV_BENCH_PROGRAMS")

# Figure -> (what, must, aim): medians of ratios within one round; all but the reader beside a writer shall be large.
_RATIOS = {
    "hit_of_limit": ("two-line limit over hit", 0.60, 0.75),
    "hit_of_limit_x2": ("two-line limit over hit, two readers", 0.60, 0.75),
    "hit_of_pairs": ("pairs of lines in one stream over hit", None, None),
    "miss_of_limit": ("one-line limit over miss", None, None),
    "readers_1_to_2": ("hits a second, two readers over one", 1.85, None),
    "beside_writer": ("reader beside a writer over alone", 1.10, None),
    "boost_hit": ("boost::unordered_flat_map's hit over ours", None, None),
    "boost_miss": ("boost::unordered_flat_map's miss over ours", None, None),
    "std_hit": ("std::unordered_map's hit over ours", None, None),
    "std_miss": ("std::unordered_map's miss over ours", None, None),
}
_TIMES = ("line", "descriptor", "hit", "miss", "aged_hit", "aged_miss", "boost_hit", "boost_miss", "update")


def figures_of(program: str, smoke: bool) -> dict[str, float]:
    if _FOLDER is None:
        pytest.skip("HYBRIDKV_BENCH_PROGRAMS does not name the folder of the built programs (make bench does)")
    path = Path(_FOLDER) / f"bench_{program}"
    assert path.exists(), f"{path} was not built"
    command = [str(path), "--json", *(["--smoke"] if smoke else [])]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def test_look_up(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("lookup", smoke), rounds=1)
    sizes = ["16Ki"] if smoke else ["1Mi", "16Mi"]
    for size in sizes:
        assert f"{size}_unplaced" not in figures
        assert figures[f"{size}_hit_ns"] > 0 and figures[f"{size}_found"] == 1 and figures[f"{size}_false_hits"] == 0
        for name, (operation, must, aim) in _RATIOS.items():
            if f"{size}_{name}" not in figures:
                continue
            value = figures[f"{size}_{name}"]
            timer.figure(f"{operation}, {size} entries", [value], must=must, aim=aim, unit="times",
                         at_least=name != "beside_writer")  # fmt: skip
        for name in _TIMES:
            if f"{size}_{name}_ns" in figures:
                timer.figure(f"{name.replace('_', ' ')}, {size} entries", [figures[f"{size}_{name}_ns"]], unit="ns")


def test_planes(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("planes", smoke), rounds=1)
    assert all(value == 0 for name, value in figures.items() if name.endswith("_differ"))
    if not smoke:
        timer.figure("longest length, planes of 65536 x 6", [figures["planes_65536_ns"]], must=300, unit="ns")
        timer.figure("the same, 4096 x 6 (1M tokens at unit 256)", [figures["planes_4096_ns"]], unit="ns")


def test_pool(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("pool", smoke), rounds=1)
    assert figures["free_at_end"] == 1
    if smoke:
        return
    for name, operation, must in (
        ("pool64_1", "take and give back a page, 64 at a time", 1.0),
        ("pool64_2", "the same, two threads", 0.55),
        ("tight64_1", "the same, 1.6 % free and scattered", 12),
        ("pool1_1", "one at a time", None),
    ):
        timer.figure(operation, [figures[f"{name}_ns"]], must=must, unit="ns")
    for name, operation in (
        ("times_mutexed_2", "mutexed vector over pool, 64 at a time, two threads"),
        ("times_treiber_2", "Treiber stack over pool, one at a time, two threads"),
    ):
        timer.figure(operation, [figures[name]], unit="times", at_least=True)
    timer.figure("pages a second, two threads over one", [figures["threads_1_to_2"]], must=1.85, unit="times",
                 at_least=True)  # fmt: skip


def test_tickets(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("tickets", smoke), rounds=1)
    assert figures["wrong"] == 0 and figures["held_at_end"] == 0
    if smoke:
        return
    for name, operation, must, unit in (
        ("step_1", "core: step of 1,024 requests, 1 group", None, "us"),
        ("step_3", "the same, 3 groups", None, "us"),
        ("step_6", "the same, 6 groups", 10, "us"),
        ("publish", "admit, grow, publish, close: a block of a 64k prompt, 2 groups", 100, "ns"),
        ("evicting", "the same where each page is evicted first", 150, "ns"),
        ("release_1M", "release of 1M tokens, 16,384 blocks x 6 groups", 2, "ms"),
        ("pin", "pin of a block, random, 1M descriptors", 15, "ns"),
        ("drop", "its release", 15, "ns"),
    ):
        timer.figure(operation, [figures[name]], must=must, unit=unit)
    timer.figure("pin over a random line read", [figures["pin_of_line"]], unit="times")


def test_gather(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("gather", smoke), rounds=1)
    assert figures["wrong"] == 0
    if smoke:
        return
    for page, must, aim in ((4096, 0.44, 0.5), (16384, 0.59, 0.65), (37376, 0.75, 0.8), (65536, 0.90, 0.95)):
        for threads in (1, 2):
            for name in ("gather", "memcpy", "verified", "scatter", "fingerprint"):
                gated = name == "gather"
                timer.figure(f"{name}, pages of {page}, threads {threads}: of a sequential streamed copy",
                             [figures[f"{page}_{threads}_{name}"]], must=must if gated else None,
                             aim=aim if gated else None, unit="times", at_least=True)  # fmt: skip
    for threads in (1, 2):
        for name in ("rows", "memcpy"):
            timer.figure(f"{name} of 584 bytes, threads {threads}: of a sequential streamed copy",
                         [figures[f"rows_{threads}_{name}"]], unit="times", at_least=True)  # fmt: skip


def test_match_in_the_core(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("match", smoke), rounds=1)
    for name, value in figures.items():
        what, _, unit = name.rpartition(" ")
        if unit == "tokens":
            assert value > 0
        elif unit == "percent":
            timer.figure(f"core: {what.rstrip(':')}, of it", [value], must=3, unit=unit)
        else:
            timer.figure(f"core: {what}", [value], unit=unit)


def test_key_chain(timer, smoke):
    """Prints its own table; it must run."""
    if _FOLDER is None:
        pytest.skip("HYBRIDKV_BENCH_PROGRAMS does not name the folder of the built programs (make bench does)")
    command = [str(Path(_FOLDER) / "bench_sha256_chain"), *(["--smoke"] if smoke else [])]
    run = timer.benchmark.pedantic(
        subprocess.run, args=(command,), kwargs={"capture_output": True, "text": True, "check": True}, rounds=1
    )
    assert "chain" in run.stdout
    if not smoke:
        for line in run.stdout.splitlines():
            timer.note(line)


def test_compress(timer, smoke):
    figures = timer.benchmark.pedantic(figures_of, args=("compress", smoke), rounds=1)
    for shape in ("c4", "c128"):
        for threads, must, aim in ((1, 10, 15), (2, 10, 15)):
            name = f"compress {shape.upper()}, {threads} thread(s)"
            timer.figure(name, [figures[f"{shape}_{threads}_gbs"]], must=must, aim=aim, unit="GB/s", at_least=True)
            fraction = [figures[f"{shape}_{threads}_fraction"]]
            timer.figure(f"{name}: streaming read over it", fraction, must=0.35, aim=0.5, unit="times", at_least=True)


def test_disk_limits(timer, smoke):
    """The disk is left out, and the program says why, where there is no io_uring or no direct I/O."""
    figures = timer.benchmark.pedantic(figures_of, args=("disk_limits", smoke), rounds=1)
    assert figures["memcpy_gbs"] > 0
    if "write_1M_x8_gbs" in figures:
        for request in ("64K", "1M", "8M"):
            for depth in (1, 8, 16):
                for what in ("write", "read"):
                    name = f"{what}_{request}_x{depth}"
                    assert figures[f"{name}_gbs"] > 0 and figures[f"{name}_cpu"] > 0
                    timer.figure(f"raw disk: {what} of {request}, {depth} at a time", [figures[f"{name}_gbs"]],
                                 unit="GB/s")  # fmt: skip
    for name, value in figures.items():
        if name.startswith(("memcpy", "crc32c")):
            timer.figure(f"{name.removesuffix('_gbs')}, 64 KiB", [value], unit="GB/s")


def test_disk_tier(timer, smoke):
    """What is measured on the disk is left out, and the program says why, where there is no io_uring or direct I/O."""
    figures = timer.benchmark.pedantic(figures_of, args=("disk_tier", smoke), rounds=1)
    timer.figure("disk index: look-up among a million", [figures["look_ns"]], must=200, unit="ns")
    if "tier_write_1M_x16_gbs" not in figures:
        return
    for what, must in (("write_1M", 0.85), ("read_1M", 0.85), ("write_64K", 0.8), ("read_64K", 0.8)):
        share = [figures[f"tier_{what}_x16_of_raw_{what}_x16"]]
        timer.figure(
            f"disk tier: {what} over raw, 16 at a time", share, must=must, aim=0.92, unit="times", at_least=True
        )
    for what in ("write_1M", "read_1M"):
        timer.figure(f"disk tier: CPU of {what}", [figures[f"tier_{what}_x16_cpu"]], must=0.25, unit="s/GB")
    for peer in ("files_write_1M", "files_fsync_write_1M"):
        share = [figures[f"tier_write_1M_x16_of_{peer}"]]
        timer.figure(f"disk tier: write_1M over {peer}", share, unit="times", at_least=True)
    timer.figure("disk tier: opening", [figures["reopen_s_per_million"]], must=0.3, unit="s per million records")
