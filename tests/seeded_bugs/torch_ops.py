# SPDX-License-Identifier: Apache-2.0
"""Bugs in the ops of torch; what catches them needs torch."""

from __future__ import annotations

from seeded_bugs import Bug

ROOM = "python/hybridkv/adapters/torch_ops"
OPS, COMPILED = "tests/python/test_torch_ops.py", "tests/python/test_torch_ops_compiled.py"

BUGS = [
    Bug(
        "output not declared as written",
        "a graph may take the buffer of a gather for one that is read",
        f"{ROOM}/registered.py",
        "Tensor page_ids, Tensor(a!) out, *, Tensor? rows=None, Tensor[]? handouts",
        "Tensor page_ids, Tensor out, *, Tensor? rows=None, Tensor[]? handouts",
        f"{OPS}::test_opcheck",
        needs="torch",
    ),
    Bug(
        "pools not declared as written",
        "a graph may read pools as they were before a scatter",
        f"{ROOM}/registered.py",
        "scatter(Tensor src, Tensor(a!)[] pools",
        "scatter(Tensor src, Tensor[] pools",
        f"{COMPILED}::test_what_is_written_is_seen",
        needs="torch",
    ),
    Bug(
        "status not declared as written",
        "a graph may take the statuses of a scatter for an input",
        f"{ROOM}/registered.py",
        'Tensor(b!)? status=None, {_PAGES}) -> ()"',
        'Tensor? status=None, {_PAGES}) -> ()"',
        f"{OPS}::test_opcheck",
        needs="torch",
    ),
    Bug(
        "carry not declared as written",
        "a graph may take the new carry for an input",
        f"{ROOM}/registered.py",
        "Tensor(b!)? new_carry",
        "Tensor? new_carry",
        f"{OPS}::test_opcheck",
        needs="torch",
    ),
    Bug(
        "shape of a page for a row",
        "rows of an array of three dimensions come back with the shape of a page",
        f"{ROOM}/shapes.py",
        "2 if rows is not None and first.dim() == 3 else 1",
        "2 if rows is not None and first.dim() == 4 else 1",
        f"{OPS}::test_the_bytes_are_those_of_numpy",
        needs="torch",
    ),
    Bug(
        "writes not told",
        "autograd uses bytes that were overwritten after it had kept them",
        f"{ROOM}/registered.py",
        "    written(out, status)\n",
        "",
        f"{OPS}::test_autograd_notices_that_a_saved_tensor_was_written",
        needs="torch",
    ),
    Bug(
        "gradient lost in silence",
        "pools that require a gradient are refused only where none is recorded",
        f"{ROOM}/gradients.py",
        "if torch.is_grad_enabled() and any(",
        "if not torch.is_grad_enabled() and any(",
        f"{OPS}::test_a_tensor_that_requires_a_gradient",
        needs="torch",
    ),
    Bug(
        "shapes refuse nothing",
        "what is wrong with shapes is told when the graph runs",
        f"{ROOM}/shapes.py",
        "    check(*known)\n",
        "    check.__call__\n",
        f"{OPS}::test_refused_by_the_call_and_from_shapes_in_the_same_words",
        needs="torch",
    ),
    Bug(
        "symbols bound to numbers",
        "each number of pages makes a graph of its own",
        f"{ROOM}/shapes.py",
        "shape, strides = tuple(item.shape), tuple(item.stride())",
        "shape, strides = tuple(map(int, item.shape)), tuple(map(int, item.stride()))",
        f"{COMPILED}::test_what_is_written_is_seen",
        needs="torch",
    ),
    Bug(
        "YaRN left out",
        "the frequencies of a rotation are those without YaRN",
        f"{ROOM}/numbers.py",
        "yarn = None if factor is None else",
        "yarn = None if factor else",
        f"{OPS}::test_the_bytes_are_those_of_numpy",
        needs="torch",
    ),
    Bug(
        "default of a layout taken for a number",
        "a row stride of -1 is one, not the default",
        f"{ROOM}/numbers.py",
        "None if number == _DEFAULT else number for number in numbers",
        "None if number is None else number for number in numbers",
        f"{OPS}::test_the_bytes_are_those_of_numpy",
        needs="torch",
    ),
    Bug(
        "null page lost on the way",
        "the null page is gathered like any other",
        f"{ROOM}/registered.py",
        "ops.gather(checked, page_ids, out, rows=rows, null_page=null_page,",
        "ops.gather(checked, page_ids, out, rows=rows,",
        f"{OPS}::test_the_bytes_are_those_of_numpy",
        needs="torch",
    ),
]
