# SPDX-License-Identifier: Apache-2.0
"""Random multi-turn conversations through ``PrefixReuse.generate``, against ``model.generate`` alone.

A difference counts as a tie where, at the first token that differs, the two best candidates of the reference are
nearer to each other than twice what the model itself differs by when it runs that sequence in chunks instead of whole.
Everything else is a wrong answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from hybridkv import HybridCache
from hybridkv.adapters.transformers import PrefixReuse

VOCABULARY = 256
PAD = 0  # also in prompts: there it is a token like any other
CHUNK = 16  # tokens at a time, where the model's own difference between chunked and whole is measured

Ids = list[int]


@dataclass(frozen=True)
class Setting:
    """How prefixes are kept and how tokens are chosen, for some of the conversations."""

    stride_units: int | None
    keep_tips: bool = True
    chunk_tokens: int | None = None
    replay: bool = True
    sampling: bool = False
    system_tokens: tuple[int, int] = (35, 48)
    unit_tokens: int | None = None
    room_tokens: int = 352
    states: float = 0.4  # pages of what a replay could rebuild, to one page of history
    descriptors: float = 3.0  # to one unit of history


SETTINGS = (
    Setting(1),
    Setting(2, chunk_tokens=24, replay=False),
    Setting(4, chunk_tokens=40, system_tokens=(99, 144), room_tokens=640, states=0.2),
    Setting(None, sampling=True),
    Setting(1, keep_tips=False, chunk_tokens=7, replay=False),
    Setting(2, keep_tips=False, sampling=True),
)


@dataclass
class Tally:
    """What happened, in numbers; sums with ``+``."""

    conversations: int = 0
    turns: int = 0
    calls: int = 0
    mixed_calls: int = 0
    padded_rows: int = 0
    edits: int = 0
    early_ends: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    replayed_tokens: int = 0
    evictions: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)

    def told(self) -> str:
        """In a few lines."""
        return (
            f"{self.conversations} conversations, {self.turns} turns in {self.calls} calls, {self.edits} edits\n"
            f"  {self.mixed_calls} calls of rows with different prefixes, {self.padded_rows} padded rows, "
            f"{self.early_ends} rows that ended early\n"
            f"  {self.reused_tokens} of {self.prompt_tokens} prompt tokens reused, {self.replayed_tokens} replayed, "
            f"{self.evictions} pages evicted\n"
            f"  {self.ties} conversations with a tie, {len(self.wrong)} wrong answers"
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Tally)))


def small(model: Any, setting: Setting) -> PrefixReuse:
    """Make a reuse whose pools are too small for what it is asked to keep."""
    spec = PrefixReuse.spec_of(model, unit_tokens=setting.unit_tokens, replay=setting.replay)
    units = max(2, setting.room_tokens // spec.unit_tokens)
    pages = {}
    for group in spec.groups:
        history = units * spec.unit_tokens // (group.block_tokens or spec.unit_tokens)
        pages[group.name] = max(1, int(history * (setting.states if group.rebuildable else 1)))
    return PrefixReuse(
        model,
        cache=HybridCache(spec, blocks=max(4, int(setting.descriptors * units)), pages=pages, eviction="none"),
        unit_tokens=setting.unit_tokens,
        checkpoint_tokens=None if setting.stride_units is None else setting.stride_units * spec.boundary_tokens,
        keep_tips=setting.keep_tips,
        replay=setting.replay,
        chunk_tokens=setting.chunk_tokens,
    )


def play(model: Any, setting: Setting, conversations: int, turns: int, seed: int) -> Tally:
    """Hold conversations of some turns, several in one call, and compare every answer."""
    dice = np.random.default_rng(seed)
    reuse = small(model, setting)
    systems = [random_ids(dice, length) for length in setting.system_tokens]
    texts = [systems[dice.integers(2)] + random_ids(dice, int(dice.integers(1, 40))) for _ in range(conversations)]
    tied: set[int] = set()
    tally = Tally(conversations=conversations)
    for turn in range(turns):
        if turn:
            for number in range(conversations):
                texts[number], edited = continued(dice, texts[number])
                tally.edits += edited
        order = dice.permutation(conversations)
        cut = int(dice.integers(1, conversations))
        for some in (order[:cut], order[cut:]):
            if setting.sampling:
                level(dice, texts, some)
            call = Call(dice, setting, [texts[number] for number in some])
            for number, answer, problem in zip(some, *call.run(model, reuse, tally), strict=True):
                if problem == TIE:
                    tied.add(int(number))
                elif problem:
                    tally.wrong.append(f"{setting}, seed {seed}, turn {turn}, conversation {number}: {problem}")
                texts[number] = texts[number] + answer
    assert_idle(reuse)
    tally.ties = len(tied)
    tally.evictions = reuse.cache.metrics().retired
    return tally


def random_ids(dice: np.random.Generator, length: int) -> Ids:
    return [int(token) for token in dice.integers(0, VOCABULARY, length)]


def continued(dice: np.random.Generator, text: Ids) -> tuple[Ids, bool]:
    """What the user says next; one time in four after taking back part of the history."""
    edited = bool(dice.random() < 0.25)
    kept = text[: int(dice.integers(len(text) // 3, len(text)))] if edited else text
    return kept + random_ids(dice, int(dice.integers(1, 16))), edited


def level(dice: np.random.Generator, texts: list[Ids], some: Sequence[int]) -> None:
    """Let the users of one call say as much as makes all prompts equally long: sampled rows share a generator."""
    longest = max(len(texts[number]) for number in some)
    for number in some:
        texts[number] = texts[number] + random_ids(dice, longest - len(texts[number]))


TIE = "tie"


class Call:
    """One call of ``generate`` for several prompts, padded on the left."""

    def __init__(self, dice: np.random.Generator, setting: Setting, prompts: list[Ids]) -> None:
        self.prompts = prompts
        self.sampling = setting.sampling
        self.seed = int(dice.integers(1 << 30))
        self.arguments: dict[str, Any] = {
            "max_new_tokens": int(dice.integers(4, 9)),
            "pad_token_id": PAD,
            "do_sample": setting.sampling,
        }
        if setting.sampling:
            self.arguments.update(temperature=1.3, top_k=40)
        if dice.random() < 0.6:
            self.arguments["eos_token_id"] = random_ids(dice, 24)
        else:
            self.arguments["eos_token_id"] = None

    def run(self, model: Any, reuse: PrefixReuse, tally: Tally) -> tuple[list[Ids], list[str]]:
        """Return the reference's answers, and for each what is wrong with the one of `reuse`: "", a tie or a text."""
        width = max(len(prompt) for prompt in self.prompts)
        ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in self.prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in self.prompts])
        torch.manual_seed(self.seed)
        got = reuse.generate(ids, attention_mask=mask, **self.arguments)
        wanted = self._expected(model)
        assert torch.equal(got[:, :width], ids)
        self._count(tally, mask, reuse, wanted)
        answers = [[int(token) for token in row] for row in got[:, width:]]
        longest = max(len(answer) for answer in wanted)
        problems = []
        for number, (answer, right) in enumerate(zip(answers, wanted, strict=True)):
            padded = right + [PAD] * (longest - len(right))
            problems.append("" if answer == padded else self._judged(model, number, answer, padded, wanted))
        if any(problem == TIE for problem in problems):
            # A row that took the other of two tied tokens may end sooner or later, and so may the padding of all.
            problems = ["" if same_but_padding(a, w) else p for a, w, p in zip(answers, wanted, problems, strict=True)]
        return wanted, problems

    def _expected(self, model: Any) -> list[Ids]:
        """What the model answers: to each prompt alone, without padding; sampled rows together, from one seed."""
        if not self.sampling:
            return [self._plain(model, [prompt])[0] for prompt in self.prompts]
        torch.manual_seed(self.seed)
        ends = self.arguments["eos_token_id"] or []
        return [up_to_end(answer, ends) for answer in self._plain(model, self.prompts)]

    def _plain(self, model: Any, prompts: list[Ids]) -> list[Ids]:
        ids = torch.tensor(prompts)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **self.arguments)
        return [[int(token) for token in row] for row in out[:, ids.shape[1] :]]

    def _count(self, tally: Tally, mask: torch.Tensor, reuse: PrefixReuse, wanted: list[Ids]) -> None:
        rows = reuse.last_rows
        tally.turns += len(rows)
        tally.calls += 1
        tally.mixed_calls += len({row.usable for row in rows}) > 1
        tally.padded_rows += int((mask[:, 0] == 0).sum())
        tally.early_ends += sum(len(answer) < self.arguments["max_new_tokens"] for answer in wanted)
        tally.prompt_tokens += sum(row.tokens for row in rows)
        tally.reused_tokens += sum(row.usable for row in rows)
        tally.replayed_tokens += sum(row.replayed[1] - row.replayed[0] for row in rows if row.replayed)

    def _judged(self, model: Any, number: int, answer: Ids, right: Ids, wanted: list[Ids]) -> str:
        """Say whether a difference is a tie of the reference."""
        at = next((i for i, (a, b) in enumerate(zip(answer, right, strict=False)) if a != b), None)
        if at is None or at >= len(wanted[number]):
            return f"answer {answer}, expected {right}"
        before = self.prompts[number] + right[:at]
        gap = (
            self._sampled_gap(model, number, at)
            if self.sampling
            else two_best(logits_of(model, torch.tensor([before]))[0, -1])
        )
        allowed = 2 * chunking_difference(model, before)
        if gap < allowed:
            return TIE
        return f"token {at}: {answer}, expected {right}; the two best are {gap:.2e} apart, {allowed:.2e} would be a tie"

    def _sampled_gap(self, model: Any, number: int, at: int) -> float:
        """The distance of the two best as sampling sees them: one draw is the largest of log p plus noise."""
        states = []

        def remember(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            states.append(torch.get_rng_state())
            return scores

        ids = torch.tensor(self.prompts)
        torch.manual_seed(self.seed)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[remember],
            output_scores=True,
            return_dict_in_generate=True,
            **self.arguments,
        )
        before = torch.get_rng_state()
        torch.set_rng_state(states[at])
        probabilities = out.scores[at].softmax(dim=-1)
        drawn = (probabilities / torch.empty_like(probabilities).exponential_(1)).log()[number]
        torch.set_rng_state(before)
        assert int(drawn.argmax()) == int(out.sequences[number, ids.shape[1] + at]), "sampling works another way"
        return two_best(drawn) * self.arguments["temperature"]


