# SPDX-License-Identifier: Apache-2.0
"""Ops of torch: their bytes are those of numpy, and every check of torch for custom ops passes on every sample."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import hybridkv
import torch_op_samples as samples
from hybridkv import KernelContract
from hybridkv.adapters import torch_ops
from hybridkv.adapters.torch_ops.arguments import layout_of, row_format_of
from hybridkv.reference import PUBLISHED
from torch_op_samples import CASES, SAMPLES, Sample, as_bytes, ids, some

UTILS = (
    "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)  # fmt: skip


def flat(item: Any) -> list[np.ndarray]:
    """All arrays of an argument or a result."""
    if isinstance(item, (list, tuple)):
        return [array for one in item for array in flat(one)]
    return [as_bytes(item)] if isinstance(item, torch.Tensor) else [item] if isinstance(item, np.ndarray) else []


@pytest.mark.parametrize(("op", "case"), CASES)
def test_the_bytes_are_those_of_numpy(op: str, case: str) -> None:
    ours, theirs = SAMPLES[op][case](), SAMPLES[op][case]()
    versions = [tensor._version for tensor in flat_tensors(ours)]
    got, wanted = flat(ours.run(op)), flat(samples.specified(op, theirs))
    assert [x.tobytes() for x in got] == [x.tobytes() for x in wanted] and len(got) == (
        0 if "out" in mutated(op) else 1
    )
    before = flat([*SAMPLES[op][case]().args])
    after = [flat([*sample.args, *sample.kwargs.values()]) for sample in (ours, theirs)]
    assert all(np.array_equal(x, y) for x, y in zip(*after, strict=True))
    if case != "none" and mutated(op):
        assert any(not np.array_equal(x, y) for x, y in zip(before, after[0], strict=False))
        assert versions != [tensor._version for tensor in flat_tensors(ours)]  # autograd was told


def mutated(op: str) -> str:
    """What an op writes into."""
    schema = getattr(torch.ops.hybridkv, op).default._schema
    names = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    return "out " + " ".join(names) if names else ""


def flat_tensors(sample: Sample) -> list[torch.Tensor]:
    every = [*sample.args, *sample.kwargs.values()]
    return [t for item in every for t in (item if isinstance(item, list) else [item]) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize(("op", "case"), CASES)
def test_opcheck(op: str, case: str) -> None:
    sample = SAMPLES[op][case]()
    done = opcheck(getattr(torch.ops.hybridkv, op).default, sample.args, sample.kwargs, test_utils=UTILS)
    assert done == dict.fromkeys(UTILS, "SUCCESS")


def test_every_op_has_samples_kernels_for_both_devices_and_no_gradient() -> None:
    assert set(SAMPLES) == set(torch_ops.NAMES)
    for name in torch_ops.NAMES:
        for key in ("CPU", "CUDA", "Meta", "Autograd"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hybridkv::{name}", key), (name, key)
        needs = Sample(*with_gradient(name))
        opcheck(getattr(torch.ops.hybridkv, name).default, needs.args, needs.kwargs, test_utils=UTILS[1])


def with_gradient(op: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sample in which the first tensor of floats requires a gradient."""
    if op == "compress_tail":
        sample = samples.compress(2, 4, True)
        sample.kwargs["norm_weight"].requires_grad_()
        return sample.args, sample.kwargs
    pools, page_ids = [some((4, 16), torch.float32)], ids(2)
    pools[0].requires_grad_()
    more = {
        "gather_out": (some((1, 1, 64)),),
        "fingerprint_out": (torch.zeros((1, 1), dtype=torch.int64),),
    }.get(op, ())
    return ((some((1, 1, 64)), pools, page_ids) if op == "scatter" else (pools, page_ids, *more)), {}


@pytest.mark.parametrize("op", torch_ops.NAMES)
def test_a_tensor_that_requires_a_gradient(op: str) -> None:
    """Refused where gradients are recorded, by the call and from shapes; taken for its bytes elsewhere."""
    sample = Sample(*with_gradient(op))
    name = "norm_weight" if op == "compress_tail" else "pools[0]"
    with pytest.raises(KernelContract, match="the op has none") as refused:
        sample.run(op)
    assert refused.value.argument == name
    with pytest.raises(KernelContract, match="the op has none"):
        faked(sample).run(op)
    with torch.no_grad():
        sample.run(op)
    with torch.inference_mode():
        sample.run(op)


