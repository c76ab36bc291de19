# SPDX-License-Identifier: Apache-2.0
"""Without the extras: what can be imported is imported, what cannot names the extra to install."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hybridkv
from hybridkv import extras

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("torch", "transformers", "safetensors", "vllm", "prometheus_client", "matplotlib", "rich")

BLOCKED = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that finds none of the optional packages."""
    place = str(Path(hybridkv.__file__).parents[1])
    program = f"{BLOCKED}\nsys.path.insert(0, {place!r})\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "module",
    ["hybridkv", "hybridkv.adapters", "hybridkv.cli", "hybridkv.demo.parts", "hybridkv.replay.runs", "hybridkv.policy"],
)
def test_without_any_extra_it_is_imported(module: str) -> None:
    run = without_extras(f"import {module}; print([n for n in {ABSENT!r} if n in sys.modules])")
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


def test_the_adapter_names_the_extra_to_install() -> None:
    run = without_extras("from hybridkv.adapters.transformers import PrefixReuse")
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith("ImportError: hybridkv.adapters.transformers: torch and transformers not installed: ")
    assert last.endswith("pip install '.[transformers]' in a clone of hybridkv")


def test_an_import_that_fails_otherwise_passes_as_it_is() -> None:
    with pytest.raises(ImportError, match=r"^cannot import name 'nobody'"), extras.importing("x", ()):
        from hybridkv.errors import nobody  # noqa: F401
    sentence = r"^x: nothing not installed: pip install '\.\[none\]' in a clone of hybridkv$"
    needs = [extras.Need("no_such_module", "nothing", "none")]
    with pytest.raises(ImportError, match=sentence) as raised, extras.importing("x", needs):
        import no_such_module  # noqa: F401
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_what_is_there_is_not_missed() -> None:
    there, gone = extras.Need("json.decoder", "json", "a"), extras.Need("json_gone.decoder", "gone", "b")
    assert extras.absent([there]) is None
    assert (
        extras.absent([there, gone, gone]) == "gone and gone not installed: pip install '.[b]' in a clone of hybridkv"
    )


def test_the_extras_that_are_named_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["optional-dependencies"]
    for need in (*extras.MODELS, *extras.TRANSFORMERS, *extras.TORCH, *extras.PICTURE, *extras.METRICS):
        package = need.module.partition(".")[0]
        assert any(requirement.startswith(package) for requirement in declared[need.extra])
    for name, requirements in declared.items():
        for requirement in requirements:
            assert ">=" in requirement and ",<" in requirement, f"{name}: {requirement} has no floor or no ceiling"


def test_the_ops_of_torch_name_the_extra_to_install() -> None:
    run = without_extras("import hybridkv.adapters.torch_ops")
    assert run.stderr.splitlines()[-1] == (
        "ImportError: hybridkv.adapters.torch_ops: torch not installed: pip install '.[torch]' in a clone of hybridkv"
    )


def test_the_collector_names_the_extra_to_install() -> None:
    code = (
        "import hybridkv as hk\n"
        "cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=1, page_bytes=64), blocks=4)\n"
        "print(len(hk.metrics.SERIES), 'Leak' in hk.metrics.alert_rules(), hk.metrics.dashboard()['uid'])\n"
        "hk.metrics.prometheus(cache)"
    )
    run = without_extras(code)
    assert run.stdout.split() == [str(len(hybridkv.metrics.SERIES)), "True", "hybridkv"]
    assert run.stderr.splitlines()[-1] == (
        "ImportError: hybridkv.metrics.prometheus: prometheus_client not installed: pip install '.[metrics]' in a "
        "clone of hybridkv"
    )
