# SPDX-License-Identifier: Apache-2.0
"""A restored cache is memory that changed its owner: kernels that will read it are asked."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is absent: images are of its caches")

import hybridkv as hk
from hybridkv.adapters.transformers.image import CacheImage
from image_support import empty, ids_of, model_of, runner_of

MANY = hk.alignment.KernelNeeds(name="huge pages", source="this test", base_alignment=1 << 31)


@pytest.fixture(scope="module")
def image() -> CacheImage:
    model = model_of("deepseek_v4")
    past = empty(model)
    runner_of(model).run(ids_of(21, batch=1), past, 0)
    return CacheImage.take(past, model.config)


def test_a_restored_cache_begins_where_its_kernels_can_take_it(image: CacheImage) -> None:
    config = model_of("deepseek_v4").config
    assert image.restore(config, kernels=["vector_copy_16", "tma"]).get_seq_length() == 21
    with pytest.raises(hk.RestoreRefused) as caught:
        image.restore(config, kernels=[MANY])
    assert caught.value.code == "misaligned" and "huge pages" in str(caught.value)
    assert " of layer " in caught.value.field
    slow = hk.alignment.KernelNeeds(name="slow", source="this test", base_alignment=1 << 30, effect="slower")
    assert image.restore(config, kernels=slow).get_seq_length() == 21
    with pytest.raises(hk.ArgumentError):
        image.restore(config, kernels="nope")
