# SPDX-License-Identifier: Apache-2.0
"""``hybridkv metrics``: what is told to Prometheus, and the files that make use of it."""

from __future__ import annotations

import argparse
import json


def add_metrics(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "metrics",
        help="every metric for Prometheus, a dashboard for Grafana, alert rules",
        description="List every metric that hk.metrics.prometheus exposes, or print a file that makes use of them.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana (JSON)")
    what.add_argument("--alerts", action="store_true", help="print alert rules for a Prometheus server (YAML)")
    what.add_argument("--table", action="store_true", help="print the metrics as a table of Markdown")
    what.add_argument("--json", action="store_true", help="print the metrics as one JSON object")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from hybridkv.metrics import alert_rules, dashboard
    from hybridkv.metrics.listing import as_json, as_table, as_text
    from hybridkv.printed import put

    if args.dashboard:
        put(json.dumps(dashboard(), indent=2))
    elif args.alerts:
        put(alert_rules().rstrip("\n"))
    elif args.json:
        put(json.dumps(as_json()))
    else:
        put(as_table() if args.table else as_text())
    return 0
