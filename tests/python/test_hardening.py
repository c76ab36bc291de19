# SPDX-License-Identifier: Apache-2.0
"""Hostile arguments, specs, configurations and files: every refusal is of its class, names its field, and is quick."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import (
    ArgumentError,
    CacheGroup,
    CacheSpec,
    Checkpoint,
    Chunk,
    HybridKVError,
    KvFormat,
    Prefix,
    SpecError,
    StateKind,
    UnsupportedModel,
    Window,
    _core,
    block_keys,
    cli,
)
from hybridkv.pools import pool_arrays

HALF = "\ud800"  # half of a surrogate pair: a str that UTF-8 cannot encode
HUGE = 10**5000  # more digits than Python prints
NAN = float("nan")
RAISED = [KeyError, IndexError, AttributeError, ValueError, TypeError, RuntimeError, BufferError, ZeroDivisionError]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "torch_dtype": "bfloat16",
}
LLAMA4: dict[str, Any] = {"model_type": "llama4_text", "torch_dtype": "bfloat16"}
BAMBA: dict[str, Any] = {
    **LLAMA,
    "model_type": "bamba",
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}


class Odd:
    """Compares and converts by raising."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    def __bool__(self) -> bool:
        raise ValueError("no truth")

    def __index__(self) -> int:
        raise ValueError("no number")

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__
    __hash__ = object.__hash__


ARRAY = np.array([1, 2])


def id_of(value: object) -> str:
    return value.encode("ascii", "backslashreplace").decode() if isinstance(value, str) else type(value).__name__


def group(name: str = "g", kind: Any = StateKind.WINDOW, coverage: Any = None, **fields: Any) -> CacheGroup:
    return CacheGroup(name, kind, Window(16) if coverage is None else coverage, **{"page_bytes": 1024, **fields})


def refused(kind: type[HybridKVError], field: str, call: Callable[[], object]) -> HybridKVError:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert field in caught.value.field
    assert caught.value.expected
    return caught.value


@pytest.mark.parametrize("kind", [SpecError, ArgumentError, UnsupportedModel, hk.OutOfPages, hk.LeaseExpired])
@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_survive_pickle_and_copy(kind: type[HybridKVError], again: Callable[[Any], Any]) -> None:
    error = kind("pages", "a pool", [1, 2], pool="kv", needed=3, free=1)
    other = again(error)
    assert type(other) is kind
    assert (other.field, other.expected, other.got, other.context) == ("pages", "a pool", [1, 2], error.context)
    assert (other.pool, other.needed, other.free, str(other)) == ("kv", 3, 1, str(error))


def test_an_error_about_what_cannot_be_pickled_or_shown_still_arrives() -> None:
    other = pickle.loads(pickle.dumps(ArgumentError("x", "y", threading.Lock(), why=(threading.Lock(), Odd()))))
    assert "lock" in other.got and other.why == "<tuple>"
    assert "<int>" in str(SpecError("x", "y", HUGE))
    assert len(str(SpecError("x", "y", "z" * 10**6))) < 3000


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("name", lambda bad: group(bad)),
        ("layers", lambda bad: group(layers=[bad])),
        ("layers", lambda bad: CacheSpec.homogeneous([bad], 64)),
        ("parts", lambda bad: group(parts={bad: 1024})),
        ("format.layout", lambda bad: KvFormat(bad, "x")),
        ("format.dtype", lambda bad: KvFormat("x", bad)),
        ("format.scale", lambda bad: KvFormat("x", "y", scale=bad)),
        ("format.producer", lambda bad: KvFormat("x", "y", producer=bad)),
        ("format.yarn", lambda bad: KvFormat("x", "y", yarn={bad: 1})),
        ("format.yarn", lambda bad: KvFormat("x", "y", yarn={"a": bad})),
    ],
)
def test_a_str_that_cannot_be_encoded_is_refused(field: str, make: Callable[[Any], object]) -> None:
    refused(SpecError, field, lambda: make(HALF))
    refused(SpecError, field, lambda: make("a" + HALF + "b"))


