# SPDX-License-Identifier: Apache-2.0
"""Every parser of bytes and documents of others: its corpus, how inputs are made of it, and what it may raise."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hybridkv as hk
from hybridkv import digests
from hybridkv.replay.answers import next_turns
from hybridkv.replay.trace import load_trace
from hybridkv.replay.units import Units

from .kept import DATA, IN_MEMORY, Try, kept
from .mutations import mutated, mutated_json, text_of

Typed = (hk.HybridKVError,)


@dataclass(frozen=True)
class Parser:
    """One parser.

    Attributes
    ----------
    name : str
    what : str
        What it reads.
    prepare : callable
        A context that gives a function: it makes an input of the dice, and lets the parser read it.
    needs : str
        A package without which it is not there.
    allowed : tuple of type
        What it may raise beside errors of this package.
    weight : int
        Inputs of the short form, as a share of the others'; what reads files takes fewer.
    """

    name: str
    what: str
    prepare: Callable[[], Any]
    needs: str = ""
    allowed: tuple[type[BaseException], ...] = ()
    weight: int = 100


def _documents() -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted((DATA / "configs").glob("*.json"))]


def _file_try(
    suffix: str, corpus: list[bytes], make: Callable[[random.Random], bytes], read: Callable[[Path], Any]
) -> Any:
    @contextmanager
    def prepare() -> Iterator[Try]:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            path = Path(folder) / f"input{suffix}"

            def one(dice: random.Random) -> None:
                path.write_bytes(make(dice) if dice.random() < 0.5 else mutated(dice, corpus))
                read(path)

            yield one

    return prepare


@contextmanager
def _configurations() -> Iterator[Try]:
    documents = _documents()

    def one(dice: random.Random) -> None:
        document = mutated_json(dice, dice.choice(documents))
        if isinstance(document, dict):
            unit = dice.choice((16, 64, 256))
            hk.CacheSpec.from_config(document, unit_tokens=unit, dtype=dice.choice(("fp8", "bfloat16", "float32")))

    yield one


def _config_files() -> Any:
    documents = _documents()
    corpus = [text_of(document) for document in documents[:6]]
    return _file_try(
        ".json",
        corpus,
        lambda dice: text_of(mutated_json(dice, dice.choice(documents))),
        lambda path: hk.CacheSpec.from_config(path, unit_tokens=256),
    )


def _settings() -> Any:
    documents = _documents()

    def read(path: Path) -> None:
        rope, quantisation = digests.rope_settings(path), digests.quantisation_settings(path)
        assert len(hk.Identity("m", rope=rope, quantisation=quantisation).digest) == 32

    corpus = [text_of(document) for document in documents]
    return _file_try(".json", corpus, lambda dice: text_of(mutated_json(dice, dice.choice(documents))), read)


def _traces() -> Any:
    lines = [line.encode() for line in _trace_lines()]

    def make(dice: random.Random) -> bytes:
        rows = [json.loads(line) for line in lines]
        at = dice.randrange(len(rows))
        rows[at] = mutated_json(dice, rows[at])
        return b"\n".join(text_of(row) for row in rows)

    def read(path: Path) -> None:
        trace = load_trace(path, partial=True)
        assert len(Units.of(trace, next_turns(trace), 16).prompts) == len(trace.requests) > 0
        assert trace.distinct_tokens >= 0
        assert all(trace.named_tokens(request) >= 0 for request in trace.requests)
        load_trace(path)  # refused where the other was broken
        assert trace.broken is None

    return _file_try(".jsonl", [b"\n".join(lines)], make, read)


def _trace_lines() -> list[str]:
    with (DATA / "traces" / "mooncake_conversation.jsonl").open(encoding="utf-8") as file:
        lines = [line.strip() for _, line in zip(range(40), file, strict=False)]
    return sorted(lines, key=len)[:6]


def _safetensors() -> Any:
    header = kept("safetensors")

    def framed(document: Any, data: bytes = bytes(range(22))) -> bytes:
        text = text_of(document)
        return len(text).to_bytes(8, "little") + text + data

    corpus = [framed(header), framed({"a": header["a"]}, bytes(16)), framed({}, b"")]
    return _file_try(
        ".safetensors",
        corpus,
        lambda dice: framed(mutated_json(dice, header)),
        lambda path: digests.weights_digest(path),
    )


@contextmanager
def _indices() -> Iterator[Try]:
    index = kept("index")
    header = {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        for name in index["weight_map"].values():
            here = [tensor for tensor, shard in index["weight_map"].items() if shard == name]
            text = text_of(dict.fromkeys(here, header["a"]))
            (Path(folder) / name).write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
        path = Path(folder) / "model.safetensors.index.json"

        def one(dice: random.Random) -> None:
            made = text_of(mutated_json(dice, index)) if dice.random() < 0.7 else mutated(dice, [text_of(index)])
            path.write_bytes(made)
            digests.weights_digest(folder)

        yield one


@contextmanager
def _token_arrays() -> Iterator[Try]:
    """Array interfaces, of memory that is there: who lends an address answers for it, not for the rest."""
    memory = bytearray(4096)
    facts = kept("array-interface")

    class Lent:
        __array_interface__: Any = None

    def one(dice: random.Random) -> bool:
        made = mutated_json(dice, facts)
        if isinstance(made, dict):
            made |= {"data": memory, "strides": None, "offset": 0}
            if isinstance(made.get("shape"), list):
                made["shape"] = tuple(made["shape"])
        lent = Lent()
        lent.__array_interface__ = made
        with suppress(Exception):
            if np.asarray(lent).nbytes > len(memory):  # numpy believes what an interface says of its memory, as it must
                return False
        return len(hk.block_keys(lent, 16)) >= 0  # type: ignore[arg-type]

    yield one


@contextmanager
def _device_arrays() -> Iterator[Try]:
    """CUDA array interfaces: nothing is read at the address before a kernel is launched on it."""
    facts = kept("device-array")
    group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=16)
    cache = hk.HybridCache(hk.CacheSpec(16, [group]), blocks=8)

    class Lent:
        __cuda_array_interface__: Any = None

    def one(dice: random.Random) -> None:
        lent = Lent()
        lent.__cuda_array_interface__ = mutated_json(dice, facts)
        cache.bind("kv", lent)

    yield one
    cache.close()


@contextmanager
def _media() -> Iterator[Try]:
    documents = kept("media")

    def one(dice: random.Random) -> None:
        spans = mutated_json(dice, documents)
        if isinstance(spans, list):
            spans = [
                tuple(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in span)
                if isinstance(span, list)
                else span
                for span in spans
            ]
        hk.block_keys(range(32), 16, media=spans)

    yield one


@contextmanager
def _images() -> Iterator[Try]:
    import base64

    from hybridkv.adapters.transformers import CacheImage

    sound = base64.b64decode((DATA / "images" / "schema-1.txt").read_text())
    length = int.from_bytes(sound[:8], "little")
    header, data = json.loads(sound[8 : 8 + length]), sound[8 + length :]
    manifest = json.loads(header["__metadata__"]["hybridkv.image"])

    def one(dice: random.Random) -> None:
        how = dice.random()
        if how < 0.3:
            image = mutated(dice, [sound])
        elif how < 0.9:
            image = _forged_image(mutated_json(dice, manifest), header, data)
        else:
            image = _image(mutated_json(dice, header), data)
        read = CacheImage.from_bytes(image)
        assert read.to_bytes() == image

    yield one


def _image(header: Any, data: bytes) -> bytes:
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _forged_image(manifest: Any, header: dict[str, Any], data: bytes) -> bytes:
    """Make an image of a manifest, its tensors and digests made right as far as they can be."""
    from hybridkv.adapters.transformers import image, image_bytes
    from hybridkv.adapters.transformers.image_part import checksum_of

    def written() -> bytes:
        made = dict(header)
        with suppress(Exception):  # of parts that are none: there is no header of theirs
            made = json.loads(image_bytes._header(manifest))
            size = max(entry["data_offsets"][1] for name, entry in made.items() if name != "__metadata__")
            content = (data + bytes(max(0, min(size, 1 << 16) - len(data))))[: max(size, 0)]
            return _image(made, content)
        inner = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        return _image(made | {"__metadata__": {image_bytes.KEY: inner}}, data)

    with suppress(Exception):  # what cannot be read has no digests
        parts = image_bytes.decode(written())["parts"]
        for entry, part in zip(manifest["parts"], parts, strict=True):
            where = {name: getattr(part, name) for name in ("group", "part", "layer", "path", "position", "format")}
            entry["checksum"] = checksum_of(part.data, **where).hex()
        read = image_bytes.decode(written())
        facts = (read[name] for name in ("position", "batch", "prefixes", "producer", "parts"))
        manifest["digest"] = image._digest(*facts).hex()
    return written()


@contextmanager
def _row_formats() -> Iterator[Try]:
    from hybridkv.adapters.torch_ops.arguments import row_format_of

    documents = [json.loads(json.dumps(asdict(made))) for made in hk.reference.PUBLISHED.values()]
    assert all(row_format_of(json.dumps(document)) for document in documents)

    corpus = [text_of(document) for document in documents]

    def one(dice: random.Random) -> None:
        changed = text_of(mutated_json(dice, dice.choice(documents))) if dice.random() < 0.7 else mutated(dice, corpus)
        row_format_of(changed.decode(errors="surrogateescape"))

    yield one


def parsers() -> list[Parser]:
    """Return the table."""
    from . import documents
    from .stores import envelopes, records_under_a_cache, stores

    return [
        Parser("config", "configurations of models, as mappings", _configurations),
        Parser("config-file", "configurations of models, as files", _config_files(), weight=50),
        Parser("settings", "settings of rotary embeddings and quantisation, as files", _settings(), weight=50),
        Parser("trace", "request traces", _traces(), weight=50),
        Parser("safetensors", "headers of weights files", _safetensors()),
        Parser("index", "indices of weights files", _indices),
        Parser("checkpoint", "folders of a checkpoint", documents.checkpoints, needs="transformers", weight=50),
        Parser("format-document", "documents of formats, of both schemas", documents.format_documents),
        Parser("manifest", "manifests, as bytes", documents.manifests),
        Parser("manifest-file", "files of manifests, and what is no file", documents.manifest_files, weight=50),
        Parser("doctor-compare", "facts of two hosts, as files", documents.comparisons, weight=20),
        Parser("doctor-cache", "facts of a cache, as files", documents.facts_of_caches, weight=20),
        Parser("service-answer", "answers of a service that is probed", documents.service_answers),
        Parser("rollout", "where a rollout stands", documents.rollouts),
        Parser("text", "texts of a command line, versions of packages", documents.texts),
        Parser("array-interface", "array interfaces of token ids", _token_arrays),
        Parser("device-array", "CUDA array interfaces of pools", _device_arrays),
        Parser("media", "media spans", _media),
        Parser("envelope", "record envelopes from an adapter's store (C++)", envelopes, weight=50),
        Parser(
            "record",
            "whole records with right checksums: pages, states, lists of tips (C++)",
            records_under_a_cache,
            weight=5,
        ),
        Parser("store", "superblocks, region headers, footers and envelopes of a store (C++)", stores, weight=10),
        Parser("image", "images of caches", _images, needs="transformers"),
        Parser("row-format", "texts of row formats", _row_formats, needs="torch"),
    ]