def same_but_padding(answer: Ids, right: Ids) -> bool:
    return answer[: len(right)] == right and set(answer[len(right) :]) <= {PAD}


def up_to_end(answer: Ids, ends: Sequence[int]) -> Ids:
    """An answer without what follows its first end token."""
    return next((answer[: at + 1] for at, token in enumerate(answer) if token in ends), answer)


GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}


def prompts(rows: int = 1, tokens: int = 60, seed: int = 0) -> torch.Tensor:
    """[[rows, tokens]] int64."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (rows, tokens)))


def answered(model: Any, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """What the model itself says to prompts of one length."""
    out: torch.Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **{**GREEDY, **arguments})
    return out


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """[[rows, tokens, vocabulary]] of one forward pass."""
    logits: torch.Tensor = model(input_ids=ids, **arguments).logits
    return logits


def two_best(scores: torch.Tensor) -> float:
    best = scores.double().topk(2).values
    return float(best[0] - best[1])


def chunking_difference(model: Any, ids: Ids) -> float:
    """How far the model's own logits move when a sequence is run in chunks, or token by token: the most of all."""
    steps = (1,) if model.config.model_type == "jamba" else (CHUNK, 1)  # which starts anew in a longer continuation
    whole = in_chunks(model, ids, len(ids))
    return max(float((in_chunks(model, ids, step) - whole).abs().max()) for step in steps)


@torch.no_grad()
def in_chunks(model: Any, ids: Ids, step: int) -> torch.Tensor:
    """[[tokens, vocabulary]] of a sequence that is run some tokens at a time."""
    arguments = inspect.signature(model.forward).parameters
    past = {"cache" if "cache" in arguments else "past_key_values": DynamicCache(config=model.config)}
    parts = []
    for start in range(0, len(ids), step):
        part = torch.tensor([ids[start : start + step]])
        positions = torch.arange(start, start + part.shape[1])[None]
        parts.append(model(input_ids=part, position_ids=positions, use_cache=True, **past).logits[0])
    return torch.cat(parts)


def assert_idle(reuse: PrefixReuse) -> None:
    """Nothing is held: every look-up is settled, every fill closed, every page accounted for."""
    metrics = reuse.cache.metrics()
    assert metrics.pending == 0 and metrics.pending_tokens == 0
    assert metrics.leaks == 0 and metrics.quarantined == 0
    settled = metrics.misses + metrics.false_hits_total + metrics.effective_hits + metrics.withdrawn
    assert metrics.lookups == settled
    for name, pages in metrics.pages.items():
        assert (pages.filling, pages.held) == (0, 0), name
        assert pages.free + pages.cached == reuse.cache.pages[name], name
