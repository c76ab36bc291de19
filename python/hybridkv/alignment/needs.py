# SPDX-License-Identifier: Apache-2.0
"""What kernels need of the memory of a pool, as data: one row a kernel, each with where it is written down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from hybridkv.coverage import positive_int, truth
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.texts import name_of

REFUSED = "refused"
"""The kernel refuses such a pool, or reads other bytes than were written."""
SLOWER = "slower"
"""The bytes are right all the same, by a slower way."""

_ALIGNMENT_LIMIT = 2**32


@dataclass(frozen=True, kw_only=True)
class KernelNeeds:
    """What one kernel needs of a pool whose pages it reads or writes.

    A need that a kernel has not is at its default. Sizes are in bytes.

    Parameters
    ----------
    name : str
        Of the kernel, as it is named in :data:`KERNELS` and by groups.
    source : str
        Where the needs are written down.
    gpu : str, optional
        GPU family; "" where it is none's.
    base_alignment : int
        What the address of the first page of every layer is a multiple of.
    page_stride_multiple : int
        What the distance from page to page is a multiple of.
    adjacent_pages : bool
        Whether pages lie one behind the other, without padding.
    page_bytes_multiple : int
        What the bytes of a page are a multiple of.
    page_rows : tuple of int
        Rows of a page that the kernel takes; (): any number.
    row_bytes : tuple of int
        Bytes of a row with its scales, one of these; (): any.
    row_multiple : int
        What the distance from row to row, and where footers begin, are multiples of.
    packed_rows : bool
        Whether rows lie one behind the other in their page, without padding.
    footer_row_bytes : int
        Bytes of each row that lie in the footer of the page; 0: rows have none. The footer begins where the rows end.
    coordinate_bytes : int
        Bytes of one step of the kernel's 32-bit coordinates: a pool has fewer than 2**31 of them. 0: addresses are
        64 bits wide.
    dtypes : tuple of str
        Element types that it takes, as formats declare them; (): any.
    heads, head_dims : tuple of int
        Heads of keys and values, and channels of each, that it takes; (): any.
    formats : tuple of str
        Names of the row formats that it reads, in the registry of formats; (): others than are registered.
    effect : {"refused", "slower"}
        What a pool without these comes to.

    Raises
    ------
    SpecError
        A need that cannot be: a size below 1, an effect that is none.

    Examples
    --------
    >>> needs = KernelNeeds(name="mine", source="its header", base_alignment=128, page_stride_multiple=128)
    >>> needs.page_stride_multiple
    128
    """

    name: str
    source: str
    gpu: str = ""
    base_alignment: int = 1
    page_stride_multiple: int = 1
    adjacent_pages: bool = False
    page_bytes_multiple: int = 1
    page_rows: tuple[int, ...] = ()
    row_bytes: tuple[int, ...] = ()
    row_multiple: int = 1
    packed_rows: bool = False
    footer_row_bytes: int = 0
    coordinate_bytes: int = 0
    dtypes: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    head_dims: tuple[int, ...] = ()
    formats: tuple[str, ...] = ()
    effect: str = REFUSED

    def __post_init__(self) -> None:
        for name in ("name", "source"):
            name_of(f"needs.{name}", getattr(self, name), SpecError)
        for name in ("base_alignment", "page_stride_multiple", "page_bytes_multiple", "row_multiple"):
            self._put(name, positive_int(f"needs.{name}", getattr(self, name), _ALIGNMENT_LIMIT))
        for name in ("footer_row_bytes", "coordinate_bytes"):
            if getattr(self, name) != 0:
                self._put(name, positive_int(f"needs.{name}", getattr(self, name), _ALIGNMENT_LIMIT))
        for name in ("adjacent_pages", "packed_rows"):
            if (told := truth(getattr(self, name))) is None:
                raise SpecError(f"needs.{name}", "a bool", getattr(self, name))
            self._put(name, told)
        for f in fields(self):
            if str(f.type).startswith("tuple"):
                self._put(f.name, _choices(f.name, str(f.type), getattr(self, f.name)))
        if self.effect not in (REFUSED, SLOWER):
            raise SpecError("needs.effect", f"{REFUSED!r} or {SLOWER!r}", self.effect)
        if self.footer_row_bytes and not self.row_bytes:
            raise SpecError("needs.row_bytes", "bytes of a row, where it has a footer", self.row_bytes)
        if self.footer_row_bytes >= min(self.row_bytes, default=1 + self.footer_row_bytes):
            raise SpecError("needs.footer_row_bytes", f"fewer than a row, {min(self.row_bytes)}", self.footer_row_bytes)

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _choices(name: str, declared: str, values: Any) -> tuple[Any, ...]:
    where = f"needs.{name}"
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise SpecError(where, "a sequence of choices", values)
    chosen = tuple(values)
    if "int" in declared:
        return tuple(positive_int(where, value, _ALIGNMENT_LIMIT) for value in chosen)
    for value in chosen:
        name_of(where, value, SpecError)
    return chosen


_FLASHMLA = "deepseek-ai/FlashMLA, 9241ae3 and later"
_BYTES = ("float8_e4m3", "int8", "uint8")
_WIDE = ("bfloat16", "float16")

_SPARSE = KernelNeeds(
    name="sparse",
    source=f"{_FLASHMLA}: csrc/api/sparse_decode.h",
    base_alignment=16,
    packed_rows=True,
    dtypes=_BYTES,
    heads=(1,),
)

_TABLE = (
    KernelNeeds(
        name="flashmla_sm90_dense",
        source=f"{_FLASHMLA}: csrc/api/dense_decode.h (page_block_size, dtype, head_size_k); multiples of 16 are "
        "not asserted there: what TMA needs",
        gpu="sm90",
        base_alignment=16,
        page_stride_multiple=16,
        page_rows=(64,),
        row_multiple=16,
        dtypes=_WIDE,
        head_dims=(512, 576),
    ),
    replace(
        _SPARSE,
        name="flashmla_sm90_sparse_v32",
        source=f"{_FLASHMLA}: csrc/api/sparse_decode.h (stride(1) is 656), csrc/sm90/decode/sparse_fp8/"
        "splitkv_mla.cuh (loads of 128 bits), csrc/api/packed_sparse_decode.h (stride(0) % 16)",
        gpu="sm90",
        page_stride_multiple=16,
        row_bytes=(656,),
        head_dims=(576,),
        formats=("fp8_ds_mla_v32",),
    ),
    replace(
        _SPARSE,
        name="flashmla_sm90_sparse_model1",
        source=f"{_FLASHMLA}: csrc/api/sparse_decode.h (stride(1) is 584), csrc/sm90/decode/sparse_fp8/"
        "splitkv_mla.cuh (footer, loads of 128 bits)",
        gpu="sm90",
        page_stride_multiple=16,
        row_bytes=(584,),
        footer_row_bytes=8,
        head_dims=(512,),
        formats=("fp8_ds_mla_v4", "fp8_ds_mla_v4_vllm"),
    ),
    replace(
        _SPARSE,
        name="flashmla_sm100_sparse_v32",
        source=f"{_FLASHMLA}: csrc/sm100/decode/head64/config.h (TMA_K_STRIDE 656), kernel.cuh (base % 16)",
        gpu="sm100",
        page_stride_multiple=656,
        row_bytes=(656,),
        coordinate_bytes=656,
        head_dims=(576,),
        formats=("fp8_ds_mla_v32",),
    ),
    replace(
        _SPARSE,
        name="flashmla_sm100_sparse_model1",
        source=f"{_FLASHMLA}: csrc/sm100/decode/head64/config.h (TMA_K_STRIDE 576), kernel.cuh (base % 16, footer)",
        gpu="sm100",
        page_stride_multiple=576,
        row_bytes=(584,),
        footer_row_bytes=8,
        coordinate_bytes=576,
        head_dims=(512,),
        formats=("fp8_ds_mla_v4", "fp8_ds_mla_v4_vllm"),
    ),
    replace(
        _SPARSE,
        name="flashmla_sm100_v41",
        source="sgl-project/sglang 0.5.23: kernels/ops/attention/dsv4/kv_layout.py (V41, page_align 512)",
        gpu="sm100",
        page_stride_multiple=512,
        row_bytes=(528,),
        footer_row_bytes=16,
        coordinate_bytes=512,
        formats=("v41_fp8",),
    ),
    replace(
        _SPARSE,
        name="flashmla_sm100_v41_fp4",
        source="sgl-project/sglang 0.5.23: kernels/ops/attention/dsv4/kv_layout.py (V41_FP4, page_align 256)",
        gpu="sm100",
        page_stride_multiple=256,
        row_bytes=(288,),
        footer_row_bytes=32,
        coordinate_bytes=256,
        dtypes=("float4_e2m1", "uint8"),
        formats=("v41_fp4",),
    ),
    KernelNeeds(
        name="flashinfer_sm120_footer",
        source="NVIDIA/TensorRT-LLM d77955c: sparse/deepseek_v4/footer_scale_kv.py (pages of 64 x 584, contiguous); "
        "sgl-project/sglang 0.5.23: pages aligned to 512; the base is not asserted: 16 as for its siblings",
        gpu="sm120",
        base_alignment=16,
        page_stride_multiple=512,
        adjacent_pages=True,
        page_rows=(64,),
        row_bytes=(584,),
        packed_rows=True,
        footer_row_bytes=8,
        dtypes=_BYTES,
        heads=(1,),
        head_dims=(512,),
        formats=("fp8_ds_mla_v4_flashinfer", "fp8_ds_mla_v4_trtllm"),
    ),
    KernelNeeds(
        name="flashinfer_paged",
        source="flashinfer-ai/flashinfer: include/flashinfer/page.cuh (strides are free); 16 is not asserted: "
        "the width of its loads",
        base_alignment=16,
        page_stride_multiple=16,
        row_multiple=16,
        dtypes=(*_WIDE, "float8_e4m3", "float8_e5m2"),
    ),
    KernelNeeds(
        name="trtllm_gen_mla",
        source="flashinfer-ai/flashinfer: flashinfer/mla.py (block_size 32 or 64), csrc/trtllm_fmha_kernel_launcher.cu "
        "(token stride is the head dimension, page stride a multiple of it, int32 coordinates)",
        gpu="sm100",
        base_alignment=16,
        page_stride_multiple=512,
        page_rows=(32, 64),
        row_bytes=(512,),
        packed_rows=True,
        coordinate_bytes=512,
        dtypes=("float8_e4m3",),
        heads=(1,),
        head_dims=(512,),
        formats=("fp8_tensor",),
    ),
    KernelNeeds(
        name="tma",
        source="CUDA driver API: cuTensorMapEncodeTiled (globalAddress and globalStrides are multiples of 16)",
        gpu="sm90",
        base_alignment=16,
        page_stride_multiple=16,
        row_multiple=16,
    ),
    KernelNeeds(
        name="vector_copy_16",
        source="hybridkv: paged_pool.py, csrc/kernels/vector_copy.h (whole pages, 16 bytes at a time)",
        base_alignment=16,
        page_stride_multiple=16,
    ),
    KernelNeeds(
        name="vector_copy_16_rows",
        source="hybridkv: paged_pool.py, csrc/kernels/vector_copy.h (single rows; others go in shorter loads)",
        base_alignment=16,
        page_stride_multiple=16,
        row_multiple=16,
        effect=SLOWER,
    ),
    KernelNeeds(
        name="direct_io",
        source="hybridkv: csrc/tier/disk_gets.cpp, pool_arenas.py; Linux open(2) O_DIRECT, statx(2) dio_mem_align",
        base_alignment=4096,
        page_stride_multiple=4096,
        adjacent_pages=True,
        page_bytes_multiple=4096,
        effect=SLOWER,
    ),
)

KERNELS: dict[str, KernelNeeds] = {needs.name: needs for needs in _TABLE}
"""The kernels whose needs are known, by name."""


def direct_io(memory: int = 512, offset: int = 4096) -> KernelNeeds:
    """Return what reads around the page cache need where a file system tells its units (``statx``).

    Parameters
    ----------
    memory : int
        What addresses are multiples of.
    offset : int
        What sizes and offsets are multiples of.

    Returns
    -------
    KernelNeeds
        As ``KERNELS["direct_io"]``, which stands for 4096 and 4096.
    """
    memory, offset = positive_int("memory", memory, _ALIGNMENT_LIMIT), positive_int("offset", offset, _ALIGNMENT_LIMIT)
    needs = KERNELS["direct_io"]
    return replace(needs, base_alignment=memory, page_stride_multiple=memory, page_bytes_multiple=offset)


def kernel_needs(where: str, kernels: object) -> tuple[KernelNeeds, ...]:
    """Return the needs of kernels that are named, or given; none twice.

    Parameters
    ----------
    where : str
        What the refusal calls the argument.
    kernels : str, KernelNeeds, or a sequence of these
        Names of :data:`KERNELS`, or needs of one's own.

    Raises
    ------
    ArgumentError
        A name that is not known, or something else.
    """
    if isinstance(kernels, (str, KernelNeeds)):
        kernels = (kernels,)
    if isinstance(kernels, (bytes, dict)) or not isinstance(kernels, Iterable):
        raise ArgumentError(where, "kernels: names, or KernelNeeds", kernels)
    found: dict[str, KernelNeeds] = {}
    for kernel in kernels:
        if isinstance(kernel, KernelNeeds):
            needs = kernel
        elif isinstance(kernel, str) and kernel in KERNELS:
            needs = KERNELS[kernel]
        else:
            raise ArgumentError(where, f"KernelNeeds, or one of {', '.join(KERNELS)}", kernel)
        if found.setdefault(needs.name, needs) != needs:
            raise ArgumentError(where, f"one meaning of {needs.name!r}", "two")
    return tuple(found.values())