@pytest.mark.parametrize("bad", [2**48, 2**62, 2**63, HUGE, ARRAY, Odd(), NAN], ids=id_of)
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("tokens", Window),
        ("tokens", Chunk),
        ("every", lambda n: Checkpoint(every=n)),
        *(
            (f, lambda n, f=f: group(**{f: n}))
            for f in (
                "page_bytes",
                "block_tokens",
                "row_bytes",
                "rows_per_page",
                "tokens_per_row",
                "alignment",
                "page_stride",
            )
        ),
        ("kind", lambda n: group(kind=n)),
        ("layers", lambda n: group(layers=[n])),
        ("layers", lambda n: CacheSpec.homogeneous(n, 64)),
        ("page_bytes", lambda n: CacheSpec.homogeneous(1, n)),
        ("unit_tokens", lambda n: CacheSpec(n, [group()])),
        ("unit_tokens", lambda n: CacheSpec.from_config(LLAMA, unit_tokens=n)),
        *(
            (f"format.{f}", lambda n, f=f: KvFormat("x", "y", **{f: n}))
            for f in ("tile", "ratio", "row_bytes", "page_rows", "page_stride", "alignment", "footer_offset", "schema")
        ),
    ],
)
def test_numbers_out_of_range_and_odd_objects_are_refused(field: str, make: Callable[[Any], object], bad: Any) -> None:
    assert refused(SpecError, field, lambda: make(bad)).got is bad


def test_the_limits_of_numbers_keep_products_below_2_to_the_62() -> None:
    top = 2**48 - 1
    spec = CacheSpec(2**24, [group(page_bytes=top, layers=range(10_000), coverage=Prefix())])
    assert spec.groups[0].total_page_bytes < 2**62
    assert spec.requirements(2**62 - 1)["g"].blocks == range(0, 2**38)
    refused(SpecError, "layers", lambda: group(layers=range(10_001)))
    refused(SpecError, "layers", lambda: group(layers=range(2**70)))
    refused(SpecError, "layers", lambda: CacheSpec.homogeneous(2**31, 64))
    refused(SpecError, "unit_tokens", lambda: CacheSpec(2**24 + 1, [group()]))
    refused(SpecError, "groups", lambda: CacheSpec(1, [group("a", block_tokens=top), group("b", block_tokens=top - 1)]))
    refused(ArgumentError, "tokens", lambda: spec.requirements(2**62))


@pytest.mark.parametrize("bad", [ARRAY, Odd(), 0, "", [], HALF], ids=id_of)
def test_odd_objects_where_a_name_or_an_object_belongs(bad: Any) -> None:
    spec = CacheSpec.homogeneous(1, 64)
    refused(ArgumentError, "dtype", lambda: CacheSpec.from_config(LLAMA, dtype=bad))
    refused(ArgumentError, "group", lambda: spec[bad])
    refused(ArgumentError, "group", lambda: spec.group(bad))
    refused(SpecError, "identity", lambda: CacheSpec.homogeneous(1, 64, identity=bad))
    refused(SpecError, "identity", lambda: CacheSpec.from_config(LLAMA, identity=bad))
    refused(SpecError, "format.layout", lambda: KvFormat(bad, "x"))
    refused(SpecError, "format.dtype", lambda: KvFormat("x", bad))
    refused(SpecError, "groups", lambda: CacheSpec(16, bad))


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf, 10**400, "1", Odd(), ARRAY], ids=id_of)
def test_numbers_of_a_format_are_finite(bad: Any) -> None:
    refused(SpecError, "format.theta", lambda: KvFormat("x", "y", theta=bad))
    if not isinstance(bad, str):
        refused(SpecError, "format.yarn", lambda: KvFormat("x", "y", yarn={"factor": bad}))


@pytest.mark.parametrize(
    "bad", [None, 5, [[-1, 4]], [[4], -1], [[1, [2]]], [np.array([1.5])], [Odd()], [[HUGE]]], ids=id_of
)
def test_intersect_refuses_what_are_no_lengths(bad: Any) -> None:
    refused(ArgumentError, "boundaries", lambda: hk.intersect(bad))


def raising(error: type[Exception], *names: str) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error("broken")

    fields: dict[str, Any] = {name: property(fail) if name.startswith("__array") else fail for name in names}
    return type("Broken", (), fields)()


