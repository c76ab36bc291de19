# SPDX-License-Identifier: Apache-2.0
"""What reuse costs in time: which of several ways to a length takes least, and why.

A way (:class:`Candidate`) reads bytes from tiers, replays layers, and leaves the tokens beyond its length to be
computed. Its time is the sum of the three, one after another::

    load       = for each tier it reads from: latency + bytes / bandwidth
    replay     = layer-tokens of the replay / rate
    recompute  = (target - tokens) * layers / rate

That is an upper bound where an engine overlaps them. The rate is taken to be the same at every position.

**What is not known is not bet on.** A way whose time is not known (no bandwidth of a tier it reads from, or something
to compute and no rate) never wins against one whose time is; so with a rate and an unmeasured tier, recomputation
wins. Where no time is known at all there is nothing to compare: then the way that leaves least to compute wins, and
of those the one that reads least. An approximate way is never chosen unless the caller allows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hybridkv.arguments import count, flag, length, members, positive_number, seconds_of
from hybridkv.errors import ArgumentError
from hybridkv.texts import name_of

_LEAST_OBSERVED = 3
_LONGEST_S = Fraction(10**300)  # a float has it
_FASTEST = 1e18  # of anything, a second


@dataclass(frozen=True)
class Bandwidth:
    """How fast a tier reads.

    Parameters
    ----------
    bytes_per_second : float
        Above 0.
    latency_s : float, optional
        Seconds until the first byte of a load, once for each candidate.

    Raises
    ------
    ArgumentError
        Naming the field.
    """

    bytes_per_second: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes_per_second", positive_number("bytes_per_second", self.bytes_per_second))
        object.__setattr__(self, "latency_s", seconds_of("latency_s", self.latency_s))

    def seconds(self, size: int) -> float:
        """Return the seconds that a load of so many bytes takes; 0 of none."""
        return float(min(self._exactly(size), _LONGEST_S))

    def _exactly(self, size: int) -> Fraction:
        return Fraction(self.latency_s) + size / Fraction(self.bytes_per_second) if size else Fraction(0)


@dataclass(frozen=True)
class Candidate:
    """One way to have the state at a length.

    Parameters
    ----------
    tokens : int
        The length that is reused; 0: all is computed.
    loads : mapping of str to int, optional
        Bytes to read, by tier; of what is in memory none.
    replay_layer_tokens : int, optional
        Tokens that layers run for to make states again, summed over layers.
    layers : int, optional
        Layers of the model. Default: 1, where layer-tokens are tokens.
    exact : bool, optional
        Whether it gives what recomputation gives. Default: True.

    Raises
    ------
    ArgumentError
        Naming the field.
    """

    tokens: int
    loads: Mapping[str, int] = field(default_factory=dict, hash=False)
    replay_layer_tokens: int = 0
    layers: int = 1
    exact: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", length("tokens", self.tokens))
        if not isinstance(self.loads, Mapping):
            raise ArgumentError("loads", "a mapping of names of tiers to bytes", self.loads)
        for tier in self.loads:
            name_of("loads", tier)
        loads = {tier: length(f"loads[{tier!r}]", self.loads[tier]) for tier in sorted(self.loads)}
        object.__setattr__(self, "loads", {tier: size for tier, size in loads.items() if size})
        object.__setattr__(self, "replay_layer_tokens", length("replay_layer_tokens", self.replay_layer_tokens))
        object.__setattr__(self, "layers", count("layers", self.layers))
        object.__setattr__(self, "exact", flag("exact", self.exact))

    @property
    def load_bytes(self) -> int:
        """Bytes to read from all tiers."""
        return sum(self.loads.values())

    def _order(self) -> tuple[object, ...]:
        """Between equal times: fewer bytes, longer reuse, exact before approximate, less replay, names of tiers."""
        return (
            self.load_bytes,
            -self.tokens,
            not self.exact,
            self.replay_layer_tokens,
            tuple(self.loads.items()),
            self.layers,
        )


@dataclass(frozen=True)
class Estimate:
    """What one candidate would take.

    Attributes
    ----------
    candidate : Candidate
    load_s, replay_s, recompute_s : float or None
        Seconds of each part; None: not known.
    allowed : bool
        False of an approximate candidate that the caller did not allow.
    """

    candidate: Candidate
    load_s: float | None
    replay_s: float | None
    recompute_s: float | None
    allowed: bool
    _total: Fraction | None = field(repr=False)  # sums of floats may differ in a last bit where times are equal

    @property
    def total_s(self) -> float | None:
        """Seconds of all parts; None where one of them is not known."""
        return _told_s(self._total)


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, and what it was compared with.

    Attributes
    ----------
    candidate : Candidate
    reason : str
        "least time"; "only one"; "no time known": least to compute, then fewest bytes.
    estimates : tuple of Estimate
        Of every candidate, in the order of preference; those not allowed last.
    target_tokens : int
        The length up to which everything was counted.
    """

    candidate: Candidate
    reason: str
    estimates: tuple[Estimate, ...]
    target_tokens: int

    @property
    def exact(self) -> bool:
        """Whether the continuation is what recomputation gives."""
        return self.candidate.exact

    @property
    def why(self) -> str:
        """One line for an operator."""
        chosen, *others = self.estimates
        text = f"{self.reason}: {_told(chosen)}"
        allowed = [other for other in others if other.allowed]
        if allowed:
            text += f"; next {_told(allowed[0])}"
        if len(allowed) < len(others):
            text += f"; {len(others) - len(allowed)} approximate not allowed"
        return text

    def record(self) -> dict[str, object]:
        """Return the same for a machine: of str, int, float, bool and None alone, in dicts and lists."""
        return {
            "target_tokens": self.target_tokens,
            "tokens": self.candidate.tokens,
            "exact": self.exact,
            "reason": self.reason,
            "candidates": [
                {
                    "tokens": estimate.candidate.tokens,
                    "loads": dict(estimate.candidate.loads),
                    "replay_layer_tokens": estimate.candidate.replay_layer_tokens,
                    "exact": estimate.candidate.exact,
                    "allowed": estimate.allowed,
                    "load_s": estimate.load_s,
                    "replay_s": estimate.replay_s,
                    "recompute_s": estimate.recompute_s,
                    "total_s": estimate.total_s,
                }
                for estimate in self.estimates
            ],
        }


