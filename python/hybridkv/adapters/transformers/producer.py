# SPDX-License-Identifier: Apache-2.0
"""Who wrote a state, and with what: everything that can change its bytes and is not in its bytes.

Two states of equal names, shapes and dtypes may still mean different things. Transformers 5.8 computes another
DeepSeek-V4 from the same weights than 5.24 does; ``model.to(bfloat16)`` and ``from_pretrained(dtype=bfloat16)``
round different parameters; other weights leave every shape as it is. So a producer is a flat list of facts, compared
one by one, and a fact that is not known to be harmless counts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch
import transformers

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.layout import CacheLayout, text_config
from hybridkv.adapters.transformers.weights import checkpoint_digest, weights_digest
from hybridkv.digests import is_quantisation, is_rope
from hybridkv.formats import COSMETIC, INCOMPATIBLE, FieldDiff, KvFormat, framed_digest
from hybridkv.group import CacheGroup

__all__ = ["HARMLESS", "Producer", "checkpoint_digest", "group_format", "weights_digest"]

HARMLESS: Mapping[str, str] = {
    "transformers_version": "of whoever saved the file; the running version is a fact of its own",
    "_name_or_path": "where the files were; the weights are a fact of their own",
    "architectures": "names of classes, often empty; the layers are facts of their own",
    "id2label": "names of classes of a classifier",
    "label2id": "names of classes of a classifier",
    "problem_type": "of a classifier",
    "output_attentions": "what a forward returns, not what it keeps",
    "output_hidden_states": "what a forward returns, not what it keeps",
    "output_router_logits": "what a forward returns, not what it keeps",
    "return_dict": "what a forward returns, not what it keeps",
    "use_cache": "whether a cache is filled, not with what",
    "initializer_range": "used before the weights are loaded, which are a fact of their own",
    "router_aux_loss_coef": "weighs a loss",
    "bos_token_id": "names a token; token ids are part of every key",
    "eos_token_id": "names a token; token ids are part of every key",
    "pad_token_id": "names a token; token ids are part of every key",
}
"""Fields of a configuration that do not count, each with the reason. Every other field does, new ones included."""

_KERNEL_PACKAGES = ("causal-conv1d", "flash-attn", "flash-linear-attention", "kernels", "mamba-ssm")
"""Packages that transformers computes with where they are installed, without being asked."""

_COSMETIC_FACTS = ("torch",)
_ROWS = "rows["
_RAW_SCORES = {"deepseek_v4": ("pending", "hca_tail")}
"""Groups whose scores are kept as projected: their position bias is added when their window closes."""


@dataclass(frozen=True)
class Producer:
    """The facts behind a state.

    Parameters
    ----------
    facts : mapping of str to bool, int, float or str
        ``transformers``, ``torch``, ``model_type``, ``attention``, ``experts``, ``weights``, ``build``,
        ``build.digest``; ``kernels[...]`` versions of installed kernel packages; ``config.<field>`` of the
        configuration, flattened; ``layers[i].class`` and ``layers[i].paths`` of the cache;
        ``rows[i.path]`` dtype and shape of one row. What is not known is left out.
    """

    facts: Mapping[str, object]

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", dict(sorted(self.facts.items())))

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def of(
        cls, config: Any, layout: CacheLayout, *, model: Any = None, weights: str | None = None, past: Any = None
    ) -> Producer:
        """Gather the facts of this process.

        Parameters
        ----------
        config : transformers.PretrainedConfig
            Of the model.
        layout : CacheLayout
            Of a cache that it filled.
        model : torch.nn.Module, optional
            The model. Without it neither weights nor build are known, and states of two checkpoints of one
            configuration look alike.
        weights : str, optional
            What stands for the weights, such as :func:`checkpoint_digest`. Default: :func:`weights_digest` of
            the model, which reads all of them once.
        past : transformers.Cache, optional
            A cache that the model filled: rows are facts then, as far as it holds them.

        Returns
        -------
        Producer
        """
        text = text_config(config)
        found: dict[str, object] = {
            "transformers": str(transformers.__version__),
            "torch": str(torch.__version__),
            "model_type": text.model_type,
            "attention": getattr(text, "_attn_implementation", None),
            "experts": getattr(text, "_experts_implementation", None),
            "weights": weights_digest(model) if weights is None and model is not None else weights,
        }
        found.update((f"kernels[{name}]", version) for name, version in _kernel_packages())
        found.update(_flat("config", config.to_dict()))
        found.update(_layer_facts(layout))
        if model is not None:
            found.update(_build_facts(model))
        if past is not None:
            found.update(_row_facts(layout, past))
        return cls({name: value for name, value in found.items() if value is not None})

    @property
    def version(self) -> str:
        """Version of transformers."""
        return str(self.facts.get("transformers", ""))

    @property
    def weights(self) -> str:
        """What stands for the weights; empty where that is not known."""
        return str(self.facts.get("weights", ""))

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for every fact but cosmetic ones and rows.

        Rows follow from the rest, and a tensor is not there before its first window has closed: with them, the
        digest would depend on the position.
        """
        counted = {name: value for name, value in self.facts.items() if self._counts(name)}
        return framed_digest("hybridkv.producer", counted.items())

    @property
    def rope(self) -> dict[str, object]:
        """Facts of the configuration that are of the rotary embedding, or of its reach."""
        return {name: value for name, value in self.facts.items() if _speaks_of(name, is_rope)}

    @property
    def quantisation(self) -> dict[str, object]:
        """Facts of the configuration that say how weights and activations are quantised."""
        return {name: value for name, value in self.facts.items() if _speaks_of(name, is_quantisation)}

    @property
    def rest(self) -> bytes:
        """16 bytes that stand for what :attr:`digest` does, but for weights, :attr:`rope` and :attr:`quantisation`."""
        told = {"weights", *self.rope, *self.quantisation}
        counted = {name: value for name, value in self.facts.items() if self._counts(name) and name not in told}
        return framed_digest("hybridkv.producer.rest", counted.items())

    @property
    def model(self) -> str:
        """Architecture and configuration in one word."""
        config = {name: value for name, value in self.facts.items() if name.startswith("config.")}
        return f"{self.facts.get('model_type', '')}-{framed_digest('hybridkv.config', config.items()).hex()[:16]}"

    def differences(self, other: Producer) -> list[FieldDiff]:
        """Tell every fact in which another producer differs.

        Parameters
        ----------
        other : Producer
            The other side.

        Returns
        -------
        list of FieldDiff
            By name. A fact that only one side knows differs; rows are compared where both know them.
        """
        found = []
        for name in sorted(self.facts.keys() | other.facts.keys()):
            ours, theirs = self.facts.get(name), other.facts.get(name)
            if name.startswith(_ROWS) and (ours is None or theirs is None):
                continue
            if (type(ours), ours) != (type(theirs), theirs):
                found.append(FieldDiff(name, ours, theirs, COSMETIC if name in _COSMETIC_FACTS else INCOMPATIBLE))
        return found

    def with_rows(self, layout: CacheLayout, past: Any) -> Producer:
        """Return these facts with the rows that a cache holds."""
        others = {name: value for name, value in self.facts.items() if not name.startswith(_ROWS)}
        return Producer({**others, **dict(_row_facts(layout, past))})

    def row(self, place: str) -> object:
        """Return dtype and shape of one row of a place (``layer.path``), None where they are not known."""
        return self.facts.get(f"{_ROWS}{place}]")

    @staticmethod
    def _counts(name: str) -> bool:
        return name not in _COSMETIC_FACTS and not name.startswith(_ROWS)


