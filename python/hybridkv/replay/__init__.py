# SPDX-License-Identifier: Apache-2.0
"""Replay of request traces: what a hash-hit rule promises, and what is really usable.

Reading order: :mod:`~hybridkv.replay.trace` (a file becomes requests), :mod:`~hybridkv.replay.answers`
(what the ids tell about answers), :mod:`~hybridkv.replay.tokens` (ids become tokens),
:mod:`~hybridkv.replay.pools` (a budget becomes pages), :mod:`~hybridkv.replay.replay` (one request through one
cache; who goes first is the core's order or :mod:`hybridkv.policy`). Then, of the demo,
:mod:`~hybridkv.replay.report` (figures become a table or JSON); of ``hybridkv replay``
:mod:`~hybridkv.replay.units` (ids become keys at once), :mod:`~hybridkv.replay.losses` (why tokens were computed
again), :mod:`~hybridkv.replay.grid` (many lanes on one trace), :mod:`~hybridkv.replay.grid_report` and
:mod:`~hybridkv.replay.pictures`; of ``hybridkv compare`` :mod:`~hybridkv.replay.versus`.
"""

from __future__ import annotations
