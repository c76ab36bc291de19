# SPDX-License-Identifier: Apache-2.0
"""The short form of the disk tier's faults, and what its judge calls lost, back and allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disk_faults.checker import Row
from disk_faults.journal import Ask, Step
from disk_faults.model import Model
from disk_faults.records import Records
from disk_faults.table import table
from hybridkv.tiers import TierStatus

ROOT = Path(__file__).resolve().parents[2]
RECORDS = Records(chains=4, blocks=3, most_bytes=100)


def steps(*asks: tuple[Ask, int, bool, TierStatus | None]) -> list[Step]:
    """One ask after another, each answered before the next."""
    return [
        Step(what, name, durable, 2 * at, status, 2 * at + 1 if status is not None else 1 << 62)
        for at, (what, name, durable, status) in enumerate(asks)
    ]


OK, LOST = TierStatus.OK, TierStatus.IO_ERROR
FLUSHED, FLUSH_FAILED = (Ask.FLUSH, 0, False, OK), (Ask.FLUSH, 0, False, LOST)


@pytest.mark.parametrize(
    ("asks", "allowed"),
    [
        ([], {False}),
        ([(Ask.PUT, 1, True, OK)], {True}),
        ([(Ask.PUT, 1, False, OK)], {True, False}),
        ([(Ask.PUT, 1, True, None)], {True, False}),
        ([(Ask.PUT, 1, False, OK), FLUSHED], {True}),
        ([FLUSHED, (Ask.PUT, 1, False, OK)], {True, False}),
        ([(Ask.PUT, 1, False, OK), FLUSH_FAILED, FLUSHED], {True, False}),
        ([(Ask.PUT, 1, True, OK), (Ask.REMOVE, 1, False, OK)], {False}),
        ([(Ask.PUT, 1, True, OK), (Ask.REMOVE, 1, False, None)], {True, False}),
        ([(Ask.PUT, 1, True, OK), (Ask.REMOVE, 1, False, OK), (Ask.PUT, 1, True, OK)], {True}),
        ([(Ask.PUT, 1, True, TierStatus.READ_ONLY)], {False}),
    ],
)
def test_what_may_be_found(asks: list[tuple[Ask, int, bool, TierStatus | None]], allowed: set[bool]) -> None:
    assert Model(RECORDS).allowed(steps(*asks))[1] == allowed


def test_what_goes_with_a_record() -> None:
    asks = [(Ask.PUT, name, True, OK) for name in (1, 2, 3, 4)] + [(Ask.REMOVE, 1, False, OK)]
    states = Model(RECORDS).allowed(steps(*asks))
    assert [states[name] for name in (1, 2, 3, 4)] == [{False}] * 4
    assert RECORDS.parent(13) == 9 and 13 in RECORDS.subtrees[7]  # the third chain grows out of the second


def test_only_what_is_old_may_make_room() -> None:
    old, new = (Ask.PUT, 1, True, OK), (Ask.PUT, 7, True, OK)
    on_old = (Ask.PUT, 3, True, OK)
    states = Model(RECORDS, kept_bytes=RECORDS.bytes_of(7) + RECORDS.bytes_of(3)).allowed(steps(old, new, on_old))
    assert states[1] == {True, False} and states[3] == {True, False}  # for what it stands on may go
    assert states[7] == {True}


def test_a_table_says_what_is_not_well() -> None:
    assert not Row("lost", rounds=1, lost=1).is_well
    assert not Row("nothing was done").is_well
    assert not Row("control", rounds=1, must_find=("lost",)).is_well
    assert Row("control", rounds=1, lost=1, must_find=("lost",)).is_well
    text = table([Row("a", 1, lost=1), Row("b", 1), Row("c", 1, lost=1, must_find=("lost",)), Row("d", skipped="why")])
    assert [text.count(words) for words in ("NOT WELL", "found, as it must be", "skipped: why")] == [2, 1, 1]


def test_short_form() -> None:
    """Kills, failing calls, damage and full file systems, each with its guard removed too; skips say why."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "tests.disk_faults", "--short"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all parts are well" in done.stdout