def group_format(group: CacheGroup, producer: Producer, dtype: str, row_bytes: int) -> KvFormat:
    """Return the format of a group's rows as one producer writes them.

    Parameters
    ----------
    group : CacheGroup
        Of the model's spec. What its format declares is kept.
    producer : Producer
        Who writes.
    dtype : str
        Of the rows; several are joined by ``+`` in alphabetical order.
    row_bytes : int
        Of one row of one layer, in bytes.

    Returns
    -------
    KvFormat
        Two of them are equal only where the producers' digests are.
    """
    facts = producer.facts
    own = KvFormat(group.name, dtype) if group.format is None else group.format
    classes = sorted({str(facts[f"layers[{i}].class"]) for i in group.layers if f"layers[{i}].class" in facts})
    readable: dict[str, object] = {
        "producer": producer.digest.hex(),
        "classes": " ".join(classes),
        **{name: facts[name] for name in ("attention", "experts", "build") if name in facts},
    }
    family = str(facts.get("model_type", ""))
    raw = group.name in _RAW_SCORES.get(family, ())
    return replace(
        own,
        dtype=dtype,
        row_bytes=row_bytes,
        bias_added=False if raw else own.bias_added,
        roles={**(own.roles or {}), **readable},
        family=family,
        model=producer.model,
        weights=producer.weights,
        kernel_version=f"transformers {producer.version}",
        producer="hybridkv.adapters.transformers",
    )


