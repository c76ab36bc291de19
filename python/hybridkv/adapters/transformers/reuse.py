# SPDX-License-Identifier: Apache-2.0
"""PrefixReuse: a transformers model that computes no prefix twice, and never goes on from a state that is not whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from hybridkv.adapters.transformers.changes import adapter_state, weights_version
from hybridkv.adapters.transformers.generation import Generation
from hybridkv.adapters.transformers.inputs import sequences
from hybridkv.adapters.transformers.layout import least_unit
from hybridkv.adapters.transformers.measure import Measured, measured
from hybridkv.adapters.transformers.output import ReuseOutput
from hybridkv.adapters.transformers.pages import Pages
from hybridkv.adapters.transformers.prefill import Prefill
from hybridkv.adapters.transformers.recorder import Recorder
from hybridkv.adapters.transformers.rows import Row, RowReuse
from hybridkv.adapters.transformers.runner import Runner
from hybridkv.adapters.transformers.sizing import default_cache
from hybridkv.adapters.transformers.store import Store
from hybridkv.adapters.transformers.tier_traffic import TierTraffic
from hybridkv.adapters.transformers.whole import whole_limit
from hybridkv.arguments import count, flag, verify_mode
from hybridkv.cache import HybridCache
from hybridkv.errors import ArgumentError
from hybridkv.holders import seconds
from hybridkv.identity import Identity
from hybridkv.keys import BlockKeys, block_keys
from hybridkv.kinds import Check, Outcome
from hybridkv.policy import EvictionPolicy, LruPolicy
from hybridkv.spec import CacheSpec
from hybridkv.steering import WITHHELD
from hybridkv.texts import encodable
from hybridkv.tiers import Tier
from hybridkv.transfers import TIMEOUT_S, duration

DEFAULT_UNIT_TOKENS = 16
DEFAULT_MEMORY_BYTES = 1 << 28
_MOST_DAMAGED = 8  # damaged pages met by one look-up before it is a miss like any other


class PrefixReuse:
    """Prefix reuse for a causal language model of transformers.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In eval mode; one of the architectures in :data:`.families.FAMILIES`.
    cache : HybridCache, optional
        Over the spec of :meth:`spec_of`, with no pool bound: its pools are made here, in host memory. Default: one of
        ``memory_bytes``.
    unit_tokens : int, optional
        Tokens that one key names. Default: 16, raised to the least multiple of the model's compression ratios.
    checkpoint_tokens : int, optional
        Distance of kept window, tail and recurrent checkpoints, a multiple of the unit. Default: the unit; for an
        architecture whose continuation must go token by token none, since a prompt would have to go that way too.
    keep_tips : bool, optional
        Keep the state at prompt end and output end, aligned or not.
    tier : Tier, optional
        Where prefixes outlive memory and the process, at every boundary that is kept, tips among them. What a call
        kept is stored behind it, without waiting; what a call needs and memory lacks is loaded before it, verified, or
        refused and computed. The tier stays the caller's to close, after :meth:`close`. Default: that of ``cache``,
        whose ``tier_writes=``, where it names a mode, says when prefixes are stored.
    load_timeout_s : float, optional
        Longest wait for a record of the tier, and of a write for its turn, in seconds.
    memory_bytes : int, optional
        Memory of pages, where ``cache`` is not given.
    replay : bool, optional
        Where a window is gone and history is there, rebuild it by exact replay, if that computes fewer tokens than
        going on from the next boundary that is whole. Architectures that cannot be replayed ignore it.
    chunk_tokens : int, optional
        Most tokens of one forward pass. Default: whole spans between checkpoints.
    verify : {"all", "sampled", "off"}, optional
        Content verification of each match; see :meth:`HybridCache.match <hybridkv.HybridCache.match>`.
    policy : EvictionPolicy, optional
        Makes room. Default: least recently used.
    identity : Identity, optional
        Goes into every key. Default: digests of the weights' content and of all that says how bytes are made, so
        that other weights are another namespace. Computed again where weights were changed in place, or adapters
        switched.
    weights : str, optional
        What stands for the weights, such as :func:`.weights.checkpoint_digest` of their folder. Default: a digest of
        their content, which reads all of them once.

    Attributes
    ----------
    cache : HybridCache
        What is stored, and the counters.

    Raises
    ------
    UnsupportedModel
        An architecture or cache that is not known, or whose state does not restore bit for bit.
    ArgumentError, SpecError
        An argument that is not legal.

    Notes
    -----
    Thread safety: calls may run in several threads as far as the model's forward may.

    The continuation of a restored state is, bit for bit, that of the live cache. Against one forward pass over the
    whole prompt, logits differ by what chunking differs by in that model.
    """

    def __init__(
        self,
        model: Any,
        *,
        cache: HybridCache | None = None,
        unit_tokens: int | None = None,
        checkpoint_tokens: int | None = None,
        keep_tips: bool = True,
        tier: Tier | None = None,
        load_timeout_s: float = TIMEOUT_S,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        replay: bool = True,
        chunk_tokens: int | None = None,
        verify: str = "all",
        policy: EvictionPolicy | None = None,
        identity: Identity | None = None,
        weights: str | None = None,
    ) -> None:
        self.model = _checked_model(model)
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._replay = flag("replay", replay)
        if weights is not None and not isinstance(weights, str):
            raise ArgumentError("weights", "a str or None", repr(weights))
        encodable("weights", weights or "", ArgumentError)
        self._given_identity = identity
        verify_mode(verify)
        self._verify = verify
        unit = _unit_of(model, unit_tokens)
        self._runner = Runner(model, single_steps=False)
        self._measured = measured(model, self._runner, unit, replay=replay, identity=identity, weights=weights)
        self._version = weights_version(model), adapter_state(model)
        spec = self._measured.spec
        self._step = _checkpoint_step(spec.boundary_tokens, checkpoint_tokens, self._runner.single_steps)
        self._keep_tips = flag("keep_tips", keep_tips)
        self._chunk = None if chunk_tokens is None else count("chunk_tokens", chunk_tokens)
        if cache is not None:
            self.cache = _fitting(cache, spec, tier)
        else:
            self.cache = default_cache(spec, memory_bytes, self._step, tier)
        _check_tier(self.cache, self._step, self._keep_tips)
        groups = {group.name: group for group in self.cache.spec.groups}
        self._pages = Pages(self._measured.layout, groups, self._measured.shapes, self.cache.pages)
        for name in groups:
            self.cache.bind(name, self._pages.arrays(name))
        self._bound = {name: self.cache._bound[name] for name in groups}
        self._store = Store(
            self.cache, self._pages, LruPolicy(self.cache) if policy is None else _checked_policy(policy)
        )
        self._traffic = None
        if self.cache.tier is not None:
            self._traffic = TierTraffic(self.cache, self._store, duration(load_timeout_s))
            self._store.unpin = self._traffic.wait_for_one
        self._last = threading.local()
        self._prefill = Prefill(self._runner, self._store, step=self._step, most_tokens=self._chunk)

    @staticmethod
    def spec_of(
        model: Any, *, unit_tokens: int | None = None, replay: bool = True, identity: Identity | None = None
    ) -> CacheSpec:
        """Return the spec that a cache for a model must have.

        Parameters
        ----------
        model, unit_tokens, replay, identity
            As in the constructor.

        Returns
        -------
        CacheSpec
            The groups of the model as it is: its dtype, its measured widths of rows, its producer's formats.

        Raises
        ------
        UnsupportedModel, ArgumentError, SpecError
            As the constructor.
        """
        runner = Runner(_checked_model(model), single_steps=False)
        return measured(model, runner, _unit_of(model, unit_tokens), replay=replay, identity=identity).spec

    @property
    def identity(self) -> Identity:
        """What goes into every key now."""
        return self._measured.spec.identity

    @property
    def measured(self) -> Measured:
        """What the model's cache keeps: layout, widths of rows, spec."""
        return self._measured

    @property
    def pages(self) -> Pages:
        """The pools."""
        return self._pages

    @property
    def not_stored(self) -> Mapping[str, int]:
        """Boundaries that were not kept since no room could be made, by the pool that was short."""
        return self._store.not_stored

    @property
    def not_written(self) -> Mapping[str, int]:
        """Transfers to the tier that failed, by the name of their :class:`~hybridkv.tiers.TierStatus`."""
        return {} if self._traffic is None else self._traffic.not_written

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what was kept so far is in the tier and durable, at most so many seconds.

        Parameters
        ----------
        timeout : float, optional
            Default: as long as it takes; each record has a deadline of its own.

        Returns
        -------
        bool
            Whether nothing is on its way any more; :attr:`not_written` tells what did not arrive. The rest survives a
            power cut now, where the tier is durable at all.

        Raises
        ------
        ArgumentError
            No number of seconds.
        """
        until = None if timeout is None else seconds("timeout", timeout)
        return True if self._traffic is None else self._traffic.flush(until)

    def close(self) -> None:
        """Wait for what is on its way to the tier, and close the cache; the tier stays open. Idempotent.

        Raises
        ------
        Busy
            A call is under way.
        """
        if not self.cache._closed:
            self.flush()
            self.cache.close()

    def keys(self, ids: npt.NDArray[np.int64] | Sequence[int]) -> BlockKeys:
        """Return the keys of a sequence of token ids, as this object makes them."""
        return block_keys(ids, self.cache.spec.unit_tokens, identity=self.identity)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> ReuseOutput:
        """Compute the logits of what is not known yet, and keep the states on the way.

        Parameters
        ----------
        input_ids : torch.Tensor
            [[rows, tokens]] integers.
        attention_mask : torch.Tensor, optional
            [[rows, tokens]] of 0 and 1, padding at the start of a row. Padded rows are run without their padding:
            compressed windows would take pad tokens in. Default: no padding.

        Returns
        -------
        ReuseOutput
            ``logits`` [[rows, computed, vocabulary]]: the last tokens, as many as were computed in every row;
            ``rows``: what was found for each; ``past``: the cache at the end.

        Raises
        ------
        ArgumentError
            Inputs that are not rows of token ids.
        """
        with self._rows(sequences(input_ids, attention_mask, self._vocabulary)) as rows:
            self._prefill.run(rows, [len(row.ids) for row in rows], tips=self._keep_tips, all_logits=True)
        return ReuseOutput(self._pages.layout, rows)

    def generate(self, input_ids: Any = None, attention_mask: Any = None, **arguments: Any) -> Any:
        """Generate as ``model.generate`` does, from the longest prefix that can be reused.

        Parameters
        ----------
        input_ids : torch.Tensor
            [[rows, tokens]] integers.
        attention_mask : torch.Tensor, optional
            As in :meth:`forward`. Default: no padding (``model.generate`` would infer it from the padding id).
        **arguments
            Of ``model.generate``: greedy search or sampling, any length, stopping or logits option.

        Returns
        -------
        torch.Tensor
            [[rows, tokens and what was generated]] int64, as ``model.generate`` returns it (a ``ModelOutput`` with
            ``return_dict_in_generate``). :attr:`last_rows` tells what was reused.

        Raises
        ------
        ArgumentError
            Beam search, assisted generation, a cache or embeddings of the caller, ``use_cache=False``.

        Notes
        -----
        A padded row gives what ``model.generate`` gives for the row alone, without padding. Rows of different
        length are decoded one length after another: sampling then draws other numbers from the same generator, and
        a logits processor or stopping criterion of the caller sees the rows of one length at a time, unpadded.
        """
        generation = Generation(self.model, self._runner, arguments)
        given = arguments.get("inputs") if input_ids is None else input_ids
        batch = sequences(given, attention_mask, self._vocabulary)
        shown = _as_rows(given)
        with self._rows(generation.repeated(batch)) as rows:
            # One token is left for generate itself, whose first step samples from its logits.
            self._prefill.run(rows, [len(row.ids) - 1 for row in rows], tips=False, ahead=self._keep_tips)
            result = generation.run(rows, self._prefill, shown.shape[1], tips=self._keep_tips)
        self._last.rows = [row.told for row in rows]
        if not isinstance(result, list):
            return result
        prompts = generation.repeated(list(shown))
        filled = pad_sequence(result, batch_first=True, padding_value=generation.pad_id())
        return torch.cat([torch.stack(prompts).to(filled.device), filled], dim=1)

    @property
    def last_rows(self) -> list[RowReuse]:
        """What the last :meth:`generate` of the calling thread reused, by row."""
        rows: list[RowReuse] = getattr(self._last, "rows", [])
        return rows

    @contextmanager
    def _rows(self, batch: Sequence[npt.NDArray[np.int64]]) -> Iterator[list[Row]]:
        """Match every row and hold the leases until the work is done."""
        self._refresh()
        rows: list[Row] = []
        failed = True
        try:
            for ids in batch:
                rows.append(self._begin(ids))
            for row in rows:
                if row.lease is not None:
                    self._store.touch(row.keys, row.start)
            yield rows
            failed = False
        finally:
            for row in rows:
                row.settle(failed)
        if self._traffic is not None:
            for row in rows:
                self._traffic.write(row.recorder.longest)

    def _begin(self, ids: npt.NDArray[np.int64]) -> Row:
        keys = self.keys(ids)
        formats = self._store.formats
        loaded = None if self._traffic is None else self._traffic.load(keys, ids)
        limit, passed_over = whole_limit(self.cache, keys, ids, self.cache._format_list(formats))
        first = verdict = self.cache.match(keys, limit=limit, formats=formats, verify=self._verify)
        for _ in range(_MOST_DAMAGED):
            why = verdict.why
            if verdict.outcome is not Outcome.FALSE_HIT or why is None or why.check is not Check.INTEGRITY:
                break
            if why.code == WITHHELD:  # by who watches the cache: asking again changes nothing
                break
            # The damaged page is out of the way now; boundaries that do not need it may be whole.
            verdict = self.cache.match(keys, limit=limit, formats=formats, verify=self._verify)
        told = RowReuse(
            tokens=len(ids),
            matched=first.matched_tokens if passed_over is None else passed_over.matched_tokens,
            usable=verdict.usable_tokens,
            outcome=verdict.outcome,
            why=first.why if passed_over is None else passed_over.why,
            lost=first.lost,
            loaded=loaded,
        )
        if verdict.plan.replay:
            told.replayed = (verdict.plan.resume_tokens, verdict.usable_tokens)
        recorder = Recorder(self._store, keys, ids, verdict.usable_tokens, self.identity)
        told.stored = recorder.boundaries
        return Row(ids, keys, verdict.lease, recorder, told)

    def _refresh(self) -> None:
        """Weights that were changed in place, or other adapters, make other states: a namespace of their own."""
        _checked_model(self.model)
        for name, bound in self._bound.items():
            if not self.cache._closed and self.cache._bound.get(name) is not bound:
                raise ArgumentError("cache", f"the pool of {name!r} that was made here", "another one, bound since")
        version = weights_version(self.model), adapter_state(self.model)
        if version == self._version:
            return
        # A name that was given for the weights stands for those before the change.
        again = measured(
            self.model,
            self._runner,
            self.cache.spec.unit_tokens,
            replay=self._replay,
            identity=self._given_identity,
        )
        if again.shapes != self._pages.shapes:
            changed = next(
                place for place in self._pages.shapes if again.shapes.get(place) != self._pages.shapes[place]
            )
            expected = f"rows of {self._pages.shapes[changed]} in {changed.name}, as when this PrefixReuse was made"
            raise ArgumentError("model", expected, again.shapes.get(changed))
        self._measured, self._version = again, version
        self._store.formats = {group.name: group.format for group in again.spec.groups if group.format is not None}


def _as_rows(input_ids: Any) -> torch.Tensor:
    ids = input_ids if isinstance(input_ids, torch.Tensor) else torch.as_tensor(np.asarray(input_ids))
    return ids.long().unsqueeze(0) if ids.ndim == 1 else ids.long()


def _checked_model(model: Any) -> Any:
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise ArgumentError("model", "a causal language model of transformers", type(model).__name__)
    for name, module in model.named_modules():
        if module.training:
            raise ArgumentError("model", "a model in eval mode", f"{name or 'the model'} in training mode")
    kind = torch.device(model.device).type
    if torch.is_autocast_enabled(kind):
        raise ArgumentError("model", "no autocast around it: rows would be of another dtype", f"autocast on {kind}")
    return model


def _checked_policy(policy: Any) -> EvictionPolicy:
    for name in ("touch", "stored", "make_room"):
        if not callable(getattr(policy, name, None)):
            raise ArgumentError("policy", f"an EvictionPolicy, with {name}", type(policy).__name__)
    return policy  # type: ignore[no-any-return]


def _unit_of(model: Any, unit_tokens: int | None) -> int:
    if unit_tokens is None:
        return least_unit(model.config, DEFAULT_UNIT_TOKENS)
    unit, step = count("unit_tokens", unit_tokens), least_unit(model.config)
    if unit % step:
        raise ArgumentError("unit_tokens", f"a multiple of {step}, of every compression ratio of the model", unit)
    return unit


def _checkpoint_step(unit: int, checkpoint_tokens: int | None, single_steps: bool) -> int | None:
    if checkpoint_tokens is None:
        return None if single_steps else unit
    step = count("checkpoint_tokens", checkpoint_tokens)
    if step % unit:
        raise ArgumentError("checkpoint_tokens", f"a multiple of {unit}, the step of usable lengths", step)
    return step


def _check_tier(cache: HybridCache, step: int | None, keep_tips: bool) -> None:
    """Refuse a tier that could never give anything back."""
    if cache.tier is None:
        return
    cache.tier.windows.check(cache.spec)
    if step is None and not (keep_tips and cache.tier.windows.ends):
        expected = (
            f"a multiple of {cache.spec.boundary_tokens}, or keep_tips=True and a tier that keeps ends: tokens go in "
            "one by one, and no other boundary is passed"
        )
        raise ArgumentError("checkpoint_tokens", expected, None)


def _fitting(cache: HybridCache, spec: CacheSpec, tier: Tier | None) -> HybridCache:
    if not isinstance(cache, HybridCache):
        raise ArgumentError("cache", "a HybridCache", type(cache).__name__)
    if tier is not None and tier is not cache.tier:
        raise ArgumentError("tier", "the tier that the cache was made with", tier)
    if cache.spec.unit_tokens != spec.unit_tokens:
        raise ArgumentError("cache.spec.unit_tokens", spec.unit_tokens, cache.spec.unit_tokens)
    names = [group.name for group in spec.groups]
    if names != [group.name for group in cache.spec.groups]:
        raise ArgumentError("cache.spec.groups", names, [group.name for group in cache.spec.groups])
    for ours, theirs in zip(spec.groups, cache.spec.groups, strict=True):
        for field in fields(ours):
            wanted, got = getattr(ours, field.name), getattr(theirs, field.name)
            if wanted != got:
                if field.name == "format" and wanted is not None and got is not None:
                    wanted, got = ([getattr(diff, side) for diff in wanted.diff(got)] for side in ("ours", "theirs"))
                raise ArgumentError(f"cache.spec.groups[{ours.name!r}].{field.name}", wanted, got)
    if cache._bound:
        raise ArgumentError("cache", "a cache without pools: they are made here", f"pools of {sorted(cache._bound)}")
    return cache
