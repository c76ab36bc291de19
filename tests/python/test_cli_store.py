# SPDX-License-Identifier: Apache-2.0
"""`hybridkv inspect` and `hybridkv verify` over real stores: what they say of each is what a tier finds there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hybridkv as hk
from hybridkv import cli, store_report
from hybridkv.tiers import GetItem, RecordKind, Store
from store_support import (
    PARTS_AT,
    REGION,
    SIZES,
    UNIT,
    call,
    content,
    fill,
    flip,
    make_newer,
    open_tier,
    statuses,
    where,
)
from tier_support import FORMAT, Asker, key, record


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed, and as a kill would have left it: without the footer of the region that was open."""
    path = tmp_path_factory.mktemp("made")
    with open_tier(path / "store") as tier:
        fill(Asker(tier))
        shutil.copytree(path / "store", path / "crashed")
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "store", tmp_path / "store"))


@pytest.fixture
def crashed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "crashed", tmp_path / "crashed"))


def test_inspect_counts_what_is_there_and_every_byte(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(store)
    code, document = call(capsys, "inspect", store)
    assert code == 0
    assert document["records"] == {
        "block": {"records": 3, "bytes": 9 * UNIT, "longest_tokens": 768},
        "boundary": {"records": 1, "bytes": 3 * UNIT, "longest_tokens": 512},
        "listing": {"records": 0, "bytes": 0, "longest_tokens": 0},
    }
    assert document["tips"] == {"records": 0, "bytes": 0, "longest_tokens": 0}
    assert document["dead"] == {
        "superseded": {"records": 0, "bytes": 0},
        "removed": {"records": 2, "bytes": 6 * UNIT},
        "orphan": {"records": 0, "bytes": 0},
        "tombstone": {"records": 1, "bytes": UNIT},
    }
    assert document["pinned"] == {"records": 1, "bytes": 3 * UNIT}
    assert [(row["format"], row["kind"], row["records"]) for row in document["formats"]] == [
        (FORMAT.hex(), "block", 3),
        (FORMAT.hex(), "boundary", 1),
    ]
    assert {row["identity"]: row["records"] for row in document["identities"]} == {(b"i" * 16).hex(): 3, "00" * 16: 1}
    sizes = dict(document["bytes"])
    assert sizes.pop("total") == sum(sizes.values()) == sum(file.stat().st_size for file in store.iterdir())
    assert document["recovery"]["records"] == 4
    assert document["recovery"]["removed"] == 2
    assert document["flaws"] == 0
    assert {region["state"] for region in document["regions"]} <= {"sealed", "empty"}
    for region in document["regions"]:
        inside = dict(region["bytes"])
        assert inside.pop("total") == sum(inside.values()) == (store / region["file"]).stat().st_size
    assert content(store) == before


def test_a_healthy_store_is_sound_and_stays_as_it_is(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(store)
    code, document = call(capsys, "verify", store)
    assert code == 0
    assert document["sound"]
    assert (document["records"], document["live"], document["damaged"]) == (7, 4, [])
    assert document["bytes_read"] == sum(file.stat().st_size for file in store.iterdir())
    assert content(store) == before
    assert cli.main(["verify", str(store)]) == 0
    assert capsys.readouterr().out.endswith("sound\n")


# Offset in the record of block 2, and what is said of it.
IN_RECORD = {
    "magic": (0, ("envelope", "magic", None), False),
    "epoch": (8, ("envelope", "header", None), False),
    "tokens": (80, ("envelope", "header", None), False),
    "part table": (128 + 32 + 12, ("envelope", "header", None), False),
    "fill of the envelope": (UNIT - 1, ("fill", "content", None), True),
    "first part": (UNIT, ("part", "content", 0), False),
    "second part": (UNIT + PARTS_AT[1] + 4095, ("part", "content", 1), False),
    "third part": (UNIT + PARTS_AT[2] + 99, ("part", "content", 2), False),
    "fill of the payload": (3 * UNIT - 1, ("fill", "content", None), True),
}


@pytest.mark.parametrize("what", IN_RECORD)
def test_a_flipped_byte_of_a_record_is_found_and_what_stands_on_it_told(
    what: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    within, said, readable = IN_RECORD[what]
    file, offset = where(store, 2)
    flip(file, offset + within)
    code, document = call(capsys, "verify", store)
    assert code == 1
    assert not document["sound"]
    (found,) = document["damaged"]
    assert (found["file"], found["offset"], found["digest"]) == (file.name, offset, key(2).digest.hex())
    (flaw,) = found["flaws"]
    assert (flaw["at"], flaw["damage"], flaw["part"]) == said
    assert offset <= flaw["offset"] <= offset + within
    assert found["readable"] is readable
    assert found["tokens"] == (None if said[0] == "envelope" else 512)
    assert found["takes_along"] == 2  # block 3, and the boundary
    assert (document["unreadable"], document["lost_with_them"]) == ((0, 0) if readable else (1, 2))
    assert document["other_flaws"] == []
    assert statuses(store)[2, "block"] == ("OK" if readable else "CORRUPT")


IN_REGION = {
    "header": (8, ("header", "header")),
    "fill of the header": (1000, ("fill", "content")),
    "fill of the footer": (REGION - UNIT, ("fill", "content")),
    "footer's list": (REGION - 65, ("footer", "header")),
    "trailer": (REGION - 1, ("footer", "header")),
}


@pytest.mark.parametrize("what", IN_REGION)
def test_a_flipped_byte_of_a_header_or_footer_is_found_and_takes_nothing(
    what: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offset, said = IN_REGION[what]
    file, _ = where(store, 2)
    flip(file, offset)
    code, document = call(capsys, "verify", store)
    assert code == 1
    assert [(flaw["file"], flaw["at"], flaw["damage"]) for flaw in document["other_flaws"]] == [(file.name, *said)]
    assert document["damaged"] == []
    assert document["live"] == 4
    assert statuses(store)[2, "block"] == "OK"


def test_a_flipped_byte_where_nothing_was_written_is_none(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(where(store, 2)[0], REGION - 2 * UNIT)
    assert call(capsys, "verify", store)[0] == 0


def test_a_flipped_byte_of_a_superblock(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / "superblock", 100)
    code, document = call(capsys, "verify", store)
    assert code == 1
    assert [(flaw["file"], flaw["at"]) for flaw in document["other_flaws"]] == [("superblock", "fill")]
    flip(store / "superblock", 9)
    code, said = call(capsys, "verify", store)
    assert code == 2
    assert "path: expected a store, got a directory whose superblock is damaged" in said


def test_what_is_damaged_and_removed_already_is_listed_and_does_no_harm(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, offset = where(store, 4)
    flip(file, offset + UNIT)
    code, document = call(capsys, "verify", store)
    assert code == 0
    assert [(found["standing"], found["takes_along"]) for found in document["damaged"]] == [("removed", 0)]
    cli.main(["verify", str(store)])
    assert f"damaged, and removed already: {file.name} at {offset:,}" in capsys.readouterr().out


def test_quarantine_removes_the_damaged_and_what_stands_on_it(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in ((2, RecordKind.BLOCK), (2, RecordKind.BOUNDARY)):
        file, offset = where(store, name, kind)
        flip(file, offset + UNIT)
    file, offset = where(store, 1)
    flip(file, offset + UNIT - 1)  # a fill: no reason to remove it
    code, document = call(capsys, "verify", store)
    assert (code, document["quarantined"]) == (1, None)
    assert (document["unreadable"], document["lost_with_them"]) == (2, 1)  # the boundary stands on the block
    code, document = call(capsys, "verify", store, "--quarantine")
    assert code == 1  # it was damaged
    missed = {"MISS": 1, "OK": 1}  # the boundary went with the block
    assert document["quarantined"] == {"asked": 2, "statuses": missed, "removed": 3, "rewritten": 0, "reclaimed": 0}
    flip(file, offset + UNIT - 1)
    code, document = call(capsys, "verify", store, "--quarantine")
    assert code == 0
    assert document["quarantined"] == {"asked": 0, "statuses": {}, "removed": 0, "rewritten": 0, "reclaimed": 0}
    found = statuses(store)
    assert {name for name, status in found.items() if status == "OK"} == {(1, "block")}
    assert set(found.values()) == {"OK", "MISS"}


def test_quarantine_says_where_it_could_not(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, offset = where(store, 2)
    flip(file, offset + UNIT)
    monkeypatch.setattr(hk.DiskTier, "remove", lambda tier, keys: tier.get([GetItem(k, ()) for k in keys], timeout=0))
    assert cli.main(["verify", str(store), "--quarantine"]) == 1
    printed = capsys.readouterr()
    assert "quarantine: 1 TIMEOUT; 0 records removed" in printed.out
    assert "not every damaged record could be removed" in printed.err


def test_a_truncated_region(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, offset = where(store, 2)
    os.truncate(file, offset + 100)
    code, document = call(capsys, "verify", store)
    assert code == 1
    assert ("file", "short", offset + 100) in [(f["at"], f["damage"], f["offset"]) for f in document["other_flaws"]]
    code, document = call(capsys, "inspect", store)
    assert code == 0
    (region,) = [region for region in document["regions"] if region["file"] == file.name]
    assert region["state"] == "open"
    sizes = dict(region["bytes"])
    assert sizes.pop("total") == sum(sizes.values()) == offset + 100
    assert statuses(store)[2, "block"] == "MISS"


def test_a_region_that_ends_in_its_header(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = where(store, 2)
    os.truncate(file, 1000)
    _, document = call(capsys, "inspect", store)
    (region,) = [region for region in document["regions"] if region["file"] == file.name]
    assert {name: size for name, size in region["bytes"].items() if size} == {"total": 1000, "headers": 1000}
    assert call(capsys, "verify", store)[0] == 1


def test_a_record_whose_fill_is_cut_off_is_not_counted_on(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, offset = where(store, 2)
    os.truncate(file, offset + UNIT + sum(SIZES) + 10)
    code, document = call(capsys, "verify", store)
    assert code == 1
    (found,) = document["damaged"]
    assert (found["standing"], found["readable"]) == ("live", False)
    assert [(flaw["at"], flaw["damage"]) for flaw in found["flaws"]] == [("fill", "short")]
    _, document = call(capsys, "inspect", store)
    (region,) = [region for region in document["regions"] if region["file"] == file.name]
    sizes = dict(region["bytes"])
    assert sizes.pop("total") == sum(sizes.values()) == offset + UNIT + sum(SIZES) + 10
    assert sizes["free"] == 0
    # An opening seals the region, and so makes the file whole: whoever reads before finds too few bytes.
    assert statuses(store)[2, "block"] in ("CORRUPT", "OK")


def test_files_that_are_not_the_stores(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    with open_tier(other) as tier:
        Asker(tier).put(record(9))
    shutil.copy(other / "000000.region", store / "000007.region")
    (store / "notes.txt").write_text("hello")
    (store / "folder").mkdir()
    (store / "link").symlink_to("notes.txt")
    (store / "superblock.new").write_bytes(b"x" * 10)
    code, document = call(capsys, "inspect", store)
    assert code == 0
    states = {region["file"]: region["state"] for region in document["regions"]}
    assert states["000007.region"] == "foreign"
    assert {file["name"]: (file["bytes"], file["error"]) for file in document["other_files"]} == {
        "notes.txt": (5, None),
        "folder": (0, "EINVAL"),
        "link": (0, "ELOOP"),
        "superblock.new": (10, None),
    }
    assert document["bytes"]["other_files"] == 15
    assert document["recovery"]["unknown_files"] == 3
    assert document["records"]["block"]["records"] == 3
    code, document = call(capsys, "verify", store)
    assert code == 1
    assert [(f["file"], f["at"], f["damage"]) for f in document["other_flaws"]] == [
        ("000007.region", "header", "foreign")
    ]
    assert (store / "superblock.new").exists()


def test_a_region_without_header_and_footer_is_damaged(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = where(store, 2)
    flip(file, 8)
    flip(file, REGION - 1)
    code, document = call(capsys, "inspect", store)
    states = {region["file"]: region["state"] for region in document["regions"]}
    assert (code, states[file.name]) == (0, "damaged")
    code, document = call(capsys, "verify", store)
    assert code == 1
    assert document["live"] == 0  # block 1 was there, and everything stands on it
    assert {f["at"] for f in document["other_flaws"]} == {"header", "footer"}


def test_what_a_crash_leaves_is_told_and_is_no_damage(crashed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = call(capsys, "verify", crashed)
    assert (code, document["live"]) == (0, 4)
    with Store(crashed) as opened:
        last = max((region for region in opened.regions() if region.records), key=lambda region: region.epoch)
    assert last.state == "open"
    (boundary,) = [found for found in last.records if found.standing == "live"]
    assert boundary.key == key(2, RecordKind.BOUNDARY)
    flip(crashed / last.file, boundary.offset + UNIT)
    code, document = call(capsys, "verify", crashed)
    assert (code, document["live"]) == (0, 3)
    assert document["leftovers"] == {"torn": 1, "stale": 0, "torn_bytes": 3 * UNIT}
    code, inspected = call(capsys, "inspect", crashed)
    assert inspected["bytes"]["torn"] == 3 * UNIT
    assert inspected["recovery"]["torn"] == 1
    assert statuses(crashed)[2, "boundary"] == "MISS"
    code, document = call(capsys, "verify", crashed)  # that opening sealed it
    assert (code, document["leftovers"]["torn"]) == (0, 0)


HERE = "already in this process, by another DiskTier or Store"
OPENER = re.compile(rf": open ({HERE}|in another process, or by .* of this one)$", re.MULTILINE)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_store_that_is_open_elsewhere_is_refused(
    command: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_tier(store):
        code, said = call(capsys, command, store)
        assert code == 2
        assert said.startswith(f"hybridkv {command}: ")
        assert "path: expected a store that no other has open, got " in said
        assert f"{store}: open " in said and OPENER.search(said)
    with Store(store), pytest.raises(hk.TierError, match="no other has open") as caught:
        open_tier(store)
    assert caught.value.field == "path" and OPENER.search(str(caught.value))
    with open_tier(store):  # where the system tells, the process is named
        other = subprocess.run(
            [sys.executable, "-m", "hybridkv", command, str(store)], capture_output=True, text=True, check=False
        )
    assert other.returncode == 2
    named = f"process {os.getpid()}, or in one that it forked"
    assert re.search(rf": open in ({named}|another process, or by .* of this one)$", other.stderr)
    assert call(capsys, command, store)[0] == 0


NO_STORES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "absent": (lambda store: store / "nowhere", "expected the directory of a store, got "),
    "a file": (lambda store: store / "superblock", "superblock: no directory"),
    "empty": (lambda store: _made(store.parent / "empty"), "empty: a directory without a superblock"),
    "newer": (make_newer, "expected a store of layout version 1 or older, got version 2"),
}


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("what", NO_STORES)
def test_what_is_no_store_is_refused_and_none_is_made(
    what: str, command: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, reason = NO_STORES[what]
    path = make(store)
    there = path.exists()
    code, said = call(capsys, command, path)
    assert code == 2
    assert said.startswith(f"hybridkv {command}: path: ")
    assert reason in said
    assert path.exists() == there
    assert what != "empty" or not list(path.iterdir())


def test_inspect_lists_records_and_parts(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = call(capsys, "inspect", store, "--records")
    assert sorted(found["standing"] for found in document["listed"]) == ["live"] * 4 + ["removed"] * 2 + ["tombstone"]
    assert "part_table" not in document["listed"][0]
    _, document = call(capsys, "inspect", store, "--key", key(2).digest.hex())
    assert [found["kind"] for found in document["listed"]] == ["block", "boundary"]
    found = document["listed"][0]
    assert (found["tokens"], found["flags"], found["parts"], found["payload_bytes"]) == (512, 2, 3, sum(SIZES))
    assert found["parent"] == key(1).digest.hex()
    assert [(part["group"], part["layer"], part["block"], part["bytes"]) for part in found["part_table"]] == [
        (group, 1, 1, size) for group, size in enumerate(SIZES)
    ]
    assert [part["offset"] for part in found["part_table"]] == list(PARTS_AT)
    assert cli.main(["inspect", str(store), "--key", key(2).digest.hex()]) == 0
    printed = capsys.readouterr().out
    assert f"{key(2).digest.hex()} block, live, 512 tokens" in printed
    assert "group 1 layer 1 block 1 rows 0: 4,096 bytes at 64, CRC " in printed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("xyz", "key: expected 32 hexadecimal digits"),
        ("00ff", "key: expected 32 hexadecimal digits"),
        ("ee" * 16, "key: expected the digest of a record of the store"),
    ],
)
def test_keys_that_are_none(text: str, reason: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = call(capsys, "inspect", store, "--key", text)
    assert code == 2
    assert reason in said


def test_the_text_tells_what_the_object_does(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, offset = where(store, 2)
    flip(file, offset + UNIT + PARTS_AT[1])
    flip(file, 1000)
    assert cli.main(["inspect", str(store)]) == 0
    printed = capsys.readouterr().out
    assert "opening it finds 4 records; 0 regions to scan" in printed
    assert f"{file.name:<16}" in printed
    assert "fill at 1,000: content" in printed
    assert cli.main(["verify", str(store), "--quarantine"]) == 1
    printed = capsys.readouterr().out
    assert f"DAMAGED {file.name} at 1,000: fill: content" in printed
    assert f"DAMAGED {file.name} at {offset:,}: block {key(2).digest.hex()}, 512 tokens" in printed
    assert f"  part 1 at {offset + UNIT + PARTS_AT[1]:,}: content" in printed
    assert "1 record cannot be read any more; 2 that stand on such go with them" in printed
    assert "quarantine: 1 OK; 3 records removed, with what stood on them" in printed
    assert printed.endswith("NOT SOUND\n")


HEAD = {"schema", "path", "store", "layout_version", "region_bytes"}
RECORD = {
    *("file", "offset", "digest", "format", "kind", "is", "standing", "tokens", "parent", "identity", "bytes"),
    *("payload_bytes", "parts", "flags", "pinned", "readable", "takes_along", "flaws"),
}
FLAW = {"file", "at", "damage", "offset", "part"}
BYTES = {"live", "dead", "tombstones", "torn", "free", "headers", "footers", "total"}


def test_the_schema_is_stable(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert store_report.SCHEMA == 2
    file, offset = where(store, 2)
    flip(file, offset + UNIT)
    flip(file, 1000)
    _, document = call(capsys, "inspect", store, "--key", key(2).digest.hex())
    assert set(document) == HEAD | {
        *("index_bytes", "records", "tips", "dead", "pinned", "formats", "identities", "regions", "bytes", "recovery"),
        *("other_files", "writers", "writers_error", "flaws", "listed"),
    }
    assert set(document["bytes"]) == BYTES | {"superblock", "writers", "other_files"}
    region = document["regions"][0]
    assert set(region) == {
        *("file", "epoch", "state", "records", "live_records", "torn", "bytes", "flaws", "record_flaws"),
    }
    assert set(region["bytes"]) == BYTES
    assert set(document["listed"][0]) == RECORD | {"part_table"}
    assert set(document["listed"][0]["part_table"][0]) == {"group", "layer", "block", "rows", "offset", "bytes", "crc"}
    _, document = call(capsys, "verify", store, "--quarantine")
    assert set(document) == HEAD | {
        *("regions", "sound", "records", "live", "damaged", "unreadable", "lost_with_them", "other_flaws"),
        *("leftovers", "bytes_read", "seconds", "bytes_per_second", "writers_error", "quarantined"),
    }
    assert set(document["damaged"][0]) == RECORD
    assert set(document["damaged"][0]["flaws"][0]) == set(document["other_flaws"][0]) == FLAW
    assert set(document["quarantined"]) == {"asked", "statuses", "removed", "rewritten", "reclaimed"}


def test_a_step_is_a_region(store: Path) -> None:
    steps: list[None] = []
    with Store(store) as opened:
        store_report.verify(opened, lambda: steps.append(None))
        assert len(steps) == len(opened) > 1
    with pytest.raises(hk.Closed):
        list(opened.regions())
    opened.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside the threads of its reads, which it is about
def test_a_fork_leaves_the_store_to_the_parent(store: Path) -> None:
    with Store(store, engine="threads") as opened:
        child = os.fork()
        if child == 0:
            try:
                len(opened)
            except hk.Closed:
                opened.close()
                del opened
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert sum(len(region.records) for region in opened.regions(every_byte=True)) == 7
