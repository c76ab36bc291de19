# SPDX-License-Identifier: Apache-2.0
"""hybridkv as a policy: :class:`~hybridkv.adapters.transformers.PrefixReuse` answers the demo's requests."""

from __future__ import annotations

from typing import Any

import torch

from hybridkv.adapters.transformers import PrefixReuse
from hybridkv.demo.answers import Answer, Lost, Tokens, as_array


class Hybrid:
    """Serve requests by a :class:`PrefixReuse`.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In eval mode.
    name : str
        Of the policy.
    **options
        Of :class:`PrefixReuse`.

    Attributes
    ----------
    reuse : PrefixReuse
        Its ``cache`` has the counters.
    """

    def __init__(self, model: Any, name: str = "hybridkv", **options: Any) -> None:
        self.name = name
        self.reuse = PrefixReuse(model, **options)

    def answer(self, prompt: Tokens, count: int) -> Answer:
        """Answer a prompt; see :class:`~hybridkv.demo.answers.Policy`."""
        out = self.reuse.generate(
            torch.from_numpy(prompt)[None],
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        row = self.reuse.last_rows[0]
        lost = None
        if row.why is not None:
            why = row.why
            lost = Lost(why.check.name, why.kind.name, why.group, why.code, why.detail)
        tokens = tuple(int(token) for token in out.sequences[0, prompt.size :])
        return Answer(tokens, as_array(out.logits[0][0]), as_array(out.logits[-1][0]), row.matched, row.usable, lost)
