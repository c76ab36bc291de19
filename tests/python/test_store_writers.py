# SPDX-License-Identifier: Apache-2.0
"""A store on disk knows who wrote into it: after a restart a look-up that finds nothing says by which field."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
import hybridkv.tiers.writers_file as writers_file
from hybridkv.cli import main
from hybridkv.formats import Manifest
from hybridkv.formats.manifest import MOST_BYTES
from hybridkv.formats.manifest_file import MOST_FILE_BYTES, MOST_MANIFESTS
from hybridkv.tiers import KeptWriters, Store
from tier_sides import REGION, Side, in_another_process, opened, version

WRITE = "with Side({}, tier{}) as side: side.write(1)"
LOOK = (
    "with Side({}, tier) as side:\n    verdict = side.look()\n"
    "    print(verdict.outcome.name, verdict.usable_tokens, dict(side.skew))"
)


def stored(path: Path, *specs: hk.CacheSpec) -> Path:
    """A store into which those wrote, one after another."""
    for number, spec in enumerate(specs):
        with opened(path) as tier, Side(spec, tier, first=64 * number) as side:
            side.write(1)
    return path


def looked(path: Path, spec: hk.CacheSpec, **options: Any) -> tuple[str, dict[str, int]]:
    with opened(path) as tier, Side(spec, tier, **options) as side:
        return side.look().outcome.name, side.skew


@pytest.mark.parametrize(
    ("writer", "reader", "told"),
    [
        ("version(1.0)", "version(2.0)", "FALSE_HIT 0 {\"groups['kv'].format.theta\": 1}"),
        ("version(weights='r1')", "version(weights='r2')", "MISS 0 {'identity.weights': 1}"),
        (
            "version(weights='r1', rope={'theta': 1})",
            "version(weights='r2', adapter='a')",
            "MISS 0 {'identity.adapter': 1, 'identity.rope': 1, 'identity.weights': 1}",
        ),
        ("version(unit=16)", "version(unit=32)", "MISS 0 {'unit_tokens': 1}"),
    ],
)
def test_another_process_names_the_field(tmp_path: Path, writer: str, reader: str, told: str) -> None:
    """A new build on an old store: no false hit, and the first look-up says because of what."""
    in_another_process(tmp_path / "s", WRITE.format(writer, ""))
    assert in_another_process(tmp_path / "s", LOOK.format(reader)).strip() == told
    found = in_another_process(tmp_path / "s", LOOK.format(writer)).strip()
    assert found == "FALSE_HIT 0 {}", "the writer's own records are there: a restore, and no skew"


def test_another_process_names_the_key_profile(tmp_path: Path) -> None:
    """A version that defines keys otherwise: its keys are others, as first=1000 stands for."""
    other = "import hybridkv.keys\nhybridkv.keys.KEY_PROFILE = 2\n"
    in_another_process(tmp_path / "s", other + WRITE.format("version()", ", first=1000"))
    assert in_another_process(tmp_path / "s", LOOK.format("version()")).strip() == "MISS 0 {'key_profile': 1}"


def test_refuse_works_across_restarts_without_any_call(tmp_path: Path) -> None:
    in_another_process(tmp_path / "s", WRITE.format("version(1.0)", ""))
    with opened(tmp_path / "s") as tier:
        with pytest.raises(hk.TierError, match="theta") as caught:
            Side(version(2.0), tier, tier_skew="refuse")
        assert [d.where for d in caught.value.differences] == ["groups['kv'].format.theta"]  # type: ignore[attr-defined]
        with Side(version(1.0), tier, tier_skew="refuse") as same:
            assert same.read() == 1


def test_the_file_is_private_and_part_of_the_store(tmp_path: Path) -> None:
    file = stored(tmp_path / "s", version()) / "writers"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [Manifest.from_bytes(line) for line in file.read_bytes().splitlines()] == [Manifest.of(version())]
    with opened(tmp_path / "s") as tier:
        assert tier.recovered.unknown_files == 0 and tier.writers == KeptWriters(read=1)
        assert tier.manifests == (Manifest.of(version()),)


def test_a_known_writer_is_not_written_again(tmp_path: Path) -> None:
    file = stored(tmp_path / "s", version()) / "writers"
    before = file.stat().st_mtime_ns, file.stat().st_ino
    stored(tmp_path / "s", version())
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_writers_whose_records_are_gone_go(tmp_path: Path) -> None:
    """Formats of which the store has no record any more explain nothing: opening drops their writers."""
    path = stored(tmp_path / "s", version(1.0), version(2.0))
    with opened(path) as tier:
        assert tier.writers == KeptWriters(read=2) and len(tier.manifests) == 2
        with Side(version(1.0), tier) as side:
            digests = side.keys.digests
        keys = [
            hk.tiers.RecordKey(row.tobytes(), Manifest.of(version(1.0)).records[0], hk.tiers.RecordKind.BLOCK)
            for row in digests
        ]
        tier.remove(keys)
        tier.drain()
        tier.poll()
    with opened(path) as tier:
        assert tier.writers == KeptWriters(read=2, gone=1)
        assert tier.manifests == (Manifest.of(version(2.0)),)
        tier.know(Manifest.of(version(3.0)))
    assert len((path / "writers").read_bytes().splitlines()) == 2


def test_of_more_than_64_the_first_goes(tmp_path: Path) -> None:
    path = stored(tmp_path / "s", version(1.0))
    with opened(path) as tier:
        for number in range(100):
            tier.know(Manifest.of(version(10.0 + number)))
        assert len(tier.manifests) == MOST_MANIFESTS and Manifest.of(version(1.0)) not in tier.manifests
    assert len((path / "writers").read_bytes().splitlines()) == MOST_MANIFESTS


# ---- a file that is none ---------------------------------------------------------------------------


GOOD = Manifest.of(version(1.0)).to_bytes() + b"\n"
DAMAGED = {
    "no JSON": b"\x00\x01\x02",
    "cut": GOOD[:-9],
    "another object": b"{}\n",
    "a newer schema": GOOD.replace(b'"schema":1', b'"schema":9'),
    "too long": b" " * (MOST_FILE_BYTES + 1),
    "a line too long": b" " * (MOST_BYTES + 1) + b"\n",
    "nothing but lines": b"\n" * 100_000,
    "too many": GOOD * (MOST_MANIFESTS + 1),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, data: bytes) -> None:
    """The store opens, with all its records; what is damaged is kept for who looks, and told."""
    path = stored(tmp_path / "s", version(1.0))
    (path / "writers").write_bytes(data)
    with opened(path) as tier:
        assert 1 <= tier.writers.damaged <= MOST_MANIFESTS + 1, "no more is looked at, whatever is in it"
        assert "set aside as writers.damaged" in tier.writers.error
        assert tier.recovered.records == 4 and tier.recovered.unknown_files == 0
        assert (path / "writers.damaged").read_bytes() == data
        with Side(version(1.0), tier) as side:
            assert side.read() == 1 and tier.manifests == (side.cache.manifest,)
    with opened(path) as tier:  # written anew
        assert tier.writers == KeptWriters(read=1) and tier.manifests == (Manifest.of(version(1.0)),)


def test_sound_lines_of_a_damaged_file_are_kept(tmp_path: Path) -> None:
    path = stored(tmp_path / "s", version(1.0), version(2.0))
    first, second = (path / "writers").read_bytes().splitlines(keepends=True)
    (path / "writers").write_bytes(first + b"garbage\n" + second)
    with opened(path) as tier:
        assert tier.writers.read == 2 and tier.writers.damaged == 1 and "writers, line 2" in tier.writers.error
        assert len(tier.manifests) == 2
    assert (path / "writers").read_bytes() == first + second, "at once, not only when another comes"
    assert looked(path, version(3.0)) == ("FALSE_HIT", {"groups['kv'].format.theta": 1})


@pytest.mark.parametrize("kind", ["folder", "link", "dangling", "fifo", "secret"])
def test_what_is_no_file_is_not_followed(tmp_path: Path, kind: str) -> None:
    path = stored(tmp_path / "s", version(1.0))
    file, outside = path / "writers", tmp_path / "outside"
    outside.write_bytes(GOOD)
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "secret":
        file.write_bytes(GOOD)
        file.chmod(0)
    else:
        file.symlink_to(outside if kind == "link" else tmp_path / "nowhere")
    with opened(path) as tier, Side(version(1.0), tier) as side:
        assert side.read() == 1
        if kind != "secret" or os.geteuid() != 0:
            assert tier.writers.damaged == 1 and tier.writers.error
    assert outside.read_bytes() == GOOD and not (tmp_path / "nowhere").exists()
    assert stat.S_ISREG((path / "writers").lstat().st_mode)


def test_what_cannot_be_set_aside_is_left_as_it_is(tmp_path: Path) -> None:
    path = stored(tmp_path / "s", version(1.0))
    (path / "writers").write_bytes(b"garbage")
    (path / "writers.damaged").mkdir()
    with opened(path) as tier, Side(version(1.0), tier) as side:
        assert "not set aside" in tier.writers.error and side.read() == 1
    assert (path / "writers").read_bytes() == b"garbage"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bytes_keep_a_store_from_opening(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("store") / "s"
    stored(path, version(1.0), version(2.0))
    content = bytearray((path / "writers").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    (path / "writers").write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    with Store(path) as store:
        seen = store.writers
    with opened(path) as tier:
        assert tier.recovered.records == 8 and len(tier.manifests) <= 2
        assert tier.writers.read == len(seen.manifests) and tier.writers.damaged == seen.damaged
        assert bool(tier.writers.error) == bool(seen.error) == bool(seen.damaged)


# ---- a file that cannot be written -----------------------------------------------------------------


def test_a_full_disk_fails_no_attach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and the next cache that comes tries again."""
    path = stored(tmp_path / "s", version(1.0))
    before = (path / "writers").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(path) as tier:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with Side(version(2.0), tier, first=100) as side:
                side.write(2)
                assert side.read() == 2
            assert tier.writers == KeptWriters(read=1, unsaved=1, error="writers not written: No space left on device")
            assert (path / "writers").read_bytes() == before and not (path / "writers.new").exists()
        with Side(version(2.0), tier):
            pass
        assert len((path / "writers").read_bytes().splitlines()) == 2 and tier.writers.unsaved == 1


