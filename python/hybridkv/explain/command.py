# SPDX-License-Identifier: Apache-2.0
"""``hybridkv explain``: the command."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridkv.spec import CacheSpec
    from hybridkv.static_checks import StaticChecks

_MOST_BYTES = 1 << 28  # of a file of token ids


def add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "explain",
        help="why a prompt hits a disk store as far as it does, and which lengths a configuration can never hit",
        description="With STORE and --tokens: which lengths of this prompt a disk tier's store can serve, group by "
        "group, and what refuses the others. Without: what the configuration can never do. Nothing is changed, and the "
        "store must not be open. Of a running cache, cache.explain(keys) says more: what went, when and why.",
    )
    parser.add_argument("store", metavar="STORE", nargs="?", help="the directory of a disk tier")
    parser.add_argument("--config", required=True, metavar="CONFIG", help="a config.json, or the folder that holds it")
    parser.add_argument("--unit-tokens", default="256", metavar="N", help="tokens of a key (default: 256)")
    parser.add_argument("--dtype", default="fp8", metavar="DTYPE", help="fp8 (default), bfloat16, float32")
    prompt = parser.add_argument_group("prompt, with STORE")
    prompt.add_argument("--tokens", metavar="FILE", help="ids: a JSON list, or numbers with space between them")
    for part in ("model", "weights", "adapter"):
        prompt.add_argument(f"--{part}", default="", metavar="NAME", help="of the engine's identity (default: none)")
    prompt.add_argument("--salt-hex", default="", metavar="HEX", help="of the engine's identity (default: none)")
    prompt.add_argument("--picture", metavar="FILE", help="draw it to a png, svg or pdf too (needs matplotlib)")
    static = parser.add_argument_group("configuration, without STORE")
    static.add_argument("--memory", metavar="BYTES", help="for pages, as 80GiB: divided as size_pages does")
    static.add_argument("--context", metavar="TOKENS", help="longest request, with --memory")
    static.add_argument("--prompt", action="append", metavar="TOKENS", help="a typical length; may be repeated")
    static.add_argument("--every", metavar="TOKENS", help="CheckpointPolicy(every=)")
    static.add_argument("--step", metavar="TOKENS", help="tokens that the engine computes of a prompt at a time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from hybridkv.errors import ArgumentError
    from hybridkv.printed import page, put

    if args.store is None:
        if args.tokens is not None or args.picture is not None:
            raise ArgumentError("tokens" if args.tokens is not None else "picture", "nothing without a STORE", "a file")
        found = _static(args, _spec(args))
        put(json.dumps(found.to_json()) if args.json else page(found.lines()))
        return 0
    if args.tokens is None:
        raise ArgumentError("tokens", "a file of token ids, beside a STORE", None)
    document, text = _stored(args)
    put(json.dumps(document) if args.json else text)
    return 0


def _spec(args: argparse.Namespace) -> CacheSpec:
    from hybridkv.errors import ArgumentError
    from hybridkv.identity import Identity
    from hybridkv.planner.quantities import parse_count
    from hybridkv.spec import CacheSpec

    try:
        salt = bytes.fromhex(args.salt_hex)
    except ValueError:
        raise ArgumentError("salt_hex", "an even number of hexadecimal digits", "something else") from None
    identity = Identity(args.model, weights=args.weights, adapter=args.adapter, salt=salt)
    unit = parse_count("unit_tokens", args.unit_tokens)
    return CacheSpec.from_config(args.config, unit_tokens=unit, dtype=args.dtype, identity=identity)


def _static(args: argparse.Namespace, spec: CacheSpec) -> StaticChecks:
    from hybridkv.checkpoints import CheckpointPolicy
    from hybridkv.errors import ArgumentError
    from hybridkv.page_budget import size_pages
    from hybridkv.planner.quantities import parse_count
    from hybridkv.static_checks import static_checks

    if (args.memory is None) != (args.context is None):
        raise ArgumentError("context" if args.context is None else "memory", "both --memory and --context", "one")
    sized = None
    if args.memory is not None:
        memory = parse_count("memory", args.memory, of_bytes=True)
        sized = size_pages(spec, memory, max_tokens=parse_count("context", args.context))
    return static_checks(
        spec,
        pages=None if sized is None else sized.pages,
        blocks=None if sized is None else sized.blocks,
        prompt_tokens=[parse_count("prompt", text) for text in args.prompt or ()],
        checkpoints=None if args.every is None else CheckpointPolicy(every=parse_count("every", args.every)),
        step_tokens=None if args.step is None else parse_count("step", args.step),
    )


def _stored(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from hybridkv.errors import ArgumentError
    from hybridkv.explain.stored import explain_store
    from hybridkv.extras import PICTURE, absent
    from hybridkv.keys import block_keys
    from hybridkv.texts import path_of

    picture = None if args.picture is None else path_of("picture", args.picture)
    if picture is not None and (missing := absent(PICTURE)) is not None:
        raise ArgumentError("picture", "matplotlib to draw with", missing)
    spec = _spec(args)
    keys = block_keys(read_tokens(args.tokens), spec.unit_tokens, identity=spec.identity)
    answer = explain_store(args.store, spec, keys)
    if picture is not None:
        from hybridkv.explain.picture import save_picture

        try:
            save_picture(answer.found, picture)
        except ValueError as error:  # no such format
            raise ArgumentError("picture", "a file that ends in .png, .svg or .pdf", str(error)) from error
    return answer.to_json(), str(answer)


def read_tokens(path: str) -> list[int]:
    """Read token ids.

    Parameters
    ----------
    path : str
        A file with a JSON list of them, or with numbers and space between them; at most 256 MiB.

    Returns
    -------
    list of int

    Raises
    ------
    ArgumentError
        The file cannot be read, or holds something else, which is named.
    """
    from hybridkv.errors import ArgumentError
    from hybridkv.regular_file import read_regular

    expected = "a JSON list of token ids, or numbers with space between them"
    try:
        text = read_regular(path, _MOST_BYTES).decode()
        ids = json.loads(text) if text.lstrip()[:1] in ("[", "{", '"') else [int(word) for word in text.split()]
    except OSError as error:
        raise ArgumentError("tokens", "a file that can be read", f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError("tokens", expected, f"{path}: {error}") from error
    if not isinstance(ids, list):
        raise ArgumentError("tokens", expected, f"{path}: {type(ids).__name__}")
    for at, each in enumerate(ids):
        if type(each) is not int or not 0 <= each < 2**32:
            raise ArgumentError("tokens", "ids from 0 to 2**32 - 1", f"{path}: entry {at} is {each!r}")
    if not ids:
        raise ArgumentError("tokens", "at least one id", f"{path}: none")
    return ids
