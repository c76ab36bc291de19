# SPDX-License-Identifier: Apache-2.0
"""Seed each known bug in turn into a copy of the sources and show that its test notices.

::

    python tests/mutants.py build/mutants                    # all; exit 1 if a bug goes unnoticed
    python tests/mutants.py build/mutants --only "double free"
    python tests/mutants.py build/mutants --write            # and write docs/seeded-bugs.md

The folder is made if it is not there: for each of `--jobs` one of its own, with `tree`, the copy, and `cmake`, what is
built of it. The bugs are data, in
`tests/seeded_bugs`; the same tests pass without a bug, which is tried first. Bugs that a Python test catches are run
against the package installed in this environment, with the Python files of the copy.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from seeded_bugs import ROOT, Bug, all_bugs, misplaced

DOCUMENT = ROOT / "docs" / "seeded-bugs.md"
COPIED = ("cmake", "csrc", "tests", "python", "CMakeLists.txt", "pyproject.toml")
SECONDS = 600  # of one test


class Workshop:
    """A copy of the tree in which one bug is seeded at a time, and what is built of it."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.build = folder / "tree", folder / "cmake"
        self._copy()
        options = ["-DHYBRIDKV_TESTS=ON", "-DHYBRIDKV_PYTHON=OFF", "-DHYBRIDKV_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Debug"]
        if shutil.which("ninja"):
            options.append("-GNinja")
        configure = ["cmake", "-S", self.tree, "-B", self.build, "-DCMAKE_CXX_FLAGS_DEBUG=-O1", *options]
        subprocess.run(configure, check=True, capture_output=True, text=True)

    def _copy(self) -> None:
        """Bring the copy in step; files that did not change keep their times, so that little is built again."""
        ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
        fresh = self.tree.with_name("fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, fresh / name, ignore=ignore)
            else:
                shutil.copy2(source, fresh / name)
        wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
        for path in [path for path in self.tree.rglob("*") if path.is_file()]:
            if path.relative_to(self.tree) not in wanted:
                path.unlink()
        for name in wanted:
            target = self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != (fresh / name).read_bytes():
                shutil.copyfile(fresh / name, target)
        shutil.rmtree(fresh)

    def fails(self, test: str, only: str) -> str | None:
        """Build and run one test. Returns: what it said where it failed, None where it passed."""
        environment = {**os.environ, "HKV_RELACY_FIRST": "1"}
        if test.startswith("tests/"):
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
            environment["PYTHONPATH"] = str(self._package())
        else:
            built = subprocess.run(
                ["cmake", "--build", self.build, "--target", test, "-j", "2"], capture_output=True, text=True
            )
            if built.returncode != 0:
                raise SystemExit(f"{test} does not build:\n{(built.stdout + built.stderr)[-3000:]}")
            command = [str(self.build / test), *([only] if only else [])]
        try:
            done = subprocess.run(
                command, cwd=self.tree, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"no end within {SECONDS} s"
        said = done.stdout + done.stderr
        if test.startswith("tests/") and done.returncode not in (0, 1):
            raise SystemExit(f"pytest cannot run {test}:\n{said[-3000:]}")
        if not test.startswith("tests/") and done.returncode == 2:
            raise SystemExit(f"{test} runs no test for {only!r}:\n{said[-3000:]}")
        return None if done.returncode == 0 else said

    def _package(self) -> Path:
        """Return the folder of the copied package, with the extension of the installed one in it."""
        place = "import hybridkv._core as core; print(core.__file__)"
        command = [sys.executable, "-c", place]
        built = subprocess.run(command, cwd=self.build, check=True, capture_output=True, text=True).stdout.strip()
        shutil.copy2(built, self.tree / "python" / "hybridkv")
        return self.tree / "python"

    def notices(self, bug: Bug) -> str | None:
        """Seed a bug, run its test, and take the bug out again. Returns as `fails`."""
        path = self.tree / bug.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        try:
            return self.fails(bug.caught_by, bug.only)
        finally:
            path.write_text(text, encoding="utf-8")


def title(bug: Bug) -> str:
    """Return the test of a bug as the table shows it."""
    if bug.caught_by.startswith("tests/"):
        file, _, node = bug.caught_by.partition("::")
        return f"`{file}`" + (f": {node}" if node else "")
    folder, _, name = bug.caught_by.partition(".")
    return f"`tests/cpp/{folder}/{name.replace('.', '/')}.cpp`" + (f": {bug.only}" if bug.only else "")


def document(bugs: list[Bug]) -> str:
    """Build the text of docs/seeded-bugs.md."""
    rows = [f"| {bug.name} | {bug.what} | `{bug.file}` | {title(bug)} |" for bug in bugs]
    return "\n".join(
        [
            "# Seeded bugs: what shows that the tests can fail",
            "",
            "Written by `tests/mutants.py`; do not edit. Each bug is one replacement in one source (the data is in",
            "`tests/seeded_bugs`); with it in place the test named here fails, and without it passes.",
            "",
            "| bug | what it does | where | caught by |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def unnoticed(workshop: Workshop, bugs: list[Bug]) -> list[str]:
    """Run the tests without any bug, then with each. Returns: the names of bugs that no test noticed."""
    for test, only in dict.fromkeys((bug.caught_by, bug.only) for bug in bugs):
        said = workshop.fails(test, only)
        if said is not None:
            raise SystemExit(f"{test} {only} fails without any bug:\n{said[-3000:]}")
    missed = []
    for bug in bugs:
        started = time.monotonic()
        said = workshop.notices(bug)
        if said is None:
            missed.append(bug.name)
        tell = [line.strip() for line in (said or "").splitlines() if "FAILED" in line or "FAIL " in line]
        last = [line.strip() for line in (said or "").splitlines() if line.strip()][-1:]
        first = "NOTHING" if said is None else (tell or last or ["ended with an error"])[0]
        print(f"{bug.name:36} {bug.caught_by:22} {time.monotonic() - started:4.0f} s  {first[:110]}", flush=True)
    return missed


def shares(bugs: list[Bug], jobs: int) -> list[list[Bug]]:
    """Split bugs among jobs, all of one test together, about as many for each."""
    out: list[list[Bug]] = [[] for _ in range(jobs)]
    by_test = sorted(bugs, key=lambda bug: bug.caught_by)
    groups = [list(group) for _, group in groupby(by_test, key=lambda bug: bug.caught_by)]
    for group in sorted(groups, key=len, reverse=True):
        min(out, key=len).extend(group)
    return [share for share in out if share]


def work(folder: Path, bugs: list[Bug]) -> list[str]:
    """Do one job's share in a copy of its own. Returns: the names of bugs that no test noticed."""
    return unnoticed(Workshop(folder), bugs)


def tryable(bugs: list[Bug]) -> tuple[list[Bug], list[Bug]]:
    """Return the bugs whose tests can run here, and those whose tests want a package that is not installed."""
    lacking = {bug.needs for bug in bugs if bug.needs and importlib.util.find_spec(bug.needs) is None}
    return [bug for bug in bugs if bug.needs not in lacking], [bug for bug in bugs if bug.needs in lacking]


def main() -> int:
    """Seed each bug, print what noticed it, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("build", type=Path, help="folder for the copy and what is built of it")
    parser.add_argument("--only", metavar="NAME", action="append", help="bugs whose name or file contains this")
    parser.add_argument("--jobs", type=int, default=2, help="copies that are worked in at a time")
    parser.add_argument("--write", action="store_true", help="write docs/seeded-bugs.md where all are noticed")
    arguments = parser.parse_args()
    started = time.monotonic()
    bugs = all_bugs()
    wrong = misplaced(bugs)
    if wrong:
        raise SystemExit("\n".join(wrong))
    only = arguments.only or [""]
    chosen, left_out = tryable([bug for bug in bugs if any(part in bug.name or part in bug.file for part in only)])
    for bug in left_out:
        print(f"{bug.name:36} left out: {bug.needs} is not installed, without which {bug.caught_by} is skipped")
    split = shares(chosen, arguments.jobs)
    folders = [arguments.build.resolve() / str(job) for job in range(len(split))]
    with ProcessPoolExecutor(max_workers=max(1, len(split))) as pool:
        missed = [name for share in pool.map(work, folders, split) for name in share]
    print(f"{len(chosen)} bugs, {len(missed)} unnoticed, {time.monotonic() - started:.0f} s")
    if arguments.write and not missed and not left_out and arguments.only is None:
        DOCUMENT.write_text(document(bugs), encoding="utf-8")
    elif DOCUMENT.read_text(encoding="utf-8") != document(bugs):
        print(f"{DOCUMENT.relative_to(ROOT)} is out of date: run again with --write", file=sys.stderr)
        return 1
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
