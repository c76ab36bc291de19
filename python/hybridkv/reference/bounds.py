# SPDX-License-Identifier: Apache-2.0
"""How far float32 may be from the specification: bounds that every kernel has to keep, element by element.

With u = 2**-24, the unit roundoff of float32, n slots, d channels, and first order in u throughout:

1. *Softmax*. The exponent z - m, or z itself where a kernel leaves the maximum out, possibly times log2(e), carries
   at most three roundings, so that a power is wrong by the factor 1 + 3 u g, g = max(|z - m|, |z|), and by 4 u for
   ``exp`` itself. Its sum is wrong by the weighted mean G of those, and by (n - 1) u for adding up. So the weight a[s]
   is wrong by the factor 1 + u (3 g[s] + 3 G + n + 8).
2. *Pooling*. One rounding for each product, n - 1 for adding up:
   ``delta = u * sum_s a[s] |kv[s]| (3 g[s] + 3 G + 2 n + 8)``.
3. *Norm*. With q = sqrt(mean(y**2) + eps), errors of y move q by at most ||delta|| / sqrt(d), and its own rounding by
   (d / 2 + 6) u q; rho is the sum of both over q. Then
   ``E = |weight| (delta / q + |y| / q * rho) / (1 - rho)``.
4. *Rotation* of the pair (a, b) by the angle t. Frequencies and product are taken to be within 10 u |t|, cosine and
   sine within 2 u: ``E'[a] = E[a] |cos t| + E[b] |sin t| + (|a| + |b|) u (10 |t| + 6)``, and the same for b with
   cosine and sine exchanged.
5. Subnormal powers vanish in float32: 2**-120 is added relative to the largest value.

Bounds of the worst case: what is measured is some ten times less.
"""

from __future__ import annotations

import numpy as np

from hybridkv.reference.compressor import Compressor, Slots, pool, rms_norm, softmax
from hybridkv.reference.rotary import Rope
from hybridkv.reference.small_floats import Doubles

FLOAT32_ROUNDOFF = 2.0**-24

_VANISHING = 2.0**-120


def float32_bound(compressor: Compressor, slots: Slots) -> Doubles:
    """Bound the error of entries that are computed in float32 from exactly these slots.

    Parameters
    ----------
    compressor : Compressor
        Of the layer.
    slots : Slots
        Finite values; scores finite or -inf, not all of a channel's.

    Returns
    -------
    float64 ndarray, [[entries, d]]
        The difference to ``compressor.entries(slots)`` that is allowed; infinite where float32 has no digit left.
    """
    pooled = pool(slots.values, slots.scores)
    delta = _pooling_error(slots)
    bound = norm_bound(pooled, delta, compressor.norm_weight, compressor.eps)
    if compressor.rope is None:
        return bound
    return rotation_bound(rms_norm(pooled, compressor.norm_weight, compressor.eps), bound, compressor.rope, slots)


def _pooling_error(slots: Slots) -> Doubles:
    scores, values = slots.scores, np.abs(slots.values)
    weights = softmax(scores)
    counts = weights > 0
    offsets = np.where(counts, scores - np.max(scores, axis=-2, keepdims=True), 0.0)
    reach = np.maximum(np.abs(offsets), np.abs(np.where(counts, scores, 0.0)))
    mean_reach = np.sum(weights * reach, axis=-2, keepdims=True)
    factor = 3 * reach + 3 * mean_reach + 2 * scores.shape[-2] + 8
    rounding: Doubles = FLOAT32_ROUNDOFF * np.sum(weights * values * factor, axis=-2)
    vanished: Doubles = _VANISHING * np.max(values, axis=-2)
    return rounding + vanished


def norm_bound(rows: Doubles, delta: Doubles, weight: Doubles, eps: float) -> Doubles:
    """Bound the error of a norm in float32 whose inputs are wrong themselves.

    Parameters
    ----------
    rows, delta : float64 ndarray, [[entries, d]]
        Inputs and the bounds of their errors.
    weight : float64 ndarray, [[d]]
        Of the norm.
    eps : float
        Of the norm.

    Returns
    -------
    float64 ndarray, [[entries, d]]
        Infinite where the error of a norm may be as large as the norm.
    """
    width = rows.shape[-1]
    scale = np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + eps)
    moved = np.sqrt(np.mean(delta * delta, axis=-1, keepdims=True)) / scale
    rho = moved + (width / 2 + 6) * FLOAT32_ROUNDOFF
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.abs(weight) * (delta / scale + np.abs(rows) / scale * rho) / (1 - rho)
    return np.where(rho < 1, bound, np.inf)


def rotation_bound(rows: Doubles, bound: Doubles, rope: Rope, slots: Slots) -> Doubles:
    """Bound the error of a rotation in float32 whose inputs are wrong themselves.

    Parameters
    ----------
    rows, bound : float64 ndarray, [[entries, d]]
        Before the rotation.
    rope : Rope
        The rotation.
    slots : Slots
        For the positions.

    Returns
    -------
    float64 ndarray, [[entries, d]]
        After the rotation.
    """
    angles = slots.positions[:, None] * rope.frequencies()
    cosines, sines = np.abs(np.cos(angles)), np.abs(np.sin(angles))
    first, second = rope.pairs()
    own = (np.abs(rows[:, first]) + np.abs(rows[:, second])) * FLOAT32_ROUNDOFF * (10 * np.abs(angles) + 6)
    out = bound.copy()
    out[:, first] = bound[:, first] * cosines + bound[:, second] * sines + own
    out[:, second] = bound[:, second] * cosines + bound[:, first] * sines + own
    return out


def score_bound(queries: Doubles, keys: Doubles, weights: Doubles, query_bound: Doubles, key_bound: Doubles) -> Doubles:
    """Bound the error of indexer scores in float32 whose inputs are wrong themselves.

    Parameters
    ----------
    queries, query_bound : float64 ndarray, [[queries, heads, d]]
        Rotated queries and the bounds of their errors.
    keys, key_bound : float64 ndarray, [[entries, d]]
        Keys and the bounds of their errors.
    weights : float64 ndarray, [[queries, heads]]
        Exactly those given to the scorer.

    Returns
    -------
    float64 ndarray, [[queries, entries]]
        ``scale * sum_h |w_h| (bound of q . k + |q| . |k| (d + heads + 6) u)``: a ReLU makes no error larger.
    """
    heads, width = queries.shape[-2:]
    q, k = np.abs(queries), np.abs(keys)
    inputs = (q + query_bound) @ (k + key_bound).T - q @ k.T
    rounding = (q @ k.T) * (width + heads + 6) * FLOAT32_ROUNDOFF
    total: Doubles = np.einsum("qh,qhs->qs", np.abs(weights), inputs + rounding) / np.sqrt(width * heads)
    return total