def _speaks_of(name: str, is_of: Callable[[str], bool]) -> bool:
    """Whether a fact is of the configuration, and a name on the way to it says that it is of something."""
    kind, *path = name.split(".")
    return kind == "config" and any(map(is_of, path))


def _kernel_packages() -> Iterator[tuple[str, str]]:
    for name in _KERNEL_PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield every field below ``path``; what is None or harmless is left out, a list is one value."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in HARMLESS:
                yield from _flat(f"{path}.{name}", part)
    elif isinstance(value, float):
        yield path, _number(value)
    elif isinstance(value, (bool, int, str)):
        yield path, value
    elif value is not None:
        yield path, json.dumps(value, sort_keys=True, default=str)


def _number(value: float) -> object:
    """16 and 16.0 are one value, and so are they after a detour through JSON; infinities have no JSON."""
    if not math.isfinite(value):
        return repr(value)
    return int(value) if value.is_integer() else value


def _layer_facts(layout: CacheLayout) -> Iterator[tuple[str, object]]:
    for index, name in enumerate(layout.classes):
        yield f"layers[{index}].class", name
        paths = sorted({place.path for place in layout.places if place.layer == index})
        yield f"layers[{index}].paths", " ".join(paths)


def _build_facts(model: Any) -> Iterator[tuple[str, object]]:
    """Dtypes of everything that computes: how a model was built shows there and nowhere else."""
    held = [*model.named_parameters(), *model.named_buffers()]
    dtypes = {name: dtype_name(tensor) for name, tensor in held}
    summary = Counter(dtypes.values())
    yield "build", ", ".join(f"{count} {dtype}" for dtype, count in sorted(summary.items()))
    yield "build.digest", framed_digest("hybridkv.build", sorted(dtypes.items())).hex()
    if getattr(model, "use_kernels", False):
        yield "kernels", str(getattr(model, "kernel_config", None))


def _row_facts(layout: CacheLayout, past: Any) -> Iterator[tuple[str, object]]:
    for place in layout.places:
        held = cache_layers.get(past.layers[place.layer], place.path)
        if isinstance(held, torch.Tensor) and held.ndim > 1:
            yield f"{_ROWS}{place.name}]", row_text(place.of_layer(held, 0).unsqueeze(0))


def row_text(rows: torch.Tensor) -> str:
    """Say what one row is: the dtype, and the shape below batch and rows, [[batch, rows, ...]]."""
    return f"{dtype_name(rows)} {list(rows.shape[2:])}"


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the element type's name without the library's."""
    return str(tensor.dtype).removeprefix("torch.")
