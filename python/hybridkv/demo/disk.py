# SPDX-License-Identifier: Apache-2.0
"""Conversations through a disk: held in one process, which is killed, and resumed in another.

The second process holds the last turn of each conversation three times: resumed from the store, from nothing in the
same pieces, and by transformers alone over the whole prompt. Two records are damaged in between. Where one of
them lies in a region that the kill left without a footer, opening finds it; else the load does.

The JSON of a model is ``{model, layers, before, opened, resumed, failure}``: ``before`` is what the first process
told (:func:`~hybridkv.demo.disk_life.first_life`) without the answers, ``opened`` what opening the store found, and
each of ``resumed`` has

- ``conversation``, ``prompt_tokens``, ``restored_tokens``, ``restored_bytes``, ``computed_tokens``;
- ``damaged``, ``damaged_tokens``: "tip", "boundary record" or "block record" and the length that it ends; null and 0;
- ``refused``: a list of ``{check, kind, group, block, code, detail}``, records that a load refused;
- ``bitwise``: whether all logits and tokens are those of the conversation held from nothing;
- ``same_text`` and ``worst_difference``: beside transformers' own ``generate`` over the whole prompt.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hybridkv.demo.conversations import Conversation, order_of_requests
from hybridkv.demo.disk_damage import damage, longest_boundary, longest_tip
from hybridkv.demo.disk_life import SPEAKERS, Said, answer, open_store, quiet, reuse_over, talk, talks
from hybridkv.demo.threads import one_thread
from hybridkv.errors import ArgumentError
from hybridkv.keys import BlockKeys
from hybridkv.printed import page
from hybridkv.replay.progress import progress
from hybridkv.tiers import RecordKind
from hybridkv.verdict import Why

DAMAGED = {"broken vase": RecordKind.BOUNDARY, "short read": RecordKind.BLOCK}
"""Of which conversation a record is damaged: that of its end, or a block some way below."""

_BLOCKS_BELOW = 4  # of what only this conversation has
_REFERENCE_BYTES = 64 << 20

FAR = 1e-2
"""Difference of logits that is no chunking any more; state that is not the prompt's makes some 1e0."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The last turn of one conversation; see the head of this module."""

    conversation: str
    prompt_tokens: int
    restored_tokens: int
    restored_bytes: int
    computed_tokens: int
    damaged: str | None
    damaged_tokens: int
    refused: tuple[Why, ...]
    bitwise: bool
    same_text: bool
    worst_difference: float


@dataclass(frozen=True, slots=True)
class DiskResult:
    """One model; see the head of this module."""

    model: str
    layers: str
    before: dict[str, Any]
    opened: dict[str, Any]
    resumed: tuple[Resumed, ...]

    @property
    def failure(self) -> str:
        """What must not be; "" where all is as it should be."""
        found = []
        for turn in self.resumed:
            if not turn.same_text or turn.worst_difference > FAR:
                found.append(f"{turn.conversation}: another text than from scratch")
            if turn.damaged is None and not (turn.bitwise and turn.restored_tokens and not turn.refused):
                found.append(f"{turn.conversation}: not bit for bit what computing from nothing gives")
            if turn.damaged is not None and not 0 < turn.restored_tokens < turn.damaged_tokens:
                found.append(
                    f"{turn.conversation}: resumed at {turn.restored_tokens}, damaged at {turn.damaged_tokens}"
                )
        if self.before["not_written"] or self.before["not_kept"]:
            found.append(f"not stored: {self.before['not_written']}, {self.before['not_kept']}")
        return "; ".join(f"{self.model}: {what}" for what in found)


def run_disk(
    folder: Path | None = None, *, speakers: Sequence[str] = tuple(SPEAKERS), shown: bool = False
) -> list[DiskResult]:
    """Talk, kill, damage, resume, compare.

    Parameters
    ----------
    folder : Path, optional
        Where the stores go and stay; new or empty. Default: a temporary one.
    speakers : sequence of str
        Of :data:`~hybridkv.demo.disk_life.SPEAKERS`. Default: all.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    list of DiskResult
        In the order of the speakers.

    Raises
    ------
    ArgumentError
        A folder with something in it, or a file.
    """
    quiet()
    turns = 2 + len(order_of_requests(talks())) + len(talks())
    with one_thread(), _folder(folder) as base:
        results = []
        for key in speakers:
            with progress(SPEAKERS[key].name, turns, shown=shown) as step:
                before = _first_process(key, base / key)
                step()
                results.append(_second_life(key, base / key, before, step))
        return results


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with TemporaryDirectory(prefix="hybridkv-") as made:
            yield Path(made)
        return
    if given.exists() and not (given.is_dir() and not any(given.iterdir())):
        raise ArgumentError("disk", "a new or empty directory", str(given))
    given.mkdir(parents=True, exist_ok=True)
    yield given


