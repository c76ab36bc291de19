# SPDX-License-Identifier: Apache-2.0
"""The models that the demo replays, as the fields of their published ``config.json`` that decide the
cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridkv import CacheSpec
from hybridkv.errors import ArgumentError

_V4_FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4, 0],
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
}

_GEMMA3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "hidden_size": 2560,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model to replay.

    Attributes
    ----------
    name : str
        What the report calls it.
    make : callable
        ``make(unit_tokens)`` gives its CacheSpec.
    """

    name: str
    make: Callable[[int], CacheSpec]


def _from_config(name: str, config: dict[str, Any] | str) -> Shape:
    return Shape(name, lambda unit_tokens: CacheSpec.from_config(config, unit_tokens=unit_tokens))


BUILT_IN = {
    "deepseek-v4-flash": _from_config("DeepSeek-V4-Flash", _V4_FLASH),
    "gemma-3-4b": _from_config("Gemma-3-4B", _GEMMA3_4B),
}


def find_shape(text: str) -> Shape:
    """Find a built-in shape, or read a config.

    Parameters
    ----------
    text : str
        A name of :data:`BUILT_IN`, or the path of a Hugging Face ``config.json``.

    Returns
    -------
    Shape
        The model.

    Raises
    ------
    ArgumentError
        Neither.
    """
    if text in BUILT_IN:
        return BUILT_IN[text]
    path = Path(text)
    try:
        found = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        found = False
    if not found:
        raise ArgumentError("model", f"one of {', '.join(BUILT_IN)}, or the path of a config.json", text)
    return _from_config(path.parent.name if path.name == "config.json" else path.stem, str(path))
