# SPDX-License-Identifier: Apache-2.0
"""Model families: from a Hugging Face configuration to cache groups. One file per family.

A family is a function that reads named fields and returns groups of the library's own layout: every group's
block is the unit, pages are packed without padding, and a window page holds just the trailing rows that a
boundary needs. It reads what the configuration says, or what the model's configuration class gives a field
that published files leave out (a table of defaults in the family's file); it never guesses from shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridkv.errors import SpecError, UnsupportedModel
from hybridkv.group import CacheGroup
from hybridkv.models import (
    bamba,
    deepseek_mla,
    deepseek_v4,
    gemma3,
    gpt_oss,
    jamba,
    llama,
    llama4,
    mistral,
    nemotron_h,
    qwen3_5,
    qwen3_next,
)
from hybridkv.models.reader import ConfigReader

Family = Callable[[ConfigReader, int, str], list[CacheGroup]]

FAMILIES: dict[str, Family] = {
    "bamba": bamba.groups,
    "deepseek_v2": deepseek_mla.groups,
    "deepseek_v3": deepseek_mla.groups,
    "deepseek_v32": deepseek_mla.groups_with_indexer,
    "deepseek_v4": deepseek_v4.groups,
    "gemma3": gemma3.groups,
    "gemma3_text": gemma3.groups,
    "gpt_oss": gpt_oss.groups,
    "jamba": jamba.groups,
    "llama": llama.groups,
    "llama4": llama4.groups,
    "llama4_text": llama4.groups,
    "mistral": mistral.groups,
    "nemotron_h": nemotron_h.groups,
    "qwen3_5": qwen3_5.groups,
    "qwen3_5_moe": qwen3_5.groups,
    "qwen3_5_moe_text": qwen3_5.groups,
    "qwen3_5_text": qwen3_5.groups,
    "qwen3_next": qwen3_next.groups,
}
"""By ``model_type``."""


def groups_of(config: Mapping[str, object], unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return the cache groups of a model.

    Parameters
    ----------
    config : mapping
        A Hugging Face configuration.
    unit_tokens : int
        The unit, and the block of every group.
    dtype : {"fp8", "bfloat16", "float32"}
        Rows to compute; "fp8" stands for the published row formats.

    Returns
    -------
    list of CacheGroup

    Raises
    ------
    UnsupportedModel
        No family of that ``model_type``, or a field that is missing, out of range or contradicts another; or
        fields whose products are: the error then names the field of the group or format.
    SpecError
        A compressed group lacks the tail that its overlap needs.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnsupportedModel(
            "model_type",
            f"one of {', '.join(FAMILIES)}",
            model_type,
            architectures=config.get("architectures"),
            model_type=model_type,
        )
    reader = ConfigReader(config)
    try:
        return family(reader, unit_tokens, dtype)
    except SpecError as error:
        if error.field == "groups":
            raise
        raise reader.refuse(str(error.field), error.expected, error.got) from error
