# SPDX-License-Identifier: Apache-2.0
"""Bugs of pools that are held against the bound memory, of steps between update and replay, and of the guard."""

from __future__ import annotations

from seeded_bugs import Bug

GRAPH = "python/hybridkv/graph"
BOUND, STAGED, TOPOLOGY = f"{GRAPH}/bound.py", f"{GRAPH}/staged.py", f"{GRAPH}/topology.py"
TESTS = "tests/python/test_graph"
WRONG = f"{TESTS}_pools.py::test_a_buffer_that_is_not_the_bound_pool_is_refused"
RIGHT = f"{TESTS}_pools.py::test_a_view_of_the_bound_pool_is_taken"
CHANGES = f"{TESTS}_changes.py::test_a_change_is_wrong_in_a_replay_and_eager_by_its_reason"
GUARD = f"{TESTS}_capturing.py::test_calls_that_are_no_part_of_a_graph_are_refused_and_do_nothing"

BUGS = [
    Bug(
        "pool of a capture not held against the bound one",
        "padding in front of a pool that is bound from its start overwrites a published page",
        BOUND,
        "    if cache is None or not bound:\n",
        "    if cache is None or bound is not None:\n",
        f"{TESTS}_pools.py::test_padding_in_front_of_a_pool_that_is_bound_from_its_start_writes_into_a_published_page",
    ),
    Bug(
        "shift of a kernel not in the addresses",
        "a pool with the null page in front is taken for one that begins with the cache's page 0",
        BOUND,
        "    at = facts.address + first * stride - array.base\n",
        "    at = facts.address - array.base\n",
        RIGHT,
    ),
    Bug(
        "page that reaches into the next",
        "a view that begins inside a page and ends in the next one is taken for a part of the page",
        BOUND,
        "at + high > stride if handed > 1",
        "at + low >= stride if handed > 1",
        WRONG,
    ),
    Bug(
        "pages in another order taken",
        "a reversed view has the pages of the pool, and none where the tables say",
        BOUND,
        "    elif step != stride and handed > 1:\n        return None\n",
        "    elif step != stride and handed > 1 and abs(step) != stride:\n        return None\n",
        WRONG,
    ),
    Bug(
        "device of a pool not looked at",
        "memory of a device at the address of a host pool is taken for it",
        BOUND,
        "    return facts.host == array.host and (None",
        "    return (None",
        WRONG,
    ),
    Bug(
        "stride of a single page believed",
        "a pool of one page is refused for a stride that nobody steps",
        BOUND,
        "    elif step != stride and handed > 1:\n        return None\n",
        "    elif step != stride:\n        return None\n",
        RIGHT,
    ),
    Bug(
        "rows taken for pages",
        "a pool that kernels see as rows is refused",
        BOUND,
        "    if step != stride and 0 < step < stride and stride % step == 0:\n",
        "    if step != stride and 0 < step < stride and stride % step != 0:\n",
        RIGHT,
    ),
    Bug(
        "one buffer of a group is enough",
        "an array of a layer that is not the bound one passes beside one that is",
        BOUND,
        "        if not any(name == buffer.name for _, name in found):\n",
        "        if not found:\n",
        f"{TESTS}_pools.py::test_arrays_of_layers_are_held_against_each",
    ),
    Bug(
        "kernel without its view of the pool",
        "of two kernels that count pages differently one is trusted with the other's view",
        BOUND,
        "        if buffers and not any(name == table.name for name, _ in found):\n",
        "        if buffers and not found:\n",
        f"{TESTS}_pools.py::test_a_kernel_whose_pages_no_buffer_has_is_refused",
    ),
    Bug(
        "null page in another group's pages",
        "padding of one group writes into pages of the next one in the same array",
        BOUND,
        "            if lowest < pages[group] and array.base + lowest * stride < end:\n",
        "            if lowest < pages[group] and array.base + lowest * stride < start:\n",
        f"{TESTS}_pools.py::test_a_null_page_of_one_group_is_no_page_of_another",
    ),
    Bug(
        "null page looked for among rows",
        "where a kernel sees rows, a row of a live page is inspected for the null page",
        BOUND,
        "        return slice(page * rows, (page + 1) * rows)\n",
        "        return slice(page, page + 1)\n",
        f"{TESTS}_pools.py::test_the_null_page_is_found_in_any_view",
    ),
    Bug(
        "staged step not looked at",
        "a check passes though a request of the step has ended, and its page is another's",
        TOPOLOGY,
        "        eager = self._look(buffers) or self._step_change(route)\n",
        "        eager = self._look(buffers) or (self._step_change(route) if route else None)\n",
        CHANGES,
    ),
    Bug(
        "hand-outs of staged pages ignored",
        "a page of the tables that was taken back and handed out again is written by the replay",
        STAGED,
        "        if np.array_equal(now, self.handouts):\n",
        "        if now.size == self.handouts.size:\n",
        CHANGES,
    ),
    Bug(
        "rewound step replayed",
        "a draft that was taken back is written into a page that is free",
        STAGED,
        "            if not over and core.grown_tokens < was.grown:\n",
        "            if not over and core.grown_tokens < was.tokens:\n",
        CHANGES,
    ),
    Bug(
        "failed request replayed",
        "a request whose weights were replaced is replayed",
        STAGED,
        "            over = core.closed or core.failed\n",
        "            over = core.closed\n",
        f"{TESTS}_steps.py::test_weights_that_are_replaced_end_the_step",
    ),
    Bug(
        "tables of another request replayed",
        "a second update before the replay is not noticed",
        STAGED,
        "            if there.request != asked.request or there.tokens",
        "            if there.tokens",
        CHANGES,
    ),
    Bug(
        "tables of an earlier step replayed",
        "a step that was routed and not written replays the one before",
        STAGED,
        "there.tokens != asked.tokens or grown_apart:",
        "there.tokens > asked.tokens:",
        f"{TESTS}_steps.py::test_a_step_that_was_routed_and_not_written",
    ),
    Bug(
        "rows of an earlier step replayed",
        "a graph of a larger bucket than the update reads rows of requests that have ended",
        STAGED,
        "        if self._bucket < route.bucket:",
        "        if self._bucket > route.bucket:",
        f"{TESTS}_steps.py::test_rows_that_were_not_written_are_an_earlier_steps",
    ),
    Bug(
        "update that broke off trusted",
        "tables that are half of one step and half of another count as the earlier one",
        f"{GRAPH}/staging.py",
        "        self._step = None\n        self._write",
        "        self._write",
        f"{TESTS}_steps.py::test_an_update_that_breaks_off_leaves_no_step",
    ),
    Bug(
        "unknown group of formats ignored",
        "a format under a name that no group has is not compared with anything",
        TOPOLOGY,
        "            if name not in known:\n",
        "            if name is None:\n",
        f"{TESTS}_topology.py::test_bad_questions_are_refused_and_count_nothing",
    ),
    Bug(
        "capture ends for who leaves it",
        "a generator that another thread closes leaves its first thread refused for ever",
        "python/hybridkv/stream_capture.py",
        "        mine.remove(token)",
        "        _entries.open.pop() if _entries.open else None",
        f"{TESTS}_capturing.py::test_a_capture_is_over_for_who_entered_it_whoever_leaves_it",
    ),
    Bug(
        "effects applied in a capture",
        "a look at a fill publishes what is due, and asks an event, while a stream captures",
        "python/hybridkv/deferred.py",
        "        if not self._queues or is_capturing() or",
        "        if not self._queues or",
        f"{TESTS}_capturing.py::test_no_effect_is_applied_and_no_event_asked_in_a_capture",
    ),
    Bug(
        "lease given back in a capture",
        "pages that a graph is captured over are given back by the capture itself",
        "python/hybridkv/lease.py",
        '        refuse_capture("lease", "pages that are given back")\n',
        "",
        GUARD,
    ),
    Bug(
        "weights replaced in a capture",
        "an update of the identity gives pages back while a stream captures",
        "python/hybridkv/cache.py",
        "        self._check_deciding()\n        return changed_identity",
        "        return changed_identity",
        GUARD,
    ),
]
