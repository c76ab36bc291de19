# SPDX-License-Identifier: Apache-2.0
"""Replay of request traces: what a hash-hit rule promises, and what is really usable.

Reading order: :mod:`~hybridkv.replay.trace` (a file becomes requests), :mod:`~hybridkv.replay.answers`
(what the ids tell about answers), :mod:`~hybridkv.replay.tokens` (ids become tokens),
:mod:`~hybridkv.replay.pools` (a budget becomes pages), :mod:`~hybridkv.replay.replay` (one request through one
cache; who goes first is :mod:`hybridkv.policy`), :mod:`~hybridkv.replay.report` (figures become a table or JSON).
"""

from __future__ import annotations