def _first_process(key: str, store: Path) -> dict[str, Any]:
    """Run the first life in a process of its own and kill it once it says that all is stored."""
    command = [sys.executable, "-m", "hybridkv.demo.disk_life", key, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
        process.wait()
    if not line:
        raise ArgumentError("disk", "a first process that tells what it stored", f"exit code {process.returncode}")
    told: dict[str, Any] = json.loads(line)
    return told


def _second_life(key: str, store: Path, before: dict[str, Any], step: Callable[[], None]) -> DiskResult:
    speaker, conversations = SPEAKERS[key], talks()
    model = speaker.make()
    prompts = [c.prompt(of) for c, of in zip(conversations, before.pop("answers"), strict=True)]
    reference = reuse_over(model, None, _REFERENCE_BYTES)
    from_nothing, _ = talk(reference, conversations, step, last=True)
    damaged = _damage(store, conversations, [reference.keys(prompt) for prompt in prompts])
    step()
    found = []
    with open_store(store) as tier:
        reuse = reuse_over(model, tier, speaker.memory_bytes)
        for number, (conversation, prompt) in enumerate(zip(conversations, prompts, strict=True)):
            said, row = answer(reuse.generate, prompt), reuse.last_rows[0]
            assert row.loaded is not None
            scratch = answer(model.generate, prompt)
            kind, damaged_tokens = damaged.get(conversation.name, (None, 0))
            turn = Resumed(
                conversation.name,
                prompt.size,
                row.loaded.tokens,
                row.loaded.bytes,
                prompt.size - row.usable,
                kind,
                damaged_tokens,
                tuple(row.loaded.refused),
                _same_bits(said, from_nothing[number][-1]),
                said.tokens == scratch.tokens,
                float(np.abs(said.logits - scratch.logits).max()),
            )
            found.append(turn)
            step()
        opened = asdict(tier.recovered)
        reuse.close()
    return DiskResult(speaker.name, speaker.layers, before, opened, tuple(found))


def _damage(
    store: Path, conversations: Sequence[Conversation], keys: Sequence[BlockKeys]
) -> dict[str, tuple[str, int]]:
    """Damage a record of some conversations; returns of what kind it was and the length that it ends, by name."""
    damaged = {}
    for conversation, chain in zip(conversations, keys, strict=True):
        kind = DAMAGED.get(conversation.name)
        if kind is None:
            continue
        unit = longest_boundary(store, chain, chain.unit_tokens) // chain.unit_tokens
        tip, digest = longest_tip(store, chain)
        if kind is RecordKind.BLOCK:
            unit -= _BLOCKS_BELOW
            damage(store, kind, chain.digests[unit - 1].tobytes())
            damaged[conversation.name] = "block record", unit * chain.unit_tokens
        else:  # of the length that a resume would take
            end = max(tip, unit * chain.unit_tokens)
            damage(store, kind, digest if end == tip else chain.digests[unit - 1].tobytes())
            damaged[conversation.name] = "tip" if end == tip else "boundary record", end
    return damaged


def _same_bits(ours: Said, theirs: Said) -> bool:
    return ours.tokens == theirs.tokens and ours.logits.tobytes() == theirs.logits.tobytes()


def as_json(results: Sequence[DiskResult]) -> list[dict[str, Any]]:
    """Make plain types of results; see the head of this module."""
    return [
        {
            "model": result.model,
            "layers": result.layers,
            "before": result.before,
            "opened": result.opened,
            "resumed": [
                {
                    **{name: getattr(turn, name) for name in Resumed.__slots__ if name != "refused"},
                    "refused": [
                        {**why._asdict(), "check": why.check.name, "kind": why.kind.name} for why in turn.refused
                    ],
                }
                for turn in result.resumed
            ],
            "failure": result.failure,
        }
        for result in results
    ]


def as_text(results: Sequence[DiskResult]) -> str:
    """Make a text for people: what was stored, what came back, what was refused, and how it compares."""
    lines = ["Conversations through a disk: held in one process, which is killed (SIGKILL), and resumed in another."]
    for result in results:
        lines += ["", *_model_lines(result)]
    return page(lines)


def _model_lines(result: DiskResult) -> list[str]:
    before, opened = result.before, result.opened
    lines = [
        f"{result.model}: {result.layers}",
        f"  first process   {before['turns']} turns, {before['prompt_tokens']:,} prompt tokens, in"
        f" {before['page_bytes'] / 2**20:.1f} MiB of pages: {before['evicted_pages']:,} evicted,"
        f" {before['reloaded_turns']} turns read back",
        f"                  stored: {before['records']:,} records, {before['record_bytes'] / 2**20:.1f} MiB; killed",
        f"  second process  opened in {opened['seconds'] * 1e3:.0f} ms: {opened['records']:,} records,"
        f" {opened['scanned_regions']} of {opened['regions']} regions without a footer,"
        f" {opened['torn']} record{'' if opened['torn'] == 1 else 's'} not whole",
        f"  {'last turn of':<14} {'prompt':>6} {'restored':>9} {'KiB':>6} {'computed':>9}  {'from nothing':<14}"
        " whole prompt",
    ]
    for turn in result.resumed:
        bits = "bit for bit" if turn.bitwise else "other pieces"
        text = f"{'same' if turn.same_text else 'OTHER'} text, {turn.worst_difference:.0e}"
        lines.append(
            f"  {turn.conversation:<14} {turn.prompt_tokens:>6} {turn.restored_tokens:>9}"
            f" {turn.restored_bytes / 1024:>6.0f} {turn.computed_tokens:>9}  {bits:<14} {text}"
        )
        if turn.damaged is not None:
            lines.append(f"    one bit of its {turn.damaged} at {turn.damaged_tokens} was flipped:")
            if not turn.refused:
                lines.append("    not whole when the store was opened: left out, with what stands on it")
        lines += [f"    refused: {why.check.name}, {why.detail}" for why in turn.refused]
    kept = sum(turn.prompt_tokens - turn.computed_tokens for turn in result.resumed)
    total = sum(turn.prompt_tokens for turn in result.resumed)
    lines.append(f"  {kept:,} of {total:,} prompt tokens were not computed; nothing damaged was used.")
    return lines
