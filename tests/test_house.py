# SPDX-License-Identifier: Apache-2.0
"""The house: each rule holds for this tree, and each catches a violation seeded into a copy of it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from house import (
    api_reference,
    documents,
    headers,
    includes,
    length,
    optional,
    orders,
    parsed,
    registered,
    sdist,
    secure,
    stub,
)
from house.tree import PRODUCT_FOLDERS

ROOT = Path(__file__).resolve().parents[1]
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"

Rule = Callable[[Path], list[str]]
Seed = Callable[[Path], str]  # plants a violation, returns what the finding must name

RULES: dict[str, Rule] = {
    "include ranks": includes.ranks,
    "no Python or torch in the core": includes.no_python,
    "extras are imported where they are used": optional.lazily,
    "bytes are never run": secure.nothing_runs,
    "one function makes keys": secure.one_key_function,
    "what parses is fuzzed": parsed.covered,
    "orders only where they may be": orders.spelled,
    "synchronizes-with is mutual": orders.graph,
    "tests have names that are collected": registered.names,
    "documented paths exist": documents.paths,
    "code in documents runs or says so": documents.unmarked,
    "SPDX headers": headers.licences,
    "no paths of a machine": headers.machine_paths,
    "file length": length.file_lines,
    "function length": length.function_lines,
}


def plant(path: str, text: str, *, name: str | None = None) -> Seed:
    """Return a seed that appends `text` to the file `path`, or makes the file."""

    def seed(root: Path) -> str:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a", encoding="utf-8") as file:
            file.write(text)
        return name or path

    return seed


def swap(path: str, old: str, new: str) -> Seed:
    """Return a seed that replaces the first `old` in the file `path`."""

    def seed(root: Path) -> str:
        text = (root / path).read_text(encoding="utf-8")
        assert old in text, f"{path} no longer holds {old!r}: choose another seed"
        (root / path).write_text(text.replace(old, new, 1), encoding="utf-8")
        return path

    return seed


def sites(*lines: str) -> Seed:
    """Return a seed of a header in csrc/block with these lines."""
    return plant("csrc/block/seeded.h", LICENCE + "\n".join(lines) + "\n")


LONG_BODY = "".join(f"  x += {i};\n" for i in range(70))
PAIR = ("// (901) release-store synchronizes-with (902)", "x.store(1, at(901, release));")

SEEDS: list[tuple[str, str, Seed]] = [
    ("bytes are never run", "pickle", plant("python/hybridkv/seeded.py", "def f():\n    import pickle\n")),
    ("bytes are never run", "from pickle", plant("python/hybridkv/tiers/seeded.py", "from pickle import loads\n")),
    ("bytes are never run", "a part of marshal", plant("python/hybridkv/seeded.py", "import marshal as m\n")),
    ("bytes are never run", "torch.load", plant("python/hybridkv/adapters/seeded.py", "x = torch.load(y)\n")),
    ("bytes are never run", "arrays of objects", plant("python/hybridkv/seeded.py", "f(x, allow_pickle=True)\n")),
    ("bytes are never run", "eval", plant("python/hybridkv/seeded.py", "x = eval(text)\n")),
    ("bytes are never run", "named import", plant("python/hybridkv/seeded.py", "importlib.import_module(name)\n")),
    ("one function makes keys", "chain", plant("python/hybridkv/seeded.py", "c = _core.KeyChain.build(1, 2, 3, 4)\n")),
    ("one function makes keys", "hashes", plant("python/hybridkv/seeded.py", "_core.KeyChain.from_hashes(x)\n")),
    ("one function makes keys", "digest", plant("python/hybridkv/seeded.py", "key = _core.sha256(x)[:16]\n")),
    ("one function makes keys", "wrapped", plant("python/hybridkv/seeded.py", "k = BlockKeys(core, None)\n")),
    ("one function makes keys", "salt", plant("python/hybridkv/seeded.py", "k = spec.identity.salt + ids\n")),
    ("one function makes keys", "core", plant("csrc/cache/seeded.h", LICENCE + "auto k = Sha256().finish();\n")),
    ("one function makes keys", "root", plant("csrc/tier/seeded.h", LICENCE + "auto r = identity_root(1, p);\n")),
    ("one function makes keys", "tip", plant("csrc/cache/seeded.h", LICENCE + "auto k = key_message::tip_key(m);\n")),
    ("what parses is fuzzed", "JSON", plant("python/hybridkv/seeded.py", "def f(x):\n    return json.loads(x)\n")),
    ("what parses is fuzzed", "a number", plant("python/hybridkv/tiers/seeded.py", "n = int.from_bytes(x, 'big')\n")),
    ("what parses is fuzzed", "a record", plant("python/hybridkv/seeded.py", "a, b = struct.unpack('<II', x)\n")),
    ("what parses is fuzzed", "a file", plant("python/hybridkv/models/seeded.py", "text = open(path).read()\n")),
    ("what parses is fuzzed", "an array", plant("python/hybridkv/seeded.py", "x = np.frombuffer(y)\n")),
    ("what parses is fuzzed", "lent memory", plant("python/hybridkv/seeded.py", "a = x.__array_interface__\n")),
    ("what parses is fuzzed", "asked for", plant(
        "python/hybridkv/seeded.py", "a = getattr(x, '__cuda_array_interface__', None)\n")),
    ("what parses is fuzzed", "core", plant("csrc/tier/seeded.h", LICENCE + "auto n = get_le<int>(at);\n")),
    ("what parses is fuzzed", "bytes", plant(
        "csrc/cache/seeded.h", LICENCE + "Damage f(std::span<const std::byte> bytes);\n")),
    ("what parses is fuzzed", "moved", swap(
        "python/hybridkv/adapters/torch_ops/arguments.py", "json.loads(", "json.parsed(")),
    ("include ranks", "up", plant("csrc/layout/seeded.h", '#include "block/word.h"\n')),
    ("include ranks", "to the top", plant("csrc/base/seeded.h", '#include "bindings/bindings.h"\n')),
    ("include ranks", "of the same rank", plant("csrc/tier/seeded.h", '#include "block/word.h"\n')),
    ("include ranks", "of a gone file", plant("csrc/block/seeded.h", '#include "base/gone.h"\n')),
    ("include ranks", "beside the root", plant("csrc/block/seeded.h", '#include "word.h"\n')),
    ("include ranks", "folder without rank", plant("csrc/common/seeded.h", "\n")),
    ("no Python or torch in the core", "Python", plant("csrc/base/seeded.h", "#include <Python.h>\n")),
    ("no Python or torch in the core", "torch", plant("csrc/cache/seeded.cpp", "#include <torch/torch.h>\n")),
    ("extras are imported where they are used", "at the head", plant("python/hybridkv/seeded.py", "import torch\n")),
    ("extras are imported where they are used", "a part", plant(
        "python/hybridkv/replay/seeded.py", "from transformers.cache_utils import Cache\n")),
    ("extras are imported where they are used", "tried", plant(
        "python/hybridkv/seeded.py", "try:\n    import rich\nexcept ImportError:\n    import matplotlib.pyplot\n",
        name="seeded.py:4")),
    ("extras are imported where they are used", "in a class", plant(
        "python/hybridkv/models/seeded.py", "class A:\n    import safetensors\n")),
    ("extras are imported where they are used", "if not checked", plant(
        "python/hybridkv/seeded.py", "if not TYPE_CHECKING:\n    import vllm\n")),
    ("orders only where they may be", "site in reuse", plant("csrc/reuse/s.h", "x.load(at(9, acquire));\n")),
    ("orders only where they may be", "bare in cache", plant("csrc/cache/seeded.h", "x.load(acquire);\n")),
    ("orders only where they may be", "no number", plant("csrc/block/seeded.h", "x.store(1, release);\n")),
    ("orders only where they may be", "std", plant("csrc/alloc/seeded.h", "std::atomic<int> x;\n")),
    ("orders only where they may be", "std order", plant("csrc/block/s.h", "f(memory_order_acquire);\n")),
    ("synchronizes-with is mutual", "no comment", sites("x.store(1, at(901, release));")),
    ("synchronizes-with is mutual", "no code", sites(PAIR[0])),
    ("synchronizes-with is mutual", "one-sided", sites(
        *PAIR, "// (902) acquire-load synchronizes-with (903)", "x.load(at(902, acquire));",
        "// (903) release-store synchronizes-with (902)", "x.store(2, at(903, release));")),
    ("synchronizes-with is mutual", "to nothing", sites(*PAIR)),
    ("synchronizes-with is mutual", "twice", sites(
        *PAIR, "x.store(2, at(901, release));", "// (902) acquire-load synchronizes-with (901)",
        "x.load(at(902, acquire));")),
    ("synchronizes-with is mutual", "two releases", sites(
        *PAIR, "// (902) release-store synchronizes-with (901)", "x.store(2, at(902, release));")),
    ("synchronizes-with is mutual", "too far", sites(
        *PAIR, "// (902) acquire-load synchronizes-with (901)", "", "", "", "", "x.load(at(902, acquire));")),
    ("synchronizes-with is mutual", "described twice", sites(
        *PAIR, "// (902) acquire-load synchronizes-with (901)", "// (902) and synchronizes-with (901)",
        "x.load(at(902, acquire));")),
    ("synchronizes-with is mutual", "orders-with of an acquire", sites(
        "// (901) seq_cst-load orders-with (902)", "x.load(at(901, seq_cst));",
        "// (902) acquire-load orders-with (901)", "x.load(at(902, acquire));")),
    ("tests have names that are collected", "py", plant("tests/x_test.py", "def test_x():\n    pass\n")),
    ("tests have names that are collected", "cpp", plant("tests/cpp/base/t.cpp", 'HKV_TEST("x") {}\n')),
    ("tests have names that are collected", "cc", plant("tests/cpp/base/seeded_test.cc", "\n")),
    ("tests have names that are collected", "place", plant("csrc/base/seeded_test.cpp", "\n")),
    ("documented paths exist", "gone", plant("README.md", "\nSee `csrc/gone/away.h`.\n")),
    ("documented paths exist", "bare name", plant("csrc/README.md", "\nSee `no_such_file.h`.\n")),
    ("documented paths exist", "link", plant("docs/seeded.md", "[x](csrc/gone.md)\n")),
    ("code in documents runs or says so", "py", plant("README.md", "\n```py\nimport nothing\n```\n")),
    ("code in documents runs or says so", "mark", plant("docs/seeded.md", "```python skip\nx\n```\n")),
    ("code in documents runs or says so", "indented", plant("docs/seeded.md", "- x\n\n  ```python\n  x\n  ```\n")),
    ("SPDX headers", "missing", plant("csrc/base/seeded.h", "#pragma once\n")),
    ("SPDX headers", "wrong", swap("pyproject.toml", "Apache-2.0", "MIT")),
    ("SPDX headers", "after #!", plant("tests/seeded.py", "#!/usr/bin/env python3\nimport os\n")),
    ("no paths of a machine", "path", plant("python/hybridkv/seeded.py", 'HERE = "/' + 'root/x"\n')),
    ("no paths of a machine", "host", plant("docs/seeded.md", "See https://py" + "pi.org.\n")),
    ("file length", "C++", plant("csrc/base/seeded.h", "\n" * 501)),
    ("file length", "Python", plant("tests/python/seeded.py", "\n" * 501)),
    ("function length", "C++", plant("csrc/base/seeded.h", "int f(int x) {\n" + LONG_BODY + "}\n")),
    ("function length", "constructor", plant(
        "csrc/base/seeded.h", "struct A {\n  A(int x) : a_{x}, b_{x} {\n" + LONG_BODY + "  }\n};\n")),
    ("function length", "HKV_TEST", plant("tests/cpp/seeded.h", 'HKV_TEST("}") {\n' + LONG_BODY + "}\n")),
    ("function length", "Python", plant(
        "tests/python/seeded.py", "def f(x):\n" + LONG_BODY.replace("  x", "    x").replace(";", ""))),
]  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """Yield a copy of this tree without products and data."""
    root = tmp_path / "tree"
    ignore = shutil.ignore_patterns(*PRODUCT_FOLDERS, ".venv-*", "data", "*.so")
    shutil.copytree(ROOT, root, ignore=ignore)
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("name", RULES)
def test_the_tree_keeps_the_rule(name: str) -> None:
    found = RULES[name](ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("name", "what", "seed"), SEEDS, ids=[f"{n}: {w}" for n, w, _ in SEEDS])
def test_the_rule_catches_a_seeded_violation(name: str, what: str, seed: Seed, copy: Path) -> None:
    before = RULES[name](copy)
    named = seed(copy)
    new = [finding for finding in RULES[name](copy) if finding not in before]
    assert any(named in finding for finding in new), f"{what} was not caught: {new}"


def test_every_rule_has_a_seed() -> None:
    assert {name for name, _, _ in SEEDS} == set(RULES)


def test_an_extra_may_be_imported_in_functions_for_checkers_and_in_its_rooms(copy: Path) -> None:
    plant("python/hybridkv/seeded.py", "if typing.TYPE_CHECKING:\n    import torch\n\ndef f():\n    import rich\n")(
        copy
    )
    plant("python/hybridkv/adapters/seeded.py", "import torch\n")(copy)
    plant("python/hybridkv/seeded2.py", "from .torch import x\nimport torchlike\n")(copy)
    assert optional.lazily(copy) == []


def test_exceptions_to_length_only_shrink() -> None:
    path = "tests/house/length.py"
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert f"{path}: listed" not in "".join(length.file_lines(ROOT, {}))
    for allowed, complaint in ((lines - 1, "no exception any more"), (lines + 1, "no exception any more")):
        assert any(complaint in f for f in length.file_lines(ROOT, {path: allowed}))
    assert length._ratchet({"a": 600}, {"a": 600}, 500) == []
    assert "may only shrink" in length._ratchet({"a": 601}, {"a": 600}, 500)[0]
    assert "lower its number" in length._ratchet({"a": 599}, {"a": 600}, 500)[0]
    assert "gone" in length._ratchet({}, {"a": 600}, 500)[0]


def test_every_cpp_test_is_registered_with_ctest(tmp_path: Path) -> None:
    found = registered.ctest(ROOT, tmp_path / "build")
    assert not found, "\n".join(found)


def test_a_cpp_test_outside_the_glob_is_caught(copy: Path, tmp_path: Path) -> None:
    swap("CMakeLists.txt", "tests/cpp/*_test.cpp", "tests/cpp/base/*_test.cpp")(copy)
    plant("tests/cpp/block/seeded_test.cpp", '#include "testing.h"\n')(copy)
    assert "block.seeded_test: not registered with ctest" in registered.ctest(copy, tmp_path / "build")


def test_pytest_collects_from_every_test_file(request: pytest.FixtureRequest) -> None:
    if set((ROOT / "tests").rglob("test_*.py")) <= {item.path for item in request.session.items}:
        return  # this run did
    found = registered.pytest(ROOT)
    assert not found, "\n".join(found)


def test_a_test_file_without_tests_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    plant("tests/test_full.py", "def test_x():\n    pass\n")(tmp_path)
    plant("tests/test_hollow.py", "def check_x():\n    pass\n")(tmp_path)
    skip = "import pytest\npytest.skip('x', allow_module_level=True)\n"
    plant("tests/test_needs_an_extra.py", skip + "pytest.importorskip('vllm')\n")(tmp_path)
    plant("tests/test_needs_nothing_known.py", skip + "x = pytest.importorskip('no_such_package')\n")(tmp_path)
    (tmp_path / "tests" / "python").mkdir()
    hollow = [
        "tests/test_hollow.py: pytest collects nothing from it",
        "tests/test_needs_nothing_known.py: pytest collects nothing from it",
    ]
    absent = {"vllm": None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: absent.get(name, "there"))
    assert registered.pytest(tmp_path) == hollow
    absent.clear()  # where it is installed, a file that needs it has to hold tests
    hollow.insert(1, "tests/test_needs_an_extra.py: pytest collects nothing from it")
    assert registered.pytest(tmp_path) == hollow


def test_the_stub_is_the_module() -> None:
    found = stub.differences(ROOT, stub.generated())
    assert not found, "make stub rewrites it\n" + "\n".join(found)


def test_the_api_reference_is_what_the_docstrings_say() -> None:
    found = api_reference.differences(ROOT)
    assert not found, "make reference rewrites it\n" + "\n".join(found[:20])


def test_an_api_reference_that_lags_is_caught(copy: Path) -> None:
    page = f"{api_reference.FOLDER}/graph.md"
    assert api_reference.differences(copy) == []
    swap(page, "captured", "capture")(copy)  # one word of a docstring changed
    assert api_reference.differences(copy)
    (copy / page).unlink()
    assert api_reference.differences(copy)
    plant(page, api_reference.pages()["graph.md"])(copy)
    plant(f"{api_reference.FOLDER}/gone.md", "")(copy)
    assert api_reference.differences(copy) == [f"{api_reference.FOLDER}/gone.md: of no module"]


def test_a_stub_that_lags_is_caught(copy: Path) -> None:
    text = (ROOT / stub.STUB).read_text(encoding="utf-8")
    assert stub.differences(copy, text) == []
    swap(stub.STUB, "tokens:", "token:")(copy)  # one argument renamed
    assert stub.differences(copy, text)
    (copy / stub.STUB).unlink()
    assert stub.differences(copy, text)


def test_the_sdist_holds_only_sources(tmp_path: Path) -> None:
    names = sdist.built(ROOT, tmp_path)
    assert not sdist.disallowed(names)


def test_what_does_not_belong_into_an_sdist_is_caught(copy: Path, tmp_path: Path) -> None:
    swap("pyproject.toml", "sdist.include = [", 'sdist.include = [\n  "/csrc/**/*.bin",')(copy)
    plant("csrc/base/stray.bin", "x")(copy)
    plant("csrc/base/stray.o", "x")(copy)
    (copy / "csrc" / "bindings" / "module.cpp").unlink()
    found = sdist.disallowed(sdist.built(copy, tmp_path))
    assert "csrc/base/stray.bin: not on the allow-list of the sdist" in found
    assert "csrc/bindings/module.cpp: missing in the sdist" in found
    assert not any("stray.o" in finding for finding in found)
    assert sdist.disallowed(dict.fromkeys(sdist.NEEDED, 3 << 20))


def run_cpp(folder: Path, body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Compile a program over testing.h and run it."""
    source, program = folder / "program.cpp", folder / "program"
    source.write_text('#include "testing.h"\n' + body, encoding="utf-8")
    command = ["c++", "-std=c++20", "-I", str(ROOT / "tests" / "cpp"), str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    return subprocess.run([str(program), *arguments], capture_output=True, text=True)


def test_the_cpp_harness_fails_with_place_and_values(tmp_path: Path) -> None:
    run = run_cpp(
        tmp_path,
        """
        HKV_TEST("one is two") { EXPECT_EQ(1, 2); }
        HKV_TEST("nothing is so") { EXPECT(1 > 2); }
        HKV_TEST("it throws") { throw std::exception(); }
        HKV_TEST("all is well") { EXPECT_EQ(1, 1); EXPECT(true); }
        """,
    )
    assert run.returncode == 1
    assert f"{tmp_path}/program.cpp:3: 1 == 2: 1 != 2" in run.stderr
    assert f"{tmp_path}/program.cpp:4: expected 1 > 2" in run.stderr
    assert run.stdout.splitlines() == [
        "FAIL one is two",
        "FAIL nothing is so",
        "FAIL it throws",
        "ok   all is well",
    ]


def test_the_cpp_harness_refuses_to_run_no_test(tmp_path: Path) -> None:
    assert run_cpp(tmp_path, "").returncode == 2
    assert run_cpp(tmp_path, 'HKV_TEST("a") {}').returncode == 0
    assert run_cpp(tmp_path, 'HKV_TEST("a") {}', "b").returncode == 2


DOCUMENTS = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
BLOCKS = [(name, *block) for name in DOCUMENTS for block in documents.code_blocks(ROOT / name)]
NOT_RUN = [(name, *block) for name in DOCUMENTS for block in documents.code_blocks(ROOT / name, documents.NOT_RUN)]


@pytest.mark.parametrize(("name", "line", "code"), BLOCKS, ids=[f"{name}, line {line}" for name, line, _ in BLOCKS])
def test_the_code_in_the_documents_runs(name: str, line: int, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile("\n" * (line - 1) + code, name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    for promised in re.findall(r"^ *print\(.*\) +# ([^:]+?)(?:: .*)?$", code, re.MULTILINE):
        assert promised in printed


@pytest.mark.parametrize(("name", "line", "code"), NOT_RUN, ids=[f"{name}, line {line}" for name, line, _ in NOT_RUN])
def test_the_code_that_is_not_run_names_what_there_is(name: str, line: int, code: str) -> None:
    import hybridkv as hk

    for node in ast.walk(ast.parse("\n" * (line - 1) + code, name)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hk":
            assert hasattr(hk, node.attr), f"{name}, line {node.lineno}: hk.{node.attr}"


def test_the_documents_have_code() -> None:
    wanted = {
        "README.md",
        *(f"docs/{name}.md" for name in ("disk-tier", "engine", "graphs", "kernels", "running-requests", "windows")),
    }
    assert wanted <= {name for name, _, _ in BLOCKS}


def test_what_is_left_out_under_thread_sanitizer_starts_no_thread() -> None:
    marked = [
        path
        for path in (ROOT / "tests" / "cpp").rglob("*_test.cpp")
        if "// One thread: left out" in path.read_text("utf-8")
    ]
    assert len(marked) > 10
    for path in marked:
        texts = [path.read_text("utf-8")]
        headers = re.findall(r'#include "([^"]+)"', texts[0])
        texts += [
            (ROOT / "tests" / "cpp" / name).read_text("utf-8")
            for name in headers
            if (ROOT / "tests" / "cpp" / name).exists()
        ]
        assert not any("std::thread" in text or "std::jthread" in text for text in texts), path
