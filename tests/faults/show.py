# SPDX-License-Identifier: Apache-2.0
"""The kit as a table: one state broken at a time, which check refuses it, and what it would have done unchecked."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hybridkv.errors import RestoreRefused

from . import FAULTS
from .fault import Fault, State
from .images import image_at, producer_of, torn
from .live import Live
from .pages import Opened, StoredPrefix, missing_blocks

TOKENS = 79
"""Where states are broken unless said otherwise: aligned to nothing, so that every state has rows to lose."""


@dataclass(frozen=True)
class Shown:
    """What became of one fault.

    Attributes
    ----------
    name : str
        Of the fault.
    kind : str
        Kind of the state that is broken: COMPRESSED, TAIL, WINDOW, INDEXER or DISK.
    broken : str
        The way in which it is wrong, and the cache groups of this model that are.
    in_pages, in_image : str
        ``CHECK/code`` that refused it: in stored pages, and in an image. "-" for what pages cannot hold: rows too
        many, and counts. "" where it was accepted, which is a failure of the cache.
    changed_by : float
        Largest change of a logit of the next tokens with all checks off; infinite where the model answered with
        something that is no number or raised.
    raised : str
        What the model raised; "" for almost all faults, which is why they are dangerous.
    """

    name: str
    kind: str
    broken: str
    in_pages: str
    in_image: str
    changed_by: float
    raised: str

    @property
    def is_refused(self) -> bool:
        """Whether it was refused wherever it could be."""
        return bool(self.in_pages) and bool(self.in_image)


def show(model: Any = "deepseek_v4", *, tokens: int = TOKENS, names: Iterable[str] | None = None) -> list[Shown]:
    """Break one state of a model at a time.

    Parameters
    ----------
    model : str or transformers.PreTrainedModel
        ``deepseek_v4`` and ``llama`` are the tiny models of the demo; the other architectures' names stand for those of
        the tests.
    tokens : int
        Position of the states that are broken.
    names : iterable of str, optional
        Names of faults. Default: all.

    Returns
    -------
    list of Shown
        In the order of :data:`FAULTS <faults.FAULTS>`, without those that do not apply to this model or do not
        act at this position.
    """
    chosen = FAULTS if names is None else {name: FAULTS[name] for name in names}
    return list(_shown(_model(model) if isinstance(model, str) else model, tokens, chosen.values()))


def _shown(model: Any, tokens: int, faults: Iterable[Fault]) -> Iterator[Shown]:
    live = Live(model)
    context, state, right = live.context(tokens), live.state(tokens), live.uninterrupted(tokens)
    stored = StoredPrefix(model, live.prompt, tokens)
    producer = producer_of(live)
    image = image_at(live, tokens, producer)
    for fault in faults:
        broken = fault.apply(state, context)
        if broken is None:
            continue
        answer = live.answer(broken, context, fault)
        changed = math.inf if isinstance(answer, str) else float((answer - right).abs().max())
        try:
            torn(image, live, fault, broken, context).restore(model.config, producer=producer)
            in_image = ""
        except RestoreRefused as refused:
            in_image = f"{fault.check.name}/{refused.code}"
        groups = [group for group in fault.groups if group in live.layout.groups]
        yield Shown(
            fault.name,
            fault.kind.name,
            f"{fault.way}: {', '.join(groups)}",
            _in_pages(stored, fault.apply(stored.state, context)),
            in_image,
            changed if math.isfinite(changed) else math.inf,
            answer if isinstance(answer, str) else "",
        )


def _in_pages(stored: StoredPrefix, broken: State | None) -> str:
    """Rows that are gone are pages that were not published; all else is written over pages that were."""
    if broken is None:
        return "-"
    without = missing_blocks(stored.state, broken, stored)
    told = _verdict(stored.opened(without=without)) if without else ""
    if told:
        return told
    opened = stored.opened()
    return _verdict(opened) if opened.overwrite(stored.state, broken) else "-"


def _verdict(opened: Opened) -> str:
    verdict = opened.match("all")
    if verdict.lease is not None:
        verdict.lease.cancel()
    return "" if verdict.why is None else f"{verdict.why.check.name}/{verdict.why.code}"


def _model(name: str) -> Any:
    if name in ("deepseek_v4", "llama"):
        from hybridkv.demo.models import tiny_deepseek_v4, tiny_llama

        return (tiny_deepseek_v4 if name == "deepseek_v4" else tiny_llama)()
    path = Path(__file__).resolve().parents[1] / "python" / "tiny_models.py"
    spec = importlib.util.spec_from_file_location("hybridkv_tiny_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tiny(name)


def table(rows: Iterable[Shown]) -> str:
    """Return the table as text, one line a fault."""
    lines = [("fault", "kind", "what is wrong: groups", "in pages", "in an image", "logits, unchecked")]
    for row in rows:
        changed = "raises" if row.raised else f"{row.changed_by:.3g}"
        lines.append((row.name, row.kind, row.broken, row.in_pages or "ACCEPTED", row.in_image or "ACCEPTED", changed))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main(arguments: list[str]) -> int:
    """Print the tables of the architectures that are named; 1 where a fault was accepted."""
    torch.set_num_threads(1)
    accepted = 0
    for name in arguments or ["deepseek_v4"]:
        rows = show(name)
        silent = sum(not row.raised for row in rows)
        accepted += sum(not row.is_refused for row in rows)
        print(f"{name}: {len(rows)} faults at token {TOKENS}; unchecked, {silent} of them raise nothing\n")
        print(table(rows), end="\n\n")
    print("every fault was refused" if not accepted else f"{accepted} faults were ACCEPTED")
    return 1 if accepted else 0
