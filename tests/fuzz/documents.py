# SPDX-License-Identifier: Apache-2.0
"""Parsers of documents that hosts exchange or keep: formats, manifests, facts of doctor; folders of a checkpoint."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import hybridkv as hk
from hybridkv import cli, store_report
from hybridkv.doctor.engines import DISTRIBUTIONS, known_of
from hybridkv.formats import Manifest, from_document, to_document
from hybridkv.formats.manifest_file import read_manifests
from hybridkv.probe import answers
from hybridkv.probe.endpoint import parsed_body
from hybridkv.replay.pools import Windows
from hybridkv.replay.shapes import find_shape
from hybridkv.rollout import RolloutPlan, RolloutState
from hybridkv.rollout.driver import counted, moved
from hybridkv.rollout.state import from_json, to_json
from hybridkv.tiers.known_writers import KnownWriters

from .kept import IN_MEMORY, Try, kept
from .mutations import mutated, mutated_json, text_of

REFUSED = 2  # exit status of a command that refuses its files
_SOME = 0.02  # share of inputs that are no file, or none that can be read


@contextmanager
def format_documents() -> Iterator[Try]:
    """Documents of formats of both schemas; what is read is written and read again as the same."""
    documents = kept("format-document")

    def one(dice: random.Random) -> None:
        document = mutated_json(dice, dice.choice(documents))
        if isinstance(document, dict) and dice.random() < 0.5:
            document.pop("fingerprint", None)  # or a change of a field ends there
        made = from_document(document)
        assert from_document(to_document(made)) == made

    yield one


def _manifest_bytes(dice: random.Random, documents: Sequence[Any]) -> bytes:
    document = mutated_json(dice, dice.choice(documents))
    if dice.random() < 0.5 and isinstance(document, dict) and isinstance(document.get("groups"), list):
        for group in document["groups"]:
            _seal(group)
    return text_of(document)


def _seal(group: Any) -> None:
    """Make the fingerprint of a group that of its format, where it has one."""
    with contextlib.suppress(hk.HybridKVError, TypeError, KeyError, AttributeError):
        group["format"].pop("fingerprint", None)
        group["fingerprint"] = from_document(group["format"]).fingerprint.hex()


@contextmanager
def manifests() -> Iterator[Try]:
    """Manifests as bytes; what is read is written and read again as the same."""
    documents = kept("manifest")
    corpus = [text_of(document) for document in documents]

    def one(dice: random.Random) -> None:
        made = Manifest.from_bytes(mutated(dice, corpus) if dice.random() < 0.3 else _manifest_bytes(dice, documents))
        assert Manifest.from_bytes(made.to_bytes()) == made

    yield one


@contextmanager
def manifest_files() -> Iterator[Try]:
    """Files of manifests, and what is no such file: what is known of them is what the file has afterwards."""
    documents = kept("manifest")
    lines = [Manifest.from_bytes(text_of(document)).to_bytes() for document in documents]
    corpus = [b"".join(line + b"\n" for line in lines), lines[0] + b"\n"]

    def made(dice: random.Random) -> bytes:
        if dice.random() < 0.3:
            return mutated(dice, corpus)
        chosen = [dice.choice(lines) for _ in range(dice.choice((0, 1, 3)))]
        chosen.insert(dice.randrange(len(chosen) + 1), _manifest_bytes(dice, documents[-1:]))
        return dice.choice((b"\n", b"\n", b"\r\n", b"\n\n")).join(chosen)

    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, odd_files(Path(folder)) as odd:

        def one(dice: random.Random) -> None:
            path = Path(folder) / "manifests"
            path.unlink(missing_ok=True)
            if dice.random() < _SOME:
                path = dice.choice(odd)
            else:
                path.write_bytes(made(dice))
            writers = KnownWriters()
            writers.keep_manifests(path)
            assert read_manifests(path) == writers.manifests

        yield one


@contextmanager
def odd_files(folder: Path) -> Iterator[list[Path]]:
    """Give paths that are no plain files: each is refused, or read as what is there, and none is waited for."""
    outside, places = folder / "outside", folder / "odd"
    outside.write_bytes(b"{}")
    places.mkdir()
    (places / "folder").mkdir()
    (places / "link").symlink_to(outside)
    (places / "loop").symlink_to(places / "loop")
    (places / "dangling").symlink_to(folder / "nothing" / "there")
    os.mkfifo(places / "pipe")
    (places / "closed").write_bytes(b"{}")
    (places / "closed").chmod(0)
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(places):
        listening.bind("socket")  # a name of few characters, as sockets need
    named = [*places.iterdir(), Path("/dev/zero"), Path("/dev/null"), places / "closed" / "below"]
    yield [*named, places / ("x" * 300), places / "a\0b", places / "\udcff\ud800", Path()]
    assert outside.read_bytes() == b"{}"


_PARSER = cli.build_parser()  # making it takes longer than to read an input


def _command(*arguments: str) -> int:
    """Run a command with a terminal that takes UTF-8 and nothing else."""
    told = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    with (
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch("hybridkv.cli.build_parser", lambda: _PARSER),
    ):
        return cli.main(arguments)


def _reading(
    names: tuple[str, ...], kind: str, arguments: Callable[[random.Random, list[str]], list[str]]
) -> Callable[[], Any]:
    """Return a context for a command that reads documents of a kind, one of them changed."""

    @contextmanager
    def prepare() -> Iterator[Try]:
        documents = kept(kind)
        corpus = [text_of(document) for document in documents]
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, odd_files(Path(folder)) as odd:
            paths = [Path(folder) / name for name in names]
            no_pipes = [path for path in odd if path.name != "pipe"]  # who names one waits for it, as for `-`

            def one(dice: random.Random) -> bool:
                at = dice.randrange(len(paths))
                for number, path in enumerate(paths):
                    content = dice.choice(corpus)
                    if number == at:
                        changed = dice.choice(documents)
                        content = mutated(dice, corpus) if dice.random() < 0.3 else text_of(mutated_json(dice, changed))
                    path.write_bytes(content)
                named = [str(path) for path in paths]
                if dice.random() < _SOME:
                    named[at] = str(dice.choice(no_pipes))
                code = _command("doctor", *arguments(dice, named))
                assert code in (0, 1, REFUSED)
                return code != REFUSED

            yield one

    return prepare


def _json_or_text(dice: random.Random) -> list[str]:
    return ["--json"] * (dice.random() < 0.3)


comparisons = _reading(
    ("ours.json", "theirs.json"), "doctor-host", lambda dice, named: ["--compare", *named, *_json_or_text(dice)]
)


@contextmanager
def facts_of_caches() -> Iterator[Try]:
    """``doctor --cache``; the facts of this host are gathered once."""
    host = hk.doctor.doctor()
    reading = _reading(("cache.json",), "doctor-cache", lambda dice, named: ["--cache", *named, *_json_or_text(dice)])
    with mock.patch("hybridkv.doctor.doctor", lambda: dict(host)), reading() as one:
        yield one


@contextmanager
def texts() -> Iterator[Try]:
    """What a command line names: windows, budgets, models, digests; and versions of packages, which others wrote."""
    readers: dict[str, Callable[[str], object]] = {
        "windows": Windows.parse,
        "budgets": cli._budgets,
        "model": find_shape,
        "digest": store_report.digest,
        "version": lambda text: [known_of(engine, text) for engine in DISTRIBUTIONS],
    }
    corpora = {name: [text.encode() for text in found] for name, found in kept("text").items()}
    assert corpora.keys() == readers.keys()

    def one(dice: random.Random) -> None:
        name = dice.choice(list(readers))
        readers[name](mutated(dice, corpora[name]).decode(errors=dice.choice(("surrogateescape", "replace"))))

    yield one


@contextmanager
def service_answers() -> Iterator[Try]:
    """What a service under the probe sends: answers to completions and chats, lists of models."""
    documents = kept("service-answer")
    readers: dict[str, Callable[[Any], object]] = {
        "completion": lambda document: answers.completion(document, echoed=1, most=2),
        "chat": lambda document: answers.chat(document, most=2),
        "models": answers.models,
    }
    assert documents.keys() == readers.keys()

    def one(dice: random.Random) -> None:
        name = dice.choice(list(readers))
        whole = text_of(documents[name])
        made = text_of(mutated_json(dice, documents[name])) if dice.random() < 0.7 else mutated(dice, [whole])
        readers[name](parsed_body(made, "a key"))

    yield one


@contextmanager
def checkpoints() -> Iterator[Try]:
    """Folders of a checkpoint: what cannot be read has a digest that never comes again."""
    from hybridkv.adapters.transformers.weights import checkpoint_digest

    header, index = kept("checkpoint"), kept("index")
    index = {"weight_map": dict.fromkeys(index["weight_map"], "model.safetensors")}

    def framed(document: Any) -> bytes:
        text = text_of(document)
        return len(text).to_bytes(8, "little") + text + bytes(range(12))

    sound = {
        "config.json": b"{}",
        "model.safetensors": framed(header),
        "model.safetensors.index.json": text_of(index),
        "tokenizer.json": b"{}",
    }
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as above, odd_files(Path(above)) as odd:
        there = [path for path in odd if os.path.lexists(path)]
        folder = Path(above) / "checkpoint"
        folder.mkdir()
        for name, content in sound.items():
            (folder / name).write_bytes(content)

        def one(dice: random.Random) -> bool:
            name = dice.choice([*sound, *["model.safetensors", "model.safetensors.index.json"] * 4])
            file = folder / name
            if dice.random() < _SOME:
                file.unlink()
                file.symlink_to(dice.choice(there))
            elif name == "model.safetensors" and dice.random() < 0.7:
                file.write_bytes(framed(mutated_json(dice, header)))
            elif name == "model.safetensors.index.json" and dice.random() < 0.7:
                file.write_bytes(text_of(mutated_json(dice, index)))
            else:
                file.write_bytes(mutated(dice, [sound[name]]))
            try:
                return not checkpoint_digest(folder).startswith("unreadable-")
            finally:
                file.unlink()
                file.write_bytes(sound[name])

        yield one


@contextmanager
def rollouts() -> Iterator[Try]:
    """Where rollouts stand; what is read goes on, is written, and is read again as the same."""
    plan = RolloutPlan(shares=(0.01, 0.5), samples=14, rate_bound=0.2, window_samples=10)
    states = [RolloutState(), RolloutState(stage=1, epoch=3, samples=9, mismatches=1, recent=(4,), promotions=2)]
    states.append(RolloutState(epoch=8, samples=30, promotions=2, rollbacks=4, strikes=3, seed=7))
    corpus = [to_json(plan, state).encode() for state in states]
    sound = [json.loads(text) for text in corpus]

    def one(dice: random.Random) -> None:
        bent = mutated(dice, corpus) if dice.random() < 0.3 else text_of(mutated_json(dice, dice.choice(sound)))
        plan, state = from_json(bent)
        assert from_json(to_json(plan, state)) == (plan, state)
        assert 0 <= moved(plan, counted(plan, state, mismatch=dice.random() < 0.5)).stage < len(plan.stages)

    yield one
