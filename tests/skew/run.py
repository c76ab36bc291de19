# SPDX-License-Identifier: Apache-2.0
"""Images between versions of transformers: makes one folder per version and compares; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build"
OLDER = ("5.8.0", "5.23.0")
NEWEST = "newest"
ABSENT = {("5.8.0", "deepseek_v32 float32")}
"""Architectures that a version does not have."""

NEEDED = "deepseek_v4 float32"
"""Where a refusal of the first version was needed: same names, shapes and dtypes, another function."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD, help="where the folders are made (default: build)")
    build = parser.parse_args().build
    versions = {version: _installed(build, version) for version in (NEWEST, *OLDER)}
    work = build / "skew"
    weights = work / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    for old in [*weights.iterdir(), *work.glob("*/*.image"), *work.glob("*/*.logits")]:
        old.unlink()
    written = {}
    for version, packages in versions.items():
        (work / version).mkdir(exist_ok=True)
        written[version] = _inside(packages, "write", work / version, weights)
    read = {version: _inside(versions[NEWEST], "read", work / version, weights) for version in versions}
    own = {version: _inside(versions[version], "read", work / version, weights) for version in OLDER}
    problems = _problems(written, read, own)
    _print(written, read)
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def _installed(build: Path, version: str) -> Path:
    """Return a folder with one version and what it depends on; made where it is not there."""
    folder = build / f"skew-{version}"
    if (folder / ".made").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(f"numpy=={metadata.version('numpy')}\n")
    wanted = f"transformers=={version}" if version != NEWEST else _extra()
    print(f"installing {wanted} into {folder.name}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--upgrade"]
    subprocess.run([*pip, "--target", str(folder), "-c", str(constraints), wanted, "safetensors"], check=True)
    (folder / ".made").touch()
    return folder


def _extra() -> str:
    """Return what pyproject.toml asks of transformers; pip takes the newest of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(str(r) for r in project["optional-dependencies"]["transformers"] if r.startswith("transformers"))


def _inside(packages: Path, command: str, folder: Path, weights: Path) -> dict[str, Any]:
    """Run a command of inside.py with one version in front of all other packages."""
    result = folder / f"{command}-{packages.name}.json"
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    print(f"{command} {folder.name} in {packages.name}", flush=True)
    program = [sys.executable, "-W", "ignore", str(HERE / "inside.py"), command, *map(str, (folder, weights, result))]
    subprocess.run(program, check=True, env={**os.environ, **settings})
    answer: dict[str, Any] = json.loads(result.read_text())
    return answer


def _problems(written: dict[str, Any], read: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """Tell what is not as it must be."""
    found = []
    if written[NEWEST]["transformers"] in OLDER:
        found.append("the newest version is an old one")
    for version, answer in written.items():
        if version in OLDER and answer["transformers"] != version:
            found.append(f"{version}: {answer['transformers']} ran")
        for case, told in answer["cases"].items():
            if (version, case) in ABSENT and "absent" in told:
                continue
            if told.get("unequal") != []:
                found.append(f"{version}: {case} does not go on bit for bit: {told}")
            reuse = told.get("reuse", {})
            if reuse.get("wrong_turns") or reuse.get("reused_tokens") == 0:
                found.append(f"{version}: a conversation with {case} came to {reuse}")
            if version == NEWEST and "refused" in reuse:
                found.append(f"{version}: no conversation with {case}: {reuse}")
    for version, answer in {**own, NEWEST: read[NEWEST]}.items():
        for case, told in answer["cases"].items():
            if not (told.get("accepted") and told["same"]):
                found.append(f"{version}: its own image of {case} came to {told}")
    for version in OLDER:
        for case, told in read[version]["cases"].items():
            fields = [field for field, _, _ in told.get("fields", ())]
            if told.get("code") != "format" or "transformers" not in fields:
                found.append(f"{version}: image of {case} in the newest version came to {told}")
    needed = {case: told for case, told in read[OLDER[0]]["cases"].items() if case.startswith(NEEDED)}
    if len(needed) < 5:
        found.append(f"{OLDER[0]}: only {len(needed)} images of {NEEDED}")
    for case, told in needed.items():
        if not isinstance(told["unchecked"], float) or told["unchecked"] < 0.01:
            found.append(f"{OLDER[0]}: nothing would have gone wrong with {case}: {told}")
        if any(field.startswith(("layers[", "rows[")) for field in _by_field(told)):
            found.append(f"{OLDER[0]}: the structure of {case} would have told: {told}")
    return found


def _by_field(told: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the differences by field: ours and theirs."""
    return {field: (ours, theirs) for field, ours, theirs in told.get("fields", ())}


def _print(written: dict[str, Any], read: dict[str, Any]) -> None:
    newest = written[NEWEST]["transformers"]
    for version, answer in written.items():
        print(f"\ntransformers {answer['transformers']}")
        for case, told in answer["cases"].items():
            if "unequal" in told:
                state = "goes on bit for bit" if not told["unequal"] else f"differs at {told['unequal']}"
                state += f"; a conversation: {told['reuse']}"
            else:
                state = f"not supported: {told.get('absent') or told.get('refused')}"
            print(f"  {case:24} {state}")
            if version in OLDER:
                _print_images(case, read[version]["cases"], newest)


def _print_images(case: str, cases: dict[str, Any], newest: str) -> None:
    images = {key: told for key, told in cases.items() if key.rsplit(" ", 1)[0] == case}
    if not images:
        return
    one = next(iter(images.values()))
    print(f"    in {newest}: {one.get('code', 'accepted')}")
    shown = [f"{field} ({theirs[:24]} for {ours[:24]})" for field, (ours, theirs) in _by_field(one).items()]
    print(f"      differs in: {', '.join(shown)}")
    changes = [f"p={key.rsplit(' ', 1)[1]}: {_short(told['unchecked'])}" for key, told in images.items()]
    print(f"      unchecked, largest change of a logit: {', '.join(changes)}")


def _short(change: float | str) -> str:
    return change if isinstance(change, str) else f"{change:.2g}"


if __name__ == "__main__":
    sys.exit(main())