class BrokenSequence(Sequence[Any]):
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: Any) -> Any:
        raise self.error("broken")

    def __iter__(self) -> Iterator[Any]:
        raise self.error("broken")


class OnHost:
    """Says that it lies in host memory, and cannot be exported."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise self.error("broken")


@pytest.mark.parametrize("error", RAISED)
def test_broken_protocols_of_others_are_refused(error: type[Exception]) -> None:
    device = raising(error, "__dlpack_device__", "__dlpack__")
    for tokens in (BrokenSequence(error), device, OnHost(error)):
        refused(ArgumentError, "tokens", lambda tokens=tokens: block_keys(tokens, 4))
    refused(ArgumentError, "media", lambda: block_keys([1], 4, media=BrokenSequence(error)))
    refused(ArgumentError, "media", lambda: block_keys([1], 4, media=[BrokenSequence(error)]))
    refused(ArgumentError, "hashes", lambda: hk.BlockKeys.from_hashes(BrokenSequence(error), 4))
    for item in (device, OnHost(error)):
        refused(ArgumentError, "arrays[0]", lambda item=item: pool_arrays(group(), 1024, item, 1))
    if error is not AttributeError:  # which means that there is none
        array = raising(error, "__array_interface__")
        refused(ArgumentError, "tokens", lambda: block_keys(array, 4))
        refused(
            ArgumentError,
            "arrays[1]",
            lambda: pool_arrays(group(layers=[0, 1]), 2048, [np.zeros((1, 1024), np.uint8), array], 1),
        )


def test_a_big_endian_memoryview_is_read_like_its_array() -> None:
    for dtype in (">u4", ">i8", ">u2"):
        ids = np.arange(40).astype(dtype)
        assert block_keys(memoryview(ids), 16) == block_keys(ids, 16) == block_keys(range(40), 16)
    refused(ArgumentError, "tokens", lambda: block_keys(memoryview(np.arange(4.0).astype(">f8")), 2))
    view = memoryview(np.arange(4))
    view.release()
    refused(ArgumentError, "tokens", lambda: block_keys(view, 2))


CUDA: dict[str, Any] = {"typestr": "|u1", "shape": (4, 1024), "data": (1 << 20, False), "version": 3, "strides": None}


def on_device(interface: Any) -> Any:
    return type("Device", (), {"__cuda_array_interface__": interface})()


@pytest.mark.parametrize(
    "change",
    [
        *({name: ...} for name in ("typestr", "shape", "data")),
        {"typestr": "nonsense"},
        {"typestr": 3.5},
        {"typestr": "|O"},
        {"shape": (-4, 1024)},
        {"shape": (4, -1024)},
        {"shape": (-4, -1024)},
        {"shape": 4},
        {"shape": ("4", 1024)},
        {"shape": (2**62, 1024)},
        {"shape": (2**31, 2**31, 2**31)},
        {"strides": (1024,)},
        {"strides": ("a", "b")},
        {"strides": 7},
        {"strides": (2**70, 1)},
        {"data": None},
        {"data": ()},
        {"data": ("0x10", False)},
        {"data": (-16, False)},
        {"data": (2**64, False)},
    ],
)
def test_a_broken_device_interface_is_refused(change: dict[str, Any]) -> None:
    assert pool_arrays(group(), 1024, on_device(CUDA), 4)[0].stride == 1024
    interface = {name: value for name, value in {**CUDA, **change}.items() if value is not ...}
    refused(ArgumentError, "arrays[0]", lambda: pool_arrays(group(), 1024, on_device(interface), 1))


@pytest.mark.parametrize("item", [on_device(5), on_device([1]), np.zeros((4, 1024), object)])
def test_other_broken_arrays_are_refused(item: Any) -> None:
    refused(ArgumentError, "arrays[0]", lambda: pool_arrays(group(), 1024, item, 1))


@pytest.mark.parametrize(
    ("config", "field", "values"),
    [
        (LLAMA, "num_hidden_layers", [2**31, 10**30, HUGE, 10_001, 0, -1, "2", 2.0, NAN, True, None, [2], Odd()]),
        (LLAMA, "hidden_size", [10**30, -512, "512", NAN, None]),
        (LLAMA, "num_key_value_heads", [10**30, -1, "2", NAN, ARRAY]),
        (LLAMA, "rope_theta", [NAN, math.inf, -1.0, "1e4", 10**400, ARRAY]),
        (LLAMA, "rope_scaling", ["linear", [1], 3, {"factor": ARRAY}, {"type": 3}, Odd()]),
        (LLAMA, "rope_parameters", ["linear", {"rope_theta": "1e4"}, {"rope_theta": NAN}, {"rope_theta": -1}]),
        (LLAMA, "dtype", [3, "int8", ARRAY, Odd()]),
        (LLAMA, "sliding_window", [128, ARRAY, Odd()]),
        (LLAMA4, "attention_chunk_size", [10**30, -1, 0, NAN, "8192"]),
        (LLAMA4, "no_rope_layers", [ARRAY, Odd(), [Odd()], [2] * 48, "x"]),
        (LLAMA4, "layer_types", [[ARRAY] * 48, [[]] * 48, "full", ["x"] * 48]),
        (BAMBA, "attn_layer_indices", [[1.0], [True], [2], [-1], [[]], [NAN], "1", None]),
        (BAMBA, "mamba_d_state", [10**30, NAN, -1, "16", None]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_config_is_an_unsupported_model(config: dict[str, Any], field: str, values: list[Any]) -> None:
    CacheSpec.from_config(config)
    for value in values:
        refused(UnsupportedModel, field, lambda value=value: CacheSpec.from_config({**config, field: value}))


def test_products_that_are_too_large_and_odd_texts_are_an_unsupported_model() -> None:
    large = {**LLAMA, "hidden_size": 2**47, "num_attention_heads": 1, "num_key_value_heads": 2**40}
    refused(UnsupportedModel, "row_bytes", lambda: CacheSpec.from_config(large))
    refused(
        UnsupportedModel, "page_bytes", lambda: CacheSpec.from_config({**LLAMA, "head_dim": 2**40}, unit_tokens=2**20)
    )
    for scaling in ({"factor": NAN}, {"a": HALF}, {"type": HALF}):
        refused(UnsupportedModel, "format.yarn", lambda s=scaling: CacheSpec.from_config({**LLAMA, "rope_scaling": s}))


@pytest.mark.parametrize("chunk", [2**31, 2**47 - 1, 2**48 - 1])
def test_a_large_chunk_costs_no_time(chunk: int) -> None:
    spec = CacheSpec.from_config({**LLAMA4, "attention_chunk_size": chunk})
    page, blocks = spec["chunk"].total_page_bytes, spec.boundary_bytes["chunk"] // spec["chunk"].total_page_bytes
    assert page * blocks == spec.boundary_bytes["chunk"]
    # A chunk starts inside a block where it is no multiple of it: one block more, but only whole blocks at its end.
    assert blocks == (chunk // 256 - 1 if chunk % 256 == 0 else -(-(chunk - 1) // 256))


@pytest.mark.parametrize("block", [2**47 - 115, 2**46 + 15, 2**24 * 3])
def test_large_numbers_that_share_nothing_cost_no_time(block: int) -> None:
    for coverage in (Chunk(2**48 - 1), Chunk(3**30), Window(2**48 - 1), Checkpoint(every=2**48 - 1)):
        spec = CacheSpec(
            1,
            [
                group("kv", StateKind.COMPRESSED, Prefix(), block_tokens=2**13 - 1),
                group(
                    coverage=coverage,
                    block_tokens=block,
                    rebuildable=True,
                    rows_per_page=2**47,
                    row_bytes=1,
                    page_bytes=2**47,
                ),
            ],
        )
        assert spec.boundary_bytes["g"] >= 2**47


def test_the_cost_of_a_boundary_is_the_largest_over_one_period() -> None:
    rng = random.Random(11)
    for _ in range(4000):
        top = rng.choice([8, 24, 60])
        coverage: Any = rng.choice([Window, Chunk])(rng.randrange(1, top))
        kv, own = rng.randrange(1, top), rng.randrange(1, top)
        rebuildable = rng.random() < 0.8
        spec = CacheSpec(
            1,
            [
                group("kv", StateKind.COMPRESSED, Prefix(), block_tokens=kv),
                group(coverage=coverage, block_tokens=own, rebuildable=rebuildable),
            ],
        )
        step = spec.boundary_tokens
        first = -(-coverage.tokens // step) * step
        period = math.lcm(step, own, coverage.tokens if isinstance(coverage, Chunk) else 1)
        spans = (
            _core.needed_blocks(coverage.rule, coverage.tokens, own, t) for t in range(first, first + period, step)
        )
        assert spec.boundary_bytes["g"] == 1024 * max(end - begin for begin, end in spans), (coverage, kv, own, step)


BROKEN_FILES = {
    "deep": b"[" * 200_000,
    "deep mapping": b'{"a":' * 200_000,
    "not UTF-8": b'{"model_type": "\xff\xfe"}',
    "digits": b'{"a": ' + b"9" * 10_000 + b"}",
    "half": b'{"model_type": "llama"',
    "a directory": None,
}


@pytest.mark.parametrize("content", BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_broken_files_are_refused(tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    refused(ArgumentError, "config", lambda: CacheSpec.from_config(path))
    assert cli.main(["replay", str(path)]) == 2
    good = tmp_path / "trace.jsonl"
    good.write_text(json.dumps({"timestamp": 0, "input_length": 32, "output_length": 1, "hash_ids": [1, 2]}))
    assert cli.main(["replay", str(good), "--block-tokens", "16", "--model", str(path)]) == 2
    assert capsys.readouterr().err.count("hybridkv replay: ") == 2


@pytest.mark.parametrize(
    ("field", "change", "options"),
    [
        ("input_length", {"input_length": 10**15}, []),
        ("output_length", {"output_length": 10**15}, []),
        ("timestamp", {"timestamp": 10**400}, []),
        ("block_tokens", {}, ["--block-tokens", str(10**12)]),
        ("policy", {}, ["--policy", "every:" + "9" * 5000]),
        ("memory", {}, ["--memory", "9" * 5000]),
        ("model", {}, ["--model", "x" * 5000]),
        ("unit_tokens", {}, ["--unit-tokens", str(2**40)]),
    ],
)
def test_hostile_traces_and_options_are_refused(
    tmp_path: Path, field: str, change: dict[str, Any], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"timestamp": 0, "input_length": 32, "output_length": 1, "hash_ids": [1, 2], **change}
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(row))
    assert cli.main(["replay", str(path), *(options or ["--block-tokens", "16"])]) == 2
    assert field in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
@pytest.mark.parametrize("where", ["full", "closed"])
def test_output_that_cannot_be_written_is_no_traceback(arguments: list[str], where: str) -> None:
    command = [sys.executable, "-m", "hybridkv", *arguments]
    if where == "full":
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full on this system")
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert "No space left" in done.stderr
    else:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        done = subprocess.CompletedProcess(command, running.wait(), "", running.stderr.read())
        running.stderr.close()
        assert done.stderr == ""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_media_in_the_rest_give_way_to_what_replaces_it() -> None:
    ids = list(range(100))
    early, in_rest = (10, 4, b"a"), (52, 6, b"r")
    parent = block_keys(ids[:60], 16, media=[early, in_rest])
    for grown in (parent, parent[1:], block_keys(ids[32:60], 16, parent=parent[:2], media=[in_rest])):
        fewer = block_keys(ids[48:50], 16, parent=grown)
        assert fewer == block_keys(ids[:50], 16, media=[early])
        assert block_keys(ids[48:], 16, parent=fewer) == block_keys(ids, 16, media=[early])
        other = (50, 9, b"s")
        assert block_keys(ids[48:], 16, parent=grown, media=[other]) == block_keys(ids, 16, media=[early, other])
        assert block_keys(ids[48:], 16, parent=grown, media=[in_rest]) == block_keys(ids, 16, media=[early, in_rest])
        assert block_keys(ids[48:], 16, parent=grown) == block_keys(ids, 16, media=[early, in_rest])
        refused(ArgumentError, "media", lambda g=grown: block_keys(ids[48:55], 16, parent=g))  # cut in two
    assert block_keys(ids[48:], 16, parent=parent[: len(parent)]) == block_keys(ids, 16, media=[early])
