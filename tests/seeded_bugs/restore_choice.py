# SPDX-License-Identifier: Apache-2.0
"""Bugs of the choice between loading and computing."""

from __future__ import annotations

from seeded_bugs import Bug

OPTIONS, CHOICE = "csrc/cache/restore_options.cpp", "python/hybridkv/restore_choice.py"
CORE, TEST = "cache.transfers_test", "tests/python/test_restore_choice.py"

BUGS = [
    Bug(
        "history that is here paid for",
        "pages of history that are in memory count as loads",
        OPTIONS,
        "next_[g].missing += is_missing(static_cast<int>(g), block) ? 1 : 0;",
        "next_[g].missing += is_missing(static_cast<int>(g), block) ? 1 : 1;",
        CORE,
        "what each length takes",
    ),
    Bug(
        "states loaded for nothing",
        "states of a boundary count as loaded at no cost",
        OPTIONS,
        "      option.pages[static_cast<std::size_t>(g)] = missing;\n",
        "      option.pages[static_cast<std::size_t>(g)] = 0;\n",
        CORE,
        "what each length takes",
    ),
    Bug(
        "partial pages of a tip paid for",
        "the history pages of a partial unit count as loads although they are in memory",
        OPTIONS,
        "partial && is_missing(g, option.tokens / block_tokens) ? 1 : 0;",
        "partial ? 1 : 0;",
        CORE,
        "what a tip takes",
    ),
    Bug(
        "tip asked for by the whole prompt",
        "partial pages are looked for under the key of a longer sequence",
        OPTIONS,
        "const KeyChain& prefix = tip == nullptr ? keys : *tip;",
        "const KeyChain& prefix = tip != nullptr ? keys : keys;",
        CORE,
        "what a tip takes",
    ),
    Bug(
        "model of other tiers",
        "a cost model that does not know the cache's tier is taken, and no restore is ever chosen",
        "python/hybridkv/cache_base.py",
        "and self.tier.name not in model.tiers:",
        "and self.tier.name is None:",
        f"{TEST}::test_a_model_that_knows_other_tiers_alone_is_refused",
    ),
    Bug(
        "replay for nothing",
        "what a record leaves out is computed again at no cost",
        OPTIONS,
        "          std::min(option.resume_tokens, replay_from(group, layout.step_tokens(), option.tokens));",
        "          std::max(option.resume_tokens, replay_from(group, layout.step_tokens(), option.tokens));",
        CORE,
        "what each length takes",
    ),
    Bug(
        "only the longest weighed",
        "shorter lengths are no options",
        OPTIONS,
        "if (t > verdict.usable_tokens && restorable_at(question, scratch, t)) options",
        "if (t == verdict.restore_tokens) options",
        CORE,
        "what each length takes",
    ),
    Bug(
        "computing no option",
        "a model that knows computing to be quicker is not asked about it",
        CHOICE,
        "model.choose([Candidate(usable, layers=layers), *candidates], target)",
        "model.choose(candidates, target)",
        f"{TEST}::test_computing_that_is_quicker_is_said_to_be",
    ),
    Bug(
        "remedy past the choice",
        "the remedy says RESTORE although there is nothing in the plan",
        "python/hybridkv/verdict.py",
        "        if remedy is Remedy.RESTORE and self._best_restore() == 0:\n",
        "        if remedy is Remedy.WAIT and self._best_restore() == 0:\n",
        f"{TEST}::test_computing_that_is_quicker_is_said_to_be",
    ),
    Bug(
        "longest whatever it takes",
        "a plan names the longest length although the model chose another",
        "python/hybridkv/verdict.py",
        "        return chosen if chosen > self.usable_tokens else 0\n",
        "        return longest if chosen > self.usable_tokens else 0\n",
        f"{TEST}::test_what_is_here_already_is_not_paid_for",
    ),
    Bug(
        "restorable past the model",
        "restorable and prefetch load what a match says to compute",
        "python/hybridkv/transfers.py",
        "            tokens = 0 if tokens <= usable else tokens\n",
        "            tokens = tokens if tokens > usable else keys.tokens\n",
        f"{TEST}::test_computing_that_is_quicker_is_said_to_be",
    ),
    Bug(
        "any length where one was asked",
        "match_at names a length that nobody agreed on",
        "python/hybridkv/transfers.py",
        "            options = [option for option in options if option[0] == exactly]\n",
        "            options = list(options)\n",
        f"{TEST}::test_match_at_has_one_length_to_choose",
    ),
    Bug(
        "quickest of many forgotten",
        "of many lengths the first are weighed",
        CHOICE,
        "    return sorted(candidates, key=order)[: _MOST - 1]\n",
        "    return sorted(candidates, key=order, reverse=True)[: _MOST - 1]\n",
        f"{TEST}::test_of_many_the_same_is_chosen_as_of_all",
    ),
]
