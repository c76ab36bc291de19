# SPDX-License-Identifier: Apache-2.0
"""The probe tells false hits of every kind from a correct service, or says that it cannot; on a toy of every state."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

from hybridkv.binomial import chance
from hybridkv.errors import ArgumentError
from hybridkv.probe import EXIT_STATUS, ProbeOptions, ProbeVerdict, probe
from hybridkv.probe.answers import Answer
from hybridkv.probe.compare import change, difference
from hybridkv.probe.control import FLOOR, UNCHUNKED_FLOOR, Control
from hybridkv.probe.power import rate_seen
from hybridkv.probe.prompts import Prompts
from probe_models import TOY_FAULTS, HashHit, Ids, Served, Toy
from probe_server import Service
from probe_support import SHORT, called, probed, toy

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"
RUNS = 200 if SOAK else 5
CONSISTENT, FALSE_HITS = ProbeVerdict.CONSISTENT, ProbeVerdict.FALSE_HITS
NO_REUSE, CANNOT_TELL = ProbeVerdict.NO_REUSE, ProbeVerdict.CANNOT_TELL


# -- no false alarm ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_correct_service_is_consistent(seed: int) -> None:
    noise = random.Random(seed).choice([0.0, 0.001, 0.01, 0.05])
    engine = toy(seed=seed, noise=noise, block=random.Random(seed).choice([1, 16, 32]))
    report = probed(engine, service={"salted": seed % 3 != 0, "echo": ("computed", "reused")[seed % 2]}, controls=8)
    assert report.verdict is CONSISTENT, report.as_text()
    assert len(report.compared) >= 4
    assert engine.hits > 4 and report.control.tolerance >= 2 * noise


def test_what_rounding_does_where_a_prompt_is_cut_is_noise() -> None:
    # Every run of tokens starts from a rounded state: the same prompt cut elsewhere gives another answer.
    report = probed(toy(rounding=0.003), controls=12)
    assert report.verdict is CONSISTENT and report.control.noise > 2e-3, report.as_text()


# -- false hits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "salted"),
    [(name, True) for name in TOY_FAULTS]
    + [(name, False) for name in (TOY_FAULTS if SOAK else list(TOY_FAULTS)[1:5:3])],
)
def test_every_kind_of_false_hit_is_seen(name: str, salted: bool) -> None:
    block = 1 if name.startswith("tail") else 16  # a tail that is aligned has no rows to lose
    engine = toy(TOY_FAULTS[name], block=block)
    report = probed(engine, service={"salted": salted, "echo": "computed" if salted else "reused"})
    assert report.verdict is FALSE_HITS, report.as_text()
    assert report.isolation.way == ("cache_salt" if salted else None)
    assert report.smallest is not None and report.smallest.apart is not None
    assert report.smallest.apart.largest > report.control.tolerance
    assert max(report.confirmed.values()) >= 3  # of 4: the fault is always there
    assert engine.false_hits > 0


def test_a_window_kept_for_ends_alone_is_seen_inside_of_requests() -> None:
    report = probed(toy(TOY_FAULTS["window of the end of the request"]))
    wrong = {o.trial.design for o in report.compared if o.apart and o.apart.largest > report.control.tolerance}
    assert {"branch", "continued"} <= wrong


def test_a_window_fades_and_a_tail_stays() -> None:
    faded = probed(toy(TOY_FAULTS["window of another request"]))
    behind = {o.trial.suffix: o.apart for o in faded.compared if o.trial.design == "branch" and o.trial.shared == 32}
    assert behind[1] and behind[24]
    assert behind[1].near > 10 * max(behind[24].largest, 1e-12)  # 24 tokens are more than the window of 16
    lost = probed(toy(TOY_FAULTS["tail dropped"], block=1))
    behind = {o.trial.suffix: o.apart for o in lost.compared if o.trial.design == "branch" and o.trial.shared == 33}
    assert max(apart.far for apart in behind.values() if apart) > lost.control.tolerance


def test_the_smallest_prompt_reproduces_the_false_hit() -> None:
    engine = toy(TOY_FAULTS["window of four tokens ago"])
    with called(Service(engine)) as url:
        report = probe(url, ProbeOptions(**{**SHORT, "windows": (128,)}))
    assert report.smallest is not None
    assert report.smallest.total <= 49  # found at 128 and 144 as well
    requests = report.smallest.requests
    again = toy(TOY_FAULTS["window of four tokens ago"])
    served: list[Served] = []
    for body in requests:
        served.append(again.serve(tuple(body["prompt"]), body["max_tokens"], str(body.get("cache_salt")), True))
    assert served[-2].cached or served[-1].cached
    ours, theirs = report.smallest.tops
    assert max(abs(ours[t] - theirs[t]) for t in ours.keys() & theirs.keys()) > 2e-3 or ours.keys() != theirs.keys()


def test_false_hits_that_come_now_and_then_are_seen_at_the_rate_that_is_stated() -> None:
    quiet = probed(samples=2, windows=(16, 64))
    rate = quiet.power()["rate_for_verdict"]
    assert rate is not None and rate < 0.25
    runs = 200 if SOAK else 1
    fault = TOY_FAULTS["history of another request"]  # changes every answer behind it
    seen = [probed(toy(fault, rate=rate, seed=n), samples=2, windows=(16, 64)).verdict for n in range(runs)]
    assert seen.count(FALSE_HITS) >= 0.9 * runs - 1


def test_false_hits_of_a_service_that_counts_no_reuse_are_seen() -> None:
    for told in ({"cached": False}, {"told": lambda cached, prompt: 0}):
        report = probed(toy(TOY_FAULTS["window zero"]), service=told)
        assert report.verdict is FALSE_HITS, report.as_text()


# -- who shares with whom ----------------------------------------------------------------------------


@pytest.mark.parametrize("salted", [True, False])
def test_a_key_without_the_first_token_is_a_false_hit(salted: bool) -> None:
    engine = toy(key=lambda ids, salt: (ids[1:], salt))
    report = probed(engine, service={"salted": salted, "echo": "computed" if salted else "reused"}, samples=2)
    assert report.verdict is FALSE_HITS, report.as_text()
    assert any(o.impossible for o in report.observations if o.trial.design == "twin")


class _TwoModels:
    """Two models; a broken manager knows prefixes of one by the keys of the other."""

    def __init__(self, *, apart: bool) -> None:
        self.apart, self.models = apart, {"": Toy(0), "lora": Toy(0)}
        self.models["lora"].near = Toy(1).near
        self.engine = toy(key=lambda ids, salt: (ids, salt if apart else salt.replace("lora", "")))
        self.engine.backend = self

    def serve(self, ids: Ids, most: int, salt: str, echo: bool = False) -> Served:
        self.now = "lora" if "lora" in salt else ""
        return self.engine.serve(ids, most, salt, echo)

    def scratch(self) -> Any:
        return self.models[self.now].scratch()

    def restored(self, ids: Ids, tokens: int, chain: Ids, fault: Any) -> Any:
        state = self.models[""].state(ids[:tokens])  # whoever wrote it
        session = self.models[self.now].scratch()
        session.state = state if not self.apart else self.models[self.now].state(ids[:tokens])
        return session


@pytest.mark.parametrize("apart", [True, False])
def test_prefixes_of_another_adapter_are_told(apart: bool) -> None:
    changed = Toy(0)
    engine = _TwoModels(apart=apart)
    engine.models["lora"].history = changed.history * 1.5  # a state of another content
    report = probed(engine, service={"adapters": {"tiny": "", "lora": "lora"}}, other_models=("lora", "none"))
    assert report.identity.models == {"lora": "apart" if apart else "shared", "none": "refused"}
    assert report.verdict is (CONSISTENT if apart else FALSE_HITS), report.as_text()
    assert not report.failures


def test_a_salt_that_is_ignored_or_refused_is_no_lane() -> None:
    ignored = probed(service={"salted": False})
    assert ignored.isolation.tried["cache_salt"] == "shared" and ignored.isolation.way == "echo"
    refused = probed(service={"refuses": {"cache_salt", "echo", "user"}})
    assert refused.isolation.tried == {
        "reference": "not tried", "cache_salt": "refused", "other key": "not tried", "echo": "refused",
    }  # fmt: skip
    assert refused.verdict is CONSISTENT and refused.identity.user == "refused"
    assert any("branch" in line for line in refused.not_covered())


def test_another_tenants_key_and_a_reference_are_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_KEY", "one")
    monkeypatch.setenv("OTHER_KEY", "two")
    plain: dict[str, Any] = {"salted": False, "echo": "reused"}
    fault = TOY_FAULTS["window of the end of the request"]
    report = probed(toy(fault), service=plain, key_env="PROBE_KEY", other_key_env="OTHER_KEY", plain_key=True)
    assert report.isolation.way == "other key" and report.verdict is FALSE_HITS
    with called(Service(toy(reuses=False), **plain)) as url:
        report = probed(toy(fault), service=plain, reference=url)
        assert report.isolation.way == "reference" and report.verdict is FALSE_HITS
        report = probed(toy(), service=plain, reference=url)
    assert report.verdict is CONSISTENT


def test_log_probabilities_of_suffixes_are_compared_where_they_come_with_reuse() -> None:
    report = probed(service={"echo": "reused"})
    assert report.isolation.suffix
    long = next(o for o in report.compared if o.trial.design == "branch" and o.trial.suffix == 24)
    assert long.apart is not None and long.apart.by_position[0][0] == 1  # right behind the boundary
    assert len(long.apart.by_position) > 24
    wrong = probed(toy(TOY_FAULTS["window of another request"]), service={"echo": "reused"})
    long = next(o for o in wrong.compared if o.trial.design == "branch" and o.trial.suffix == 24)
    assert long.apart is not None and long.apart.near > 100 * long.apart.far


# -- what cannot be told -----------------------------------------------------------------------------


def test_a_service_that_caches_nothing() -> None:
    report = probed(toy(reuses=False))
    assert (report.verdict, report.exit_status) == (NO_REUSE, 3)
    assert report.reuse is not None and report.reuse.longest_tried == 256


def test_a_service_without_log_probabilities() -> None:
    report = probed(service={"logprobs": False})
    assert report.verdict is CANNOT_TELL and "no log-probabilities" in report.reason
    assert report.reuse is not None and report.reuse.least == 32  # what can be known is


def test_a_service_that_says_nothing_of_reuse() -> None:
    report = probed(service={"cached": False})
    assert report.verdict is CANNOT_TELL and "cached_tokens" in report.reason


def test_noise_that_hides_faults() -> None:
    for fault in (None, TOY_FAULTS["window zero"]):
        report = probed(toy(fault, noise=3.0))
        assert report.verdict is CANNOT_TELL and "noise" in report.reason, report.as_text()


@pytest.mark.parametrize("told", [lambda cached, prompt: prompt, lambda cached, prompt: min(prompt, cached + 7)])
def test_a_service_that_lies_about_cached_tokens(told: Any) -> None:
    report = probed(service={"told": told})
    assert report.verdict is CANNOT_TELL and "cannot be true" in report.reason, report.as_text()


def test_one_hiccup_is_no_false_hit() -> None:
    class Hiccup(HashHit):
        count = 0

        def serve(self, ids: Ids, most: int, salt: str, echo: bool = False) -> Served:
            self.count += 1
            made = super().serve(ids, most, salt, echo)
            if self.count == 50:
                made.rows += toy().serve(tuple(range(40)), most, "").rows
            return made

    report = probed(Hiccup(Toy()))
    assert report.verdict is CANNOT_TELL and "never again" in report.reason, report.as_text()


# -- forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("wrong", [False, True])
def test_words_and_chats(form: str, wrong: bool) -> None:
    engine = toy(TOY_FAULTS["window of another request"] if wrong else None)
    report = probed(engine, service={"forms": {form}, "refuses": {"ignore_eos"}})
    assert report.form == form
    assert report.verdict is (FALSE_HITS if wrong else CONSISTENT), report.as_text()
    if form == "chat":
        assert {"repeat", "branch", "turn"} <= {o.trial.design for o in report.compared}


def test_a_chat_that_wants_the_newer_name_of_the_limit() -> None:
    report = probed(service={"forms": {"chat"}, "refuses": {"max_tokens"}})
    assert report.verdict is CONSISTENT


def test_words_without_ids_of_tokens_leave_out_what_needs_them() -> None:
    report = probed(service={"names": False})
    assert report.verdict is CONSISTENT
    assert not report.control.chunked and report.control.tolerance == 0.25
    assert any(line.startswith("continued") for line in report.not_covered())


# -- lanes and tolerances ----------------------------------------------------------------------------


class _Collapsing(HashHit):
    """Keeps salts apart for so many requests."""

    apart, count = 0, 0

    def serve(self, ids: Ids, most: int, salt: str, echo: bool = False) -> Served:
        self.count += 1
        return super().serve(ids, most, salt if self.count <= self.apart else "one for all", echo)


def test_a_lane_that_is_apart_no_longer_judges_nothing() -> None:
    engine = _Collapsing(Toy(), fault=TOY_FAULTS["window of the end of the request"])
    engine.apart = 27  # until the control is measured
    report = probed(engine)
    assert report.isolation.way == "cache_salt" and report.control.same
    branches = [o for o in report.observations if o.trial.design == "branch"]
    assert branches and all(o.apart is None for o in branches)


def test_what_was_reused_is_no_control() -> None:
    engine = _Collapsing(Toy(), fault=TOY_FAULTS["window of the end of the request"])
    engine.apart = 19  # until a lane is found
    report = probed(engine)
    assert report.isolation.way == "cache_salt" and report.control.discarded >= 2
    assert not report.control.same and report.verdict is not CONSISTENT


def test_a_reference_that_is_another_model_is_noise() -> None:
    with called(Service(toy(seed=9, reuses=False), salted=False)) as url:
        report = probed(service={"salted": False}, reference=url)
    assert report.verdict is CANNOT_TELL and "noise" in report.reason


def test_the_tolerance_stands_above_the_noise_of_both_kinds() -> None:
    assert Control(same=[0.1], chunked=[0.2]).tolerance == pytest.approx(0.8)
    assert Control(same=[0.3], chunked=[0.2]).tolerance == pytest.approx(1.2)
    assert Control(same=[0.0], chunked=[1e-6]).tolerance == FLOOR
    assert Control(same=[0.0]).tolerance == UNCHUNKED_FLOOR  # what cutting a prompt does is not known
    assert Control(chunked=[0.1], changed=[0.1, 0.5]).seen_share == 0.5


def test_prompts_are_fresh() -> None:
    prompts = Prompts(1, (0, 256))
    firsts = [prompts.fresh(8).pieces[0] for _ in range(256)]
    assert len(set(firsts)) > 250  # before ids run out
    one = prompts.fresh(20)
    assert len(one.pieces) == 20 and prompts.refreshed(one).pieces[1:] == one.pieces[1:]
    assert prompts.refreshed(one).pieces[0] != one.pieces[0]
    assert all(prompts.pieces(1, other_than=(7,)) != (7,) for _ in range(2000))
    assert Prompts(1, (0, 256)).fresh(8) == Prompts(1, (0, 256)).fresh(8) != Prompts(2, (0, 256)).fresh(8)


# -- arithmetic --------------------------------------------------------------------------------------


def test_the_rate_that_is_seen() -> None:
    assert rate_seen(0) is None and rate_seen(1, wanted=2) is None
    assert rate_seen(59) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert rate_seen(59, seen_share=0.5) == pytest.approx(2 * (1 - 0.05 ** (1 / 59)))
    rate = rate_seen(100, wanted=2)
    assert rate is not None and chance(rate, 100, 2) == pytest.approx(0.95)
    draw = random.Random(1)
    often = sum(sum(draw.random() < rate for _ in range(100)) >= 2 for _ in range(2000))
    assert 0.93 < often / 2000 < 0.97
    assert rate_seen(3, seen_share=0.3) is None  # 1 - 0.7**3 is less than 0.95


def test_differences_by_position() -> None:
    assert change({"a": -1.0, "b": -2.0}, {"a": -1.5, "b": -2.0}, 2) == 0.5
    assert change({"a": -1.0, "b": -2.0}, {"a": -1.0, "c": -2.5}, 2) == 0.5  # b is at most as likely as c
    # The prompt's own token z was not asked for: b may be as likely as c in the second list.
    assert change({"a": -1.0, "b": -2.0, "z": -9.0}, {"a": -1.0, "c": -2.0, "z": -9.0}, 2) == 0.0
    same, other = ({"x": -0.1, "y": -3.0}, {"x": -0.4, "y": -2.0})
    one = Answer(tokens=("x", "y"), top=(same, same), text="")
    two = Answer(tokens=("x", "x"), top=(same, other), text="")
    apart = difference(one, two, total=10, boundary=8)
    assert apart.by_position == ((2, 0.0), (3, 1.0)) and apart.first_other_token == 1
    assert (apart.near, apart.far, apart.largest) == (0.0, 1.0, 1.0)
    long = Answer(tokens=("x", "x", "z"), top=(same, same, same), text="")
    assert difference(long, two, total=10, boundary=8).first_other_token is None
    assert len(difference(long, two, total=10, boundary=8).by_position) == 2
    parted = Answer(tokens=("x", "y", "z"), top=(same, same, same), text="")
    assert len(difference(long, parted, total=10, boundary=8).by_position) == 2  # z stands behind another token
    assert difference(two, long, total=11, boundary=8, skip=1).first_other_token == 1


def test_reports_are_data_and_text() -> None:
    report = probed(toy(TOY_FAULTS["window zero"]))
    document = json.loads(json.dumps(report.as_json()))
    assert document["kind"] == "probe" and document["verdict"] == "false hits seen" and document["exit_status"] == 1
    assert document["requests"] >= len(document["trials"]) and document["smallest"]["requests"]
    assert "smallest" in report.as_text() and "noise" in report.as_text()
    assert sorted(EXIT_STATUS.values()) == [0, 1, 3, 4] and set(EXIT_STATUS) == set(ProbeVerdict)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("form", "xml"), ("answer_tokens", 0), ("top", 21), ("samples", True), ("windows", (0,)), ("lengths", (5000,)),
        ("deadline_s", 0.0), ("timeout_s", float("nan")), ("vocabulary", (5, 20)), ("retries", -1), ("controls", 1),
    ],
)  # fmt: skip
def test_options_that_are_not_legal_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=field):
        ProbeOptions(**{field: value})