class Observations:
    """Loads and computations that were timed by the caller, of late; :meth:`CostModel.measured` reads them.

    Parameters
    ----------
    most : int, optional
        Observations kept of each tier, and of computing; older ones go. At most 256.
    half_life : int, optional
        After so many newer ones an observation counts half.

    Notes
    -----
    Thread safety: none, callers hold a lock. No clock is read: seconds are the caller's.
    """

    def __init__(self, *, most: int = 64, half_life: int = 16) -> None:
        self.most = count("most", most)
        if self.most > 256:
            raise ArgumentError("most", "at most 256", most)  # an estimate looks at every pair
        self.half_life = count("half_life", half_life)
        self.loads: dict[str, deque[tuple[int, float]]] = {}
        self.computations: deque[tuple[int, float]] = deque(maxlen=self.most)

    def loaded(self, tier: str, size: int, seconds: float) -> None:
        """Note that a load of so many bytes took so long.

        Raises
        ------
        ArgumentError
            No name, no bytes, or no time above 0.
        """
        name_of("tier", tier)
        seen = _bytes(size), positive_number("seconds", seconds)
        self.loads.setdefault(tier, deque(maxlen=self.most)).append(seen)

    def computed(self, layer_tokens: int, seconds: float) -> None:
        """Note that layers ran for so many tokens, summed over layers, in that time.

        Raises
        ------
        ArgumentError
            No tokens, or no time above 0.
        """
        seen = length("layer_tokens", layer_tokens), positive_number("seconds", seconds)
        if not seen[0]:
            raise ArgumentError("layer_tokens", "1 or more", layer_tokens)
        self.computations.append(seen)

    def _weights(self, number: int) -> list[float]:
        return [0.5 ** ((number - 1 - at) / self.half_life) for at in range(number)]


