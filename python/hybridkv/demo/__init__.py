# SPDX-License-Identifier: Apache-2.0
"""The demo: what a hash-hit rule does to the text of a real model, what hybridkv does, and which states it refuses.

Reading order: :mod:`~hybridkv.demo.parts` (what there is to run, and what it lacks), :mod:`~hybridkv.demo.models` and
:mod:`~hybridkv.demo.conversations` (what is asked), :mod:`~hybridkv.demo.answers` (what a policy is, and the
reference), :mod:`~hybridkv.demo.hash_hit` and :mod:`~hybridkv.demo.hybrid` (the two others),
:mod:`~hybridkv.demo.serving` (each answer beside the right one), :mod:`~hybridkv.demo.runs` (all of it, twice),
:mod:`~hybridkv.demo.report` (scores become a table or JSON), :mod:`~hybridkv.demo.boundaries` and
:mod:`~hybridkv.demo.picture` (where a conversation could resume), :mod:`~hybridkv.demo.faults` (one state broken at a
time), :mod:`~hybridkv.demo.rollout` (reuse switched on by steps).

:mod:`~hybridkv.demo.parts` imports neither torch nor matplotlib; it names the extra to install where one is absent.
"""

from __future__ import annotations