def test_autograd_notices_that_a_saved_tensor_was_written() -> None:
    pool, weight, out = some((4, 16), torch.float32), torch.ones(16, requires_grad=True), torch.zeros(1, 1, 16)
    product = (weight * out).sum()
    torch.ops.hybridkv.gather_out([pool], ids(2), out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_tensors_of_inference() -> None:
    with torch.inference_mode():
        pool, out = some((4, 16)), torch.zeros((1, 1, 16), dtype=torch.uint8)
        torch.ops.hybridkv.gather_out([pool], ids(2), out)
        torch.ops.hybridkv.scatter(out, [pool], ids(0))
        assert torch.equal(torch.ops.hybridkv.gather([pool], ids(0)), out)


def faked(sample: Sample, mode: FakeTensorMode | None = None) -> Sample:
    """The same call on tensors without memory."""
    mode = mode or FakeTensorMode()

    def fake(item: Any) -> Any:
        if isinstance(item, list):
            return [fake(one) for one in item]
        return mode.from_tensor(item) if isinstance(item, torch.Tensor) else item

    return Sample(tuple(fake(item) for item in sample.args), {k: fake(item) for k, item in sample.kwargs.items()})


@pytest.mark.parametrize(("op", "case"), [(op, case) for op, case in CASES if op in ("gather", "fingerprint")])
def test_a_shape_function_tells_what_the_op_returns(op: str, case: str) -> None:
    real, told = SAMPLES[op][case]().run(op), faked(SAMPLES[op][case]()).run(op)
    assert (told.shape, told.dtype, told.stride()) == (real.shape, real.dtype, real.stride())


def test_tensors_of_meta() -> None:
    pool, page_ids = some((4, 3, 16)).to("meta"), ids(1, 2).to("meta")
    assert torch.ops.hybridkv.gather([pool], page_ids).shape == (1, 2, 3, 16)
    assert torch.ops.hybridkv.fingerprint([pool], page_ids).shape == (1, 2)


def put(place: int | str, value: Any) -> Callable[[Sample], None]:
    def change(sample: Sample) -> None:
        if isinstance(place, str):
            sample.kwargs[place] = value
        else:
            sample.args = (*sample.args[:place], value, *sample.args[place + 1 :])

    return change


def unlike(sample: Sample) -> None:
    pools = sample.args[0]
    sample.args = ([*pools, pools[0][:5]], *sample.args[1:])


OUT, COUNTS = ("gather_out", "hand-out counts"), ("scatter", "hand-out counts")
TAIL = ("compress_tail", "ratio 4, overlap")
REFUSED: list[tuple[tuple[str, str], str, Callable[[Sample], None]]] = [
    (("gather", "bytes"), "pools", put(0, [])),
    (("gather", "bytes"), "pools[1]", unlike),
    (("gather", "bytes"), "pools[0]", put(0, [some((6,))])),
    (("gather", "bytes"), "pools[0]", put(0, [some((6, 128))[:, ::2]])),
    (("gather", "bytes"), "page_ids", put(1, ids(1).to(torch.int16))),
    (("gather", "bytes"), "page_ids", put(1, ids(1)[None])),
    (("gather", "bytes"), "null_page", put("null_page", 6)),
    (("gather", "bytes"), "threads", put("threads", 0)),
    (("gather", "bytes"), "layout", put("layout", [2, 64])),
    (("gather", "bytes"), "layout", put("layout", [64])),
    (("gather", "rows"), "rows", put("rows", ids(1))),
    (OUT, "out", put(2, some((2, 3, 63)))),
    (OUT, "out", put(2, some((2, 3, 128))[..., ::2])),
    (OUT, "status", put("status", ids(1, 2, 3))),
    (OUT, "status", put("status", None)),
    (OUT, "missing", put("missing", "ones")),
    (OUT, "handouts", put("handouts", samples.handouts(0)[:1])),
    (OUT, "handouts[0]", put("handouts", [ids(1, 2), ids(1, 2, 3)])),
    (COUNTS, "handouts[1]", put("handouts", [samples.handouts(0)[0], ids(1, 2)])),
    (COUNTS, "src", put(0, some((3, 64)))),
    (("fingerprint", "bytes"), "pools", put(0, [some((6, 4, 72))[:, :, :60]])),
    (("fingerprint_out", "bytes"), "out", put(2, torch.zeros(1, 4))),
    (TAIL, "kv", put(0, torch.zeros(4, 41))),
    (TAIL, "out", put(2, some((3, 16)))),
    (TAIL, "starts", put("starts", torch.zeros(1, dtype=torch.int32))),
    (TAIL, "carry", put("carry", torch.zeros(1, 2, 3))),
    (TAIL, "ratio", put("ratio", 0)),
    (TAIL, "eps", put("eps", -1.0)),
    (TAIL, "rope.dims", put("rope_dims", 3)),
    (TAIL, "yarn.factor", put("yarn_factor", 0.5)),
    (TAIL, "row_format", put("row_format", "of nobody")),
    (TAIL, "row_format", put("row_format", '{"parts": [{"scale": null}]}')),
    (TAIL, "row_format", put("row_format", "fp8_ds_mla")),
]


@pytest.mark.parametrize(
    ("case", "argument", "change"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_refused_by_the_call_and_from_shapes_in_the_same_words(
    case: tuple[str, str], argument: str, change: Callable[[Sample], None]
) -> None:
    sample = SAMPLES[case[0]][case[1]]()
    change(sample)
    before = [array.tobytes() for array in flat([*sample.args, *sample.kwargs.values()])]
    said = []
    for call in (sample, faked(sample)):
        with pytest.raises(KernelContract) as refused:
            call.run(case[0])
        assert refused.value.argument == argument
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert [array.tobytes() for array in flat([*sample.args, *sample.kwargs.values()])] == before


def test_what_shapes_do_not_tell_the_call_refuses_with_its_fields() -> None:
    pool = some((4, 64))
    with pytest.raises(KernelContract) as refused:
        torch.ops.hybridkv.gather([pool], ids(1, 4))
    error = refused.value
    assert (error.argument, error.expected, error.got) == (
        "page_ids",
        "-1 or a page of the pool, below 4",
        "4 at index 1",
    )
    with pytest.raises(KernelContract, match="apart"):
        torch.ops.hybridkv.gather_out([pool], ids(1), pool[:1][None])


def test_layouts_and_row_formats_there_and_back() -> None:
    for layout in (samples.FOOTERS, hybridkv.ops.PageRows(64, 576, 640, 8, 40960), hybridkv.ops.PageRows(2, 8)):
        assert layout_of(torch_ops.schema_arguments(layout=layout)["layout"]) == layout
    assert layout_of([4, 16, -1, 8]) == samples.FOOTERS and layout_of(None) is None
    for row_format in (*PUBLISHED.values(), samples.PLAIN, PUBLISHED["fp8_ds_mla"].inline()):
        assert row_format_of(torch_ops.schema_arguments(row_format=row_format)["row_format"]) == row_format


def test_the_check_for_devices_passes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "gpu"))
    import device_torch_ops

    assert device_torch_ops.ops("cpu").startswith("3 layers")


REGISTERED = """
import sys, hybridkv
assert "torch" not in sys.modules and "hybridkv.adapters.torch_ops" not in sys.modules
import torch
assert not hasattr(torch.ops.hybridkv, "gather")
for name in [name for name in sys.modules if name.startswith("hybridkv")]: del sys.modules[name]
import hybridkv
print(torch.ops.hybridkv.gather.default)
"""


def test_they_are_there_where_torch_came_first_and_torch_is_never_imported_for_them() -> None:
    place = str(Path(hybridkv.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {place!r})\n{REGISTERED}"
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "hybridkv.gather.default\n"), run.stderr