@dataclass(frozen=True)
class CostModel:
    """Bandwidth of tiers and rate of computing, given or measured.

    Parameters
    ----------
    tiers : mapping of str to Bandwidth, optional
        By name; a tier that is not there has no known bandwidth.
    tokens_per_second : float, optional
        Tokens that the whole model computes in a second.
    layer_tokens_per_second : float, optional
        The same for a layer: tokens x layers. One of the two at most; default: not known.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> model = CostModel({"disk": Bandwidth(3e9)}, tokens_per_second=20_000)
    >>> ways = [Candidate(0), Candidate(4096, loads={"disk": 20_000_000})]
    >>> model.choose(ways, 4096).why
    'least time: 4096 tokens in 0.00667 s (load 0.00667, replay 0, recompute 0); next 0 tokens in 0.205 s (load 0, \
replay 0, recompute 0.205)'
    """

    tiers: Mapping[str, Bandwidth] = field(default_factory=dict, hash=False)
    tokens_per_second: float | None = field(default=None, kw_only=True)
    layer_tokens_per_second: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        tiers = self.tiers
        if not isinstance(tiers, Mapping) or not all(isinstance(tier, Bandwidth) for tier in tiers.values()):
            raise ArgumentError("tiers", "a mapping of names to Bandwidth", tiers)
        for name in tiers:
            name_of("tiers", name)
        object.__setattr__(self, "tiers", dict(tiers))
        for name in ("tokens_per_second", "layer_tokens_per_second"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        if self.tokens_per_second is not None and self.layer_tokens_per_second is not None:
            raise ArgumentError(
                "layer_tokens_per_second", "None beside tokens_per_second", self.layer_tokens_per_second
            )

    @classmethod
    def measured(cls, observations: Observations, *, given: CostModel | None = None) -> CostModel:
        """Make a model of what was observed.

        Newer observations count more, and a few that are far off move nothing: bandwidth and latency are the
        weighted median of the slopes between every two loads (Theil and Sen) and of what it leaves; the rate is a
        weighted median. Loads that are all of one size tell no latency: it is 0 then.

        Parameters
        ----------
        observations : Observations
        given : CostModel, optional
            What holds for whatever was observed fewer than three times.

        Returns
        -------
        CostModel
        """
        if not isinstance(observations, Observations):
            raise ArgumentError("observations", "Observations", type(observations).__name__)
        if given is not None and not isinstance(given, CostModel):
            raise ArgumentError("given", "a CostModel or None", type(given).__name__)
        known = given or cls()
        tiers = dict(known.tiers)
        for name, seen in observations.loads.items():
            if len(seen) >= _LEAST_OBSERVED:
                tiers[name] = _fitted(list(seen), observations._weights(len(seen)))
        timed = list(observations.computations)
        if len(timed) < _LEAST_OBSERVED:
            rates = (known.tokens_per_second, known.layer_tokens_per_second)
            return cls(tiers, tokens_per_second=rates[0], layer_tokens_per_second=rates[1])
        per_second = [min(work / seconds, _FASTEST) for work, seconds in timed]
        return cls(tiers, layer_tokens_per_second=_median(per_second, observations._weights(len(timed))))

    def estimate(self, candidate: Candidate, target_tokens: int, *, allow_approximate: bool = False) -> Estimate:
        """Tell what one candidate would take up to a length; see :meth:`choose`."""
        target = length("target_tokens", target_tokens)
        if not isinstance(candidate, Candidate) or candidate.tokens > target:
            raise ArgumentError("candidates", f"Candidate objects of at most {target} tokens", candidate)
        load: Fraction | None = Fraction(0)
        for tier, size in candidate.loads.items():
            known = self.tiers.get(tier)
            load = None if known is None or load is None else load + known._exactly(size)
        replay = self._compute(candidate.replay_layer_tokens, candidate.layers)
        rest = self._compute((target - candidate.tokens) * candidate.layers, candidate.layers)
        total = None if load is None or replay is None or rest is None else load + replay + rest
        allowed = candidate.exact or flag("allow_approximate", allow_approximate)
        return Estimate(candidate, _told_s(load), _told_s(replay), _told_s(rest), allowed, total)

    def choose(self, candidates: Iterable[Candidate], target_tokens: int, *, allow_approximate: bool = False) -> Choice:
        """Choose the candidate of least time.

        Parameters
        ----------
        candidates : iterable of Candidate
            In any order, which decides nothing. One of 0 tokens stands for computing all.
        target_tokens : int
            Length up to which everything is wanted; what a candidate does not reuse of it is computed.
        allow_approximate : bool, optional
            Default: an approximate candidate is listed and not chosen.

        Returns
        -------
        Choice
            Of equal times: fewest bytes, then the longest reuse.

        Raises
        ------
        ArgumentError
            None that is allowed; one beyond the target.
        """
        flag("allow_approximate", allow_approximate)
        given = members("candidates", candidates, "an iterable of Candidate")
        estimates = [self.estimate(one, target_tokens, allow_approximate=allow_approximate) for one in given]
        estimates.sort(key=_preference)
        if not estimates or not estimates[0].allowed:
            raise ArgumentError("candidates", "at least one that is allowed", len(estimates))
        if sum(estimate.allowed for estimate in estimates) == 1:
            reason = "only one"
        else:
            reason = "no time known" if estimates[0].total_s is None else "least time"
        return Choice(estimates[0].candidate, reason, tuple(estimates), int(target_tokens))

    def _compute(self, layer_tokens: int, layers: int) -> Fraction | None:
        if not layer_tokens:
            return Fraction(0)
        if self.layer_tokens_per_second is not None:
            return layer_tokens / Fraction(self.layer_tokens_per_second)
        if self.tokens_per_second is None:
            return None
        return Fraction(layer_tokens, layers) / Fraction(self.tokens_per_second)


def _told_s(seconds: Fraction | None) -> float | None:
    return None if seconds is None else float(min(seconds, _LONGEST_S))


def _preference(estimate: Estimate) -> tuple[object, ...]:
    total, one = estimate._total, estimate.candidate
    if total is not None:
        return (not estimate.allowed, 0, total, *one._order())
    left = Fraction(one.replay_layer_tokens, one.layers) - one.tokens  # in tokens, less the target
    return (not estimate.allowed, 1, left, *one._order())


def _told(estimate: Estimate) -> str:
    parts = (estimate.load_s, estimate.replay_s, estimate.recompute_s)
    load, replay, recompute = ("unknown" if part is None else f"{part:.3g}" for part in parts)
    total = "an unknown time" if estimate.total_s is None else f"{estimate.total_s:.3g} s"
    exact = "" if estimate.candidate.exact else ", approximate"
    tokens = estimate.candidate.tokens
    return f"{tokens} tokens in {total} (load {load}, replay {replay}, recompute {recompute}{exact})"


def _fitted(seen: Sequence[tuple[int, float]], weights: Sequence[float]) -> Bandwidth:
    """Fit seconds = latency + bytes / bandwidth."""
    slopes, slope_weights = [], []
    for at, (size, seconds) in enumerate(seen):
        for other, (less, sooner) in enumerate(seen[:at]):
            if size != less:
                slopes.append((seconds - sooner) / (size - less))
                slope_weights.append(weights[at] * weights[other] * abs(size - less))
    slope = _median(slopes, slope_weights) if slopes else 0.0
    if slope <= 0:  # one size, or noise alone: what a byte took, all told
        return Bandwidth(1 / max(_median([seconds / size for size, seconds in seen], weights), 1 / _FASTEST))
    rest = [seconds - slope * size for size, seconds in seen]
    return Bandwidth(1 / max(slope, 1 / _FASTEST), max(_median(rest, weights), 0.0))


def _median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the least value at or below which half of the weight lies."""
    half, below = sum(weights) / 2, 0.0
    pairs = sorted(zip(values, weights, strict=True))
    for value, weight in pairs:
        below += weight
        if below >= half:
            return value
    return pairs[-1][0]  # sums of floats may fall short of their half by a last bit


def _bytes(size: object) -> int:
    number = length("size", size)
    if not number:
        raise ArgumentError("size", "bytes, 1 or more", size)
    return number
