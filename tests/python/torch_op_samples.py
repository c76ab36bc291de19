# SPDX-License-Identifier: Apache-2.0
"""Calls of the ops of torch over several shapes, dtypes and strides; each is made anew, with the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import ROPE, a_call
from hybridkv.adapters.torch_ops import schema_arguments
from hybridkv.reference import published

FOOTERS = hk.ops.PageRows(4, 16, footer_bytes=8)
PLAIN = published.plain("float32", 40, page_rows=3)


@dataclass
class Sample:
    """Arguments of one call of an op."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, name: str) -> Any:
        return getattr(torch.ops.hybridkv, name)(*self.args, **self.kwargs)


def some(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, seed: int = 0) -> torch.Tensor:
    """Random bytes; none of them makes a NaN."""
    width = dtype.itemsize
    made = torch.randint(0, 120, (*shape[:-1], shape[-1] * width), generator=torch.Generator().manual_seed(seed))
    return made.to(torch.uint8).view(dtype)


def padded(layers: int, dtype: torch.dtype = torch.uint8) -> list[torch.Tensor]:
    """Layers of one allocation: pages and rows apart from each other."""
    whole = some((6, layers, 4, 96), dtype)
    return [whole[:, layer, :, :64] for layer in range(layers)]


def ids(*numbers: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


def handouts(*pages: int) -> list[torch.Tensor]:
    """Counts of six pages, and what is expected of these: the last one is stale."""
    counts = torch.arange(6, dtype=torch.int64)
    expected = counts[list(pages)]
    expected[-1] += 1
    return [counts, expected]


def _status(count: int) -> torch.Tensor:
    return torch.full((count,), 9, dtype=torch.int32)


def _footers() -> dict[str, Any]:
    return schema_arguments(layout=FOOTERS)


PAGES: dict[str, Callable[[], tuple[list[torch.Tensor], torch.Tensor, dict[str, Any]]]] = {
    "bytes": lambda: ([some((6, 64))], ids(3, -1, 0, 3), {}),
    "padded bfloat16": lambda: (padded(3, torch.bfloat16), ids(1, 5, 2, dtype=torch.int32), {"null_page": 5}),
    "footers": lambda: ([some((6, 112))[:, :96]], ids(4, 0), _footers()),
    "four dimensions": lambda: ([some((6, 2, 2, 8), torch.float32)], ids(5, 4), {"threads": 2}),
    "none": lambda: ([some((6, 64))], ids(), {}),
}

ROWS: dict[str, Callable[[], tuple[list[torch.Tensor], torch.Tensor, dict[str, Any]]]] = {
    "rows": lambda: (padded(2), ids(3, -1, 0), {"rows": ids(3, 0, 1)}),
    "rows and footers": lambda: ([some((6, 96))], ids(4, 0), {"rows": ids(2, 3), **_footers()}),
}


def _gather(made: Any) -> Sample:
    pools, page_ids, more = made()
    return Sample((pools, page_ids), more)


def room(pools: list[torch.Tensor], page_ids: torch.Tensor, more: dict[str, Any], fill: int = 9) -> torch.Tensor:
    """A buffer for the pieces, in bytes."""
    if "layout" in more:
        piece = 24 * (1 if "rows" in more else 4)
    else:
        piece = int(np.prod(pools[0].shape[2 if "rows" in more else 1 :])) * pools[0].itemsize
    return torch.full((len(pools), len(page_ids), piece), fill, dtype=torch.uint8)


def _gather_out(made: Any, **extra: Any) -> Sample:
    pools, page_ids, more = made()
    return Sample((pools, page_ids, room(pools, page_ids, more)), {**more, **extra})


def _scatter(made: Any, **extra: Any) -> Sample:
    pools, page_ids, more = made()
    page_ids = page_ids if len(set(page_ids.tolist())) == len(page_ids) else page_ids[:3]
    src = room(pools, page_ids, more, 7)
    return Sample((src, pools, page_ids), {**more, **extra})


def compress(seed: int, ratio: int, overlap: bool, *, in_place: bool = False, **changed: Any) -> Sample:
    """One call of compress_tail: tensors in bfloat16 where numpy had their bits."""
    call = a_call(seed, ratio, overlap, PLAIN, most_rows=60, most_requests=4)
    given = {name: _tensor(value) for name, value in call.arguments.items() if isinstance(value, np.ndarray)}
    given["carry"] = torch.nan_to_num(given["carry"])
    given["new_carry"] = given["carry"] if in_place else torch.zeros_like(given["carry"])
    given |= {"ratio": ratio, "overlap": overlap, "eps": 1e-6}
    given |= schema_arguments(rope=ROPE, row_format=PLAIN) | changed
    return Sample((given.pop("kv"), given.pop("score"), _tensor(call.out())), given)


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


SAMPLES: dict[str, dict[str, Callable[[], Sample]]] = {
    "gather": {name: lambda made=made: _gather(made) for name, made in (PAGES | ROWS).items()},
    "gather_out": {name: lambda made=made: _gather_out(made) for name, made in (PAGES | ROWS).items()}
    | {
        "hand-out counts": lambda: _gather_out(ROWS["rows"], status=_status(3), handouts=handouts(3, 0, 0)),
        "skip": lambda: _gather_out(PAGES["bytes"], status=_status(4), missing="skip"),
    },
    "scatter": {name: lambda made=made: _scatter(made) for name, made in (PAGES | ROWS).items()}
    | {"hand-out counts": lambda: _scatter(ROWS["rows"], status=_status(3), handouts=handouts(3, 0, 0))},
    "fingerprint": {name: lambda made=made: _gather(made) for name, made in PAGES.items()},
    "fingerprint_out": {
        name: lambda made=made: Sample((*made()[:2], torch.zeros(len(made()[0]), len(made()[1])).long()), made()[2])
        for name, made in PAGES.items()
    },
    "compress_tail": {
        "ratio 4, overlap": lambda: compress(2, 4, True),
        "in place": lambda: compress(2, 4, True, in_place=True),
        "ratio 6": lambda: compress(3, 6, False, rope_dims=0, yarn_factor=None),
    },
}

CASES = [(op, name) for op, named in SAMPLES.items() for name in named]


def as_bytes(item: Any) -> Any:
    """Tensors as arrays of the same memory, in what numpy has; lists of them too."""
    if isinstance(item, (list, tuple)):
        return [as_bytes(one) for one in item]
    if not isinstance(item, torch.Tensor):
        return item
    if item.dim() > 3:  # pages of more dimensions than the specification takes
        item = item.view(len(item), -1)
    if item.dtype == torch.bfloat16:
        return item.view(torch.int16).numpy().view(np.uint16)
    return item.numpy()


def specified(op: str, sample: Sample) -> Any:
    """Run the specification, of compress_tail the kernel, on the memory of a sample; return what the op returns."""
    more = {name: as_bytes(value) for name, value in sample.kwargs.items()}
    more.pop("threads", None)
    if op == "compress_tail":
        rope = None if more["rope_dims"] == 0 else ROPE
        strange = [name for name in more if name.startswith(("rope_", "yarn_"))]
        given = {name: value for name, value in more.items() if name not in strange}
        return hk.ops.compress_tail(*as_bytes(sample.args), **given | {"rope": rope, "row_format": PLAIN})
    if "layout" in more:
        more["layout"] = FOOTERS
    if op in ("gather", "fingerprint"):
        pools, page_ids = sample.args
        out = room(pools, page_ids, sample.kwargs).numpy()
        if op == "fingerprint":
            out = np.zeros((len(pools), len(page_ids)), np.uint64)
        getattr(ref, op)(as_bytes(pools), as_bytes(page_ids), out, **more)
        return out.view(np.int64) if op == "fingerprint" else out
    args = as_bytes(sample.args)
    if op == "fingerprint_out":
        args[2] = args[2].view(np.uint64)
    return getattr(ref, op.removesuffix("_out"))(*args, **more)
