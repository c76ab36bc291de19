# SPDX-License-Identifier: Apache-2.0
"""Bugs of the probe: what it overlooks, takes for a fault that is none, or lets a service do to it."""

from __future__ import annotations

from seeded_bugs import Bug

ENDPOINT, ANSWERS = "python/hybridkv/probe/endpoint.py", "python/hybridkv/probe/answers.py"
COMPARE, TRIALS = "python/hybridkv/probe/compare.py", "python/hybridkv/probe/trials.py"
CONTROL, VERDICT = "python/hybridkv/probe/control.py", "python/hybridkv/probe/verdict.py"
TEST, WIRE = "tests/python/test_probe.py", "tests/python/test_probe_wire.py"

BUGS = [
    Bug(
        "unlikely token bounds the others",
        "a token of the prompt that nobody would expect bounds how likely absent ones are: noise looks like a fault",
        COMPARE,
        "reverse=True)[:asked][-1]",
        "reverse=True)[-1]",
        f"{TEST}::test_differences_by_position",
    ),
    Bug(
        "answers compared past their parting",
        "positions behind different tokens are compared",
        COMPARE,
        "            diverged = at\n            break",
        "            diverged = at",
        f"{TEST}::test_differences_by_position",
    ),
    Bug(
        "noise is the tolerance",
        "changes above the largest noise of a few pairs count as faults",
        CONTROL,
        "MARGIN * self.noise)",
        "self.noise)",
        f"{TEST}::test_the_tolerance_stands_above_the_noise_of_both_kinds",
    ),
    Bug(
        "rounding is no noise",
        "only equal prompts calibrate the tolerance, prompts that are cut elsewhere do not",
        CONTROL,
        "max([*self.same, *self.chunked], default=0.0)",
        "max(self.same, default=0.0)",
        f"{TEST}::test_the_tolerance_stands_above_the_noise_of_both_kinds",
    ),
    Bug(
        "control that was reused",
        "pairs of which one was reused calibrate the tolerance",
        CONTROL,
        "if reused(service, one) or reused(service, other) or",
        "if",
        f"{TEST}::test_what_was_reused_is_no_control",
    ),
    Bug(
        "judge that is a hit itself",
        "an answer that was reused counts as computed from scratch",
        TRIALS,
        "    if reused(service, scratch):",
        "    if scratch is None:",
        f"{TEST}::test_a_lane_that_is_apart_no_longer_judges_nothing",
    ),
    Bug(
        "reuse of what was never shared",
        "more reused tokens than were ever the same are not noticed",
        TRIALS,
        "if shared is not None and warm.reused > max(shared, common) + slack:",
        "if shared is not None and warm.reused > warm.reused + slack:",
        f"{TEST}::test_a_key_without_the_first_token_is_a_false_hit",
    ),
    Bug(
        "salt taken on trust",
        "a lane counts as apart though what is cached elsewhere is reused in it",
        "python/hybridkv/probe/isolation.py",
        "            return SHARED\n",
        "            return APART\n",
        f"{TEST}::test_a_salt_that_is_ignored_or_refused_is_no_lane",
    ),
    Bug(
        "one hiccup condemns",
        "a single answer that differs is a verdict of false hits",
        VERDICT,
        "WANTED = 2",
        "WANTED = 1",
        f"{TEST}::test_one_hiccup_is_no_false_hit",
    ),
    Bug(
        "noise hides nothing",
        "a service whose noise hides any fault is called consistent",
        VERDICT,
        "_LEAST_SEEN_SHARE = 0.5",
        "_LEAST_SEEN_SHARE = 0.0",
        f"{TEST}::test_noise_that_hides_faults",
    ),
    Bug(
        "counts that cannot be are passed over",
        "a service that contradicts itself is called consistent",
        VERDICT,
        "    if impossible:\n",
        "    if len(impossible) < 0:\n",
        f"{TEST}::test_a_service_that_lies_about_cached_tokens",
    ),
    Bug(
        "power of faults that do not show",
        "the stated rate takes every fault for one that changes answers by more than the tolerance",
        "python/hybridkv/probe/power.py",
        "if chance(middle * seen_share, compared, wanted) >= probability:",
        "if chance(middle, compared, wanted) >= probability:",
        f"{TEST}::test_the_rate_that_is_seen",
    ),
    Bug(
        "key in the report",
        "a key that a service sends back is printed",
        ENDPOINT,
        'text = text.replace(key, "***")',
        "text = text.replace(key, key)",
        f"{WIRE}::test_a_key_is_sent_and_never_shown",
    ),
    Bug(
        "key over http",
        "a key is sent unencrypted to another host",
        ENDPOINT,
        "not in _LOOPBACK and not plain_key:",
        "in _LOOPBACK and not plain_key:",
        f"{WIRE}::test_a_key_goes_nowhere_else",
    ),
    Bug(
        "socket that is only let go",
        "the timer of a request does not reach the socket of an answer that has begun",
        ENDPOINT,
        "            held.append(connection.sock)\n",
        "",
        f"{WIRE}::test_a_service_that_is_slow_is_left_at_the_deadline",
    ),
    Bug(
        "compressed answers taken",
        "an answer is taken however it is encoded",
        ENDPOINT,
        'if encoding not in ("", "identity"):',
        'if encoding == "never":',
        f"{WIRE}::test_answers_that_are_none_are_refused_by_field",
    ),
    Bug(
        "torn answers taken",
        "an answer of fewer bytes than its header says is taken",
        ENDPOINT,
        "    if response.length:  #",
        "    if response.length is None:  #",
        f"{WIRE}::test_answers_that_are_none_are_refused_by_field",
    ),
    Bug(
        "NaN taken for a number",
        "numbers that are none come in with the JSON",
        ENDPOINT,
        "parse_constant=_no_constant",
        "parse_constant=float",
        f"{WIRE}::test_answers_that_are_none_are_refused_by_field",
    ),
    Bug(
        "more cached than sent",
        "more reused tokens than the prompt has are taken for true",
        ANSWERS,
        "and cached > prompt:",
        "and cached > 100 * prompt:",
        f"{WIRE}::test_answers_of_another_shape_are_refused_by_place",
    ),
    Bug(
        "probability above one",
        "log-probabilities above 0 are taken for true",
        ANSWERS,
        "_ROUNDING = 1e-2",
        "_ROUNDING = 1e2",
        f"{WIRE}::test_answers_of_another_shape_are_refused_by_place",
    ),
]