def test_the_folder_is_the_one_that_was_opened(tmp_path: Path) -> None:
    """Whatever becomes of its name: another store in its place is left alone."""
    path = stored(tmp_path / "s", version(1.0))
    with opened(path) as tier:
        path.rename(tmp_path / "moved")
        path.mkdir()
        tier.know(Manifest.of(version(2.0)))
    assert list(path.iterdir()) == []
    assert len((tmp_path / "moved" / "writers").read_bytes().splitlines()) == 2


def test_a_closed_store_is_another_s(tmp_path: Path) -> None:
    path = stored(tmp_path / "s", version(1.0))
    tier = opened(path)
    tier.close()
    before = (path / "writers").read_bytes()
    tier.know(Manifest.of(version(2.0)))
    assert (path / "writers").read_bytes() == before


def test_a_draft_that_a_crash_left_is_no_file_of_others(tmp_path: Path) -> None:
    path = stored(tmp_path / "s", version(1.0))
    (path / "writers.new").write_bytes(b"half")
    with opened(path) as tier:
        assert tier.recovered.unknown_files == 0 and tier.writers == KeptWriters(read=1)
        tier.know(Manifest.of(version(2.0)))
    assert sorted(f.name for f in path.iterdir() if not f.name.endswith("region")) == ["superblock", "writers"]


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        stored(tmp_path / "s", version(1.0))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    path = stored(tmp_path / "s", version(1.0))
    code = """
import os
child = os.fork()
if child == 0:
    try:
        tier.know(version(2.0) and hk.formats.Manifest.of(version(2.0)))
    except hk.Closed:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert in_another_process(path, code.strip()).strip() == "7"
    assert len((path / "writers").read_bytes().splitlines()) == 1


# ---- a stack ---------------------------------------------------------------------------------------


def test_a_stack_knows_what_its_tiers_know(tmp_path: Path) -> None:
    stored(tmp_path / "s", version(1.0))
    with hk.TierStack([hk.MemoryTier(1 << 20), opened(tmp_path / "s")]) as stack, Side(version(2.0), stack) as side:
        assert side.look().outcome is hk.Outcome.FALSE_HIT and side.skew == {"groups['kv'].format.theta": 1}
        side.write(2)
    with opened(tmp_path / "s") as tier:
        assert tier.manifests == (Manifest.of(version(1.0)), Manifest.of(version(2.0)))
    with opened(tmp_path / "s") as tier:
        stack = hk.TierStack([hk.MemoryTier(1 << 20), tier])
        stack.close()
        tier.know(Manifest.of(version(3.0)))
        assert len((tmp_path / "s" / "writers").read_bytes().splitlines()) == 2, "closed by the stack"


# ---- inspect and verify ----------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    return code, capsys.readouterr().out


def test_inspect_lists_the_writers_and_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path / "s", version(1.0, weights="r1"), version(2.0, weights="r2"))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    code, text = told(capsys, "inspect", str(path), "--json")
    document = json.loads(text)
    assert code == 0 and document["writers_error"] == "" and document["other_files"] == []
    first, last = document["writers"]
    assert first["formats"]["block"] == Manifest.of(version(1.0)).records[0].hex() and first["records"]["block"] == 4
    assert [d["where"] for d in first["differs"]] == ["identity.weights", "groups['kv'].format.theta"]
    assert (first["differs"][1]["here"], first["differs"][1]["last"]) == (1.0, 2.0)
    assert last["differs"] == [] and last["identity"] == version(weights="r2").identity.fingerprint.hex()
    assert document["bytes"]["writers"] == len(before["writers"])
    assert document["bytes"]["total"] == sum(size for name, size in document["bytes"].items() if name != "total")
    code, text = told(capsys, "inspect", str(path))
    assert "groups['kv'].format.theta: 1.0, of the last writer 2.0" in text
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_inspect_and_verify_say_what_is_wrong_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path / "s", version(1.0))
    (path / "writers").write_bytes(b"garbage\n")
    for command in ("inspect", "verify"):
        code, text = told(capsys, command, str(path), "--json")
        assert code == 0 and json.loads(text)["writers_error"].startswith("writers, line 1: ")
        code, text = told(capsys, command, str(path))
        assert code == 0 and "who wrote cannot all be told: writers, line 1" in text
    assert (path / "writers").read_bytes() == b"garbage\n" and not (path / "writers.damaged").exists()
    with opened(path):
        pass
    code, text = told(capsys, "inspect", str(path))
    assert "writers.damaged, 8 bytes" in text


def test_a_store_of_before_has_no_writers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path / "s", version(1.0))
    (path / "writers").unlink()
    code, text = told(capsys, "inspect", str(path), "--json")
    assert code == 0 and (json.loads(text)["writers"], json.loads(text)["writers_error"]) == ([], "")
    assert looked(path, version(2.0)) == ("FALSE_HIT", {"unknown writer": 1})


def test_names_are_those_of_the_core() -> None:
    assert (writers_file.WRITERS, writers_file.DRAFT, writers_file.DAMAGED) == (
        "writers",
        "writers.new",
        "writers.damaged",
    )
    assert REGION == 1 << 20
