# SPDX-License-Identifier: Apache-2.0
"""Commands that README and docs name exist, with the options that they are given there."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridkv import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
INLINE = re.compile(r"(?<!`)`(hybridkv [^`\n]+)`(?!`)")
FENCED = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def named() -> Iterator[tuple[str, str]]:
    """Give (document, command): those in a sentence, and those of blocks for a shell."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        blocks = [block.replace("\\\n", " ") for block in FENCED.findall(text)]
        lines = [line.strip() for block in blocks for line in block.splitlines()]
        for command in (*INLINE.findall(text), *(line for line in lines if line.startswith("hybridkv "))):
            yield document.name, command


COMMANDS = list(dict.fromkeys(named()))


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (commands,) = (action for action in cli.build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def wrong(command: str, known: dict[str, argparse.ArgumentParser]) -> list[str]:
    """What of a command does not exist."""
    words = shlex.split(command.replace("'", "").replace("|", " "), comments=True)[1:]
    if words and words[0].startswith("-"):
        return []  # of the program itself
    if not words or words[0] not in known:
        return [f"no command {words[:1]}"]
    options = {option for action in known[words[0]]._actions for option in action.option_strings}
    given = (word.split("=")[0].rstrip(".,:;)]").lstrip("[(") for word in words[1:])
    return [f"{words[0]} has no {word}" for word in given if word.startswith("--") and word not in options]


def test_every_command_of_the_documents_exists() -> None:
    known = parsers()
    found = [f"{name}: `{command}`: {fault}" for name, command in COMMANDS for fault in wrong(command, known)]
    assert found == []
    used = {command.split()[1] for _, command in COMMANDS if len(command.split()) > 1}
    assert known.keys() <= used, "a command that no document names"


@pytest.mark.parametrize("command", ["hybridkv explode", "hybridkv plan --no-such-option 3", "hybridkv verify --disk"])
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    assert wrong(command, parsers())
