# SPDX-License-Identifier: Apache-2.0
"""``hybridkv probe``: the command."""

from __future__ import annotations

import argparse
import json

from hybridkv.errors import ArgumentError


def add_probe(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "probe",
        help="whether the prefix reuse of a service changes its answers, from outside",
        description="Ask an OpenAI-compatible service for the same tokens with a hit and from scratch, around windows, "
        "blocks and turns, and compare log-probabilities. Exit status: 0 consistent, 1 false hits seen, 2 refused "
        "arguments, 3 no reuse observed, 4 cannot tell. It sends some hundred requests of random words that cost what "
        "they cost.",
    )
    parser.add_argument("url", metavar="URL", help="base address, such as https://host/v1")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--model", metavar="NAME", help="default: the first of /v1/models")
    asked.add_argument(
        "--other-model",
        action="append",
        metavar="NAME",
        help="an adapter or model whose prefixes must not be shared with it; may be repeated",
    )
    asked.add_argument(
        "--form",
        default="auto",
        choices=("auto", "ids", "text", "chat"),
        help="completions with token ids or text, or chat (default: the first that is accepted)",
    )
    asked.add_argument("--window", action="append", type=int, metavar="N", help="window in tokens (default: 128, 1024)")
    asked.add_argument("--length", action="append", type=int, metavar="N", help="another prefix length in tokens")
    asked.add_argument("--vocabulary", default="1000:30000", metavar="LOW:HIGH", help="token ids (default: 1000:30000)")
    for name, value, text in (
        ("answer-tokens", 8, "tokens generated for each request"),
        ("far-tokens", 48, "tokens of a long suffix"),
        ("top", 5, "log-probabilities at each position"),
        ("samples", 2, "rounds over all trials"),
        ("controls", 8, "pairs that calibrate the tolerance"),
        ("longest", 4096, "longest prompt in tokens"),
        ("max-requests", 600, "most requests"),
        ("retries", 1, "times that a request is sent again after a passing failure"),
    ):
        asked.add_argument(f"--{name}", type=int, default=value, metavar="N", help=f"{text} (default: {value})")
    asked.add_argument("--deadline-s", type=float, default=900.0, metavar="S", help="of the probe (default: 900)")
    asked.add_argument("--timeout-s", type=float, default=60.0, metavar="S", help="of one request (default: 60)")
    asked.add_argument("--seed", type=int, metavar="N", help="of the prompts (default: fresh ones)")
    who = parser.add_argument_group("who asks")
    who.add_argument("--key-env", metavar="NAME", help="environment variable with the API key; it is never shown")
    who.add_argument("--other-key-env", metavar="NAME", help="the same for another tenant, to compute from scratch")
    who.add_argument("--reference", metavar="URL", help="the same model without prefix reuse, to compare with")
    who.add_argument("--plain-key", action="store_true", help="send the key over http to another host")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from hybridkv.printed import page, put
    from hybridkv.probe import ProbeOptions, probe

    low, _, high = args.vocabulary.partition(":")
    if not (low.isdecimal() and high.isdecimal() and len(low) < 11 and len(high) < 11):
        raise ArgumentError("vocabulary", "LOW:HIGH, two numbers", args.vocabulary)
    same = (
        "model", "form", "answer_tokens", "far_tokens", "top", "samples", "controls", "longest", "max_requests",
        "retries", "deadline_s", "timeout_s", "seed", "key_env", "other_key_env", "reference", "plain_key",
    )  # fmt: skip
    options = ProbeOptions(
        **{name: getattr(args, name) for name in same},
        other_models=tuple(args.other_model or ()),
        windows=(128, 1024) if args.window is None else tuple(args.window),
        lengths=tuple(args.length or ()),
        vocabulary=(int(low), int(high)),
    )
    report = probe(args.url, options)
    put(json.dumps(report.as_json()) if args.json else page(report.as_text().splitlines()))
    return report.exit_status
