# SPDX-License-Identifier: Apache-2.0
"""Runs inside one version of transformers: writes images of tiny models' states, or reads those of another version."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
import transformers

from hybridkv.adapters.transformers import PrefixReuse
from hybridkv.adapters.transformers.families import FAMILIES
from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.layout import CacheLayout
from hybridkv.adapters.transformers.rebuild import rebuilt
from hybridkv.errors import HybridKVError, RestoreRefused
from image_support import compare, empty, ids_of, model_of, producer_of, runner_of, worst
from tiny_models import ARCHITECTURES

PREFIXES = (16, 48, 64, 77, 128)
FEW = (3, 17, 40)
SUFFIX = 16
DTYPES = {"float32": None, "bfloat16": torch.bfloat16}
CASES = [(name, "float32") for name in ARCHITECTURES] + [("deepseek_v4", "bfloat16")]


def write(folder: Path, weights: Path) -> dict[str, Any]:
    """Take images of every case; compare each model with itself.

    Returns
    -------
    dict
        By case: "absent" with the reason, or what a round trip inside this version came to.
    """
    found: dict[str, Any] = {}
    for name, dtype in CASES:
        case = f"{name} {dtype}"
        try:
            model = _loaded(name, dtype, weights)
        except (KeyError, ValueError, AttributeError, ImportError, RuntimeError) as why:
            found[case] = {"absent": f"{type(why).__name__}: {str(why)[:80]}"}
            continue
        found[case] = _written(folder, model, name, dtype)
    return found


def _written(folder: Path, model: Any, name: str, dtype: str) -> dict[str, Any]:
    try:
        own = compare(name, FEW, DTYPES[dtype])
        for p in PREFIXES:
            past, logits = _run(model, p)
            image = CacheImage.take(past, model.config, producer=producer_of(name, DTYPES[dtype]), tokens=ids_of(p))
            (folder / f"{name}-{dtype}-{p}.image").write_bytes(image.to_bytes())
            torch.save(logits(past), folder / f"{name}-{dtype}-{p}.logits")
    except HybridKVError as why:
        return {"refused": str(why)[:300]}
    return {"unequal": own.unequal, "reuse": _conversation(model)}


def _conversation(model: Any) -> dict[str, Any]:
    """Hold a conversation through PrefixReuse; tell how many tokens were reused, and at which turn it went wrong."""
    try:
        reuse = PrefixReuse(model, memory_bytes=2**24)
    except HybridKVError as why:
        return {"refused": str(why)[:300]}
    told: dict[str, Any] = {"reused_tokens": 0, "wrong_turns": []}
    prompt = ids_of(40, batch=1)
    for turn in range(3):
        arguments = {"max_new_tokens": 8, "do_sample": False}
        mask = torch.ones_like(prompt)
        tokens = reuse.generate(prompt, attention_mask=mask, **arguments)
        if not torch.equal(tokens, model.generate(prompt, attention_mask=mask, **arguments)):
            told["wrong_turns"].append(turn)
        told["reused_tokens"] += reuse.last_rows[0].usable
        prompt = torch.cat([tokens, ids_of(20, batch=1, seed=turn + 1)], dim=1)
    return told


def _run(model: Any, p: int) -> tuple[Any, Callable[[Any], torch.Tensor]]:
    """Return a cache after p tokens, and what goes on from such a cache."""
    ids, runner, past = ids_of(p + SUFFIX), runner_of(model), empty(model)
    runner.run(ids[:, :p], past, 0)
    return past, lambda cache: runner.run(ids[:, p:], cache, p, all_logits=True)


def read(folder: Path, weights: Path) -> dict[str, Any]:
    """Restore images of a folder, checked and unchecked.

    Returns
    -------
    dict
        By case and prefix: ``accepted`` and ``same`` (the logits are, bit for bit, those that the writer went on
        with), or ``code`` and ``fields`` that differ; ``unchecked``: with the check left out, the largest difference
        of any logit to those of this version's own state.
    """
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.image"), key=lambda file: int(file.stem.rsplit("-", 1)[1])):
        name, dtype, p = file.stem.rsplit("-", 2)
        model = _loaded(name, dtype, weights)
        past, logits = _run(model, int(p))
        ours = logits(past)
        image = CacheImage.from_bytes(file.read_bytes())
        told: dict[str, Any] = {"writer": image.producer.version}
        try:
            again = image.restore(model.config, producer=producer_of(name, DTYPES[dtype]), tokens=ids_of(int(p)))
            told["accepted"] = True
            told["same"] = torch.equal(logits(again), torch.load(file.with_suffix(".logits")))
        except RestoreRefused as why:
            told |= {"code": why.code, "fields": [[d.field, str(d.ours), str(d.theirs)] for d in why.differences]}
        told["unchecked"] = _unchecked(model, image, logits, ours)
        found[f"{name} {dtype} {p}"] = told
    return found


def _unchecked(model: Any, image: CacheImage, logits: Callable[[Any], torch.Tensor], ours: torch.Tensor) -> Any:
    """Put the parts into a cache by name, whatever they mean; tell what then changes."""
    layout = CacheLayout(model.config, empty(model))
    places = {(place.group, place.part, place.name): place for place in layout.places}
    try:
        data = {places[part.group, part.part, part.name]: part.data for part in image.parts}
        states = [{place: tensor[row] for place, tensor in data.items()} for row in range(image.batch)]
        theirs = logits(rebuilt(layout, states, image.position))
    except (KeyError, RestoreRefused, RuntimeError) as why:
        return f"does not fit: {type(why).__name__} {str(why)[:60]}"
    return worst(theirs.float(), ours.float())


def _loaded(name: str, dtype: str, weights: Path) -> Any:
    """Build a model with the weights that the newest version saved; save them where there are none yet."""
    model = model_of(name, DTYPES[dtype])
    file = weights / f"{name}-{dtype}.pt"
    if not file.exists():
        torch.save(model.state_dict(), file)
    model.load_state_dict(_renamed(torch.load(file), model.state_dict()), strict=True)
    assert model.config.model_type in FAMILIES
    return model


def _renamed(saved: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give tensors the names that this version has for them; one that cannot be told is left as it is, and refused."""
    ours = [name for name in wanted if name not in saved]
    found = {name: tensor for name, tensor in saved.items() if name in wanted}
    for name, tensor in saved.items():
        if name not in wanted:
            like = [o for o in ours if _bare(o) == _bare(name) and wanted[o].shape == tensor.shape]
            found[like[0] if len(like) == 1 else name] = tensor
    return found


def _bare(name: str) -> str:
    """A module that was taken apart later stood in the names of what it held."""
    return name.replace(".scorer.", ".")


if __name__ == "__main__":
    command, folder_name, weights_name, result = sys.argv[1:]
    answer = {"write": write, "read": read}[command](Path(folder_name), Path(weights_name))
    Path(result).write_text(json.dumps({"transformers": transformers.__version__, "cases": answer}))
