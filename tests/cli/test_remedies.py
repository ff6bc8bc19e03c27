"""What errors tell a person to type next: every remedy in the code base is parsed as `mcpagent` would."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpagent.cli.options import SETTING_OF, fitted, options_of
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from tests.house import PACKAGE
from tests.running import mcpagent
from tests.test_docs import _leaves, _parse

_COMMAND = re.compile(r"`?(mcpagent [^`;,()\n]+)`?")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_OTHERS = ("pip ", "apt ", "python -m zipfile", "--no-deps", "--max-model-len")  # of other programs
_WORDS_AFTER = re.compile(r" (?:names the lines|lists|shows|makes|them|which|then|and|or|in place) ?.*")


def _text(node: ast.expr) -> str:
    """A string of the source with `7` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join("7" if isinstance(part, ast.FormattedValue) else _text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body)}; {_text(node.orelse)}"
    return ""


def _remedies() -> list[tuple[str, str]]:
    """(file:line, text) of every remedy, and of every other string that shows a command."""
    found: dict[tuple[str, str], None] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {id(p) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for p in node.values}
        named = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == "remedy"
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.expr) or id(node) in documented or id(node) in inside:
                continue
            text = _text(node)
            if text and (id(node) in named or re.match(r"(?:.*: |.*, |.* or |\s*)`?mcpagent [a-z]", text)):
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                found[where, text] = None
    return list(found)


def _commands(text: str) -> Iterator[str]:
    for shown in _COMMAND.findall(text):
        words = _WORDS_AFTER.sub("", shown).strip()
        if not {"printed", "wrote"} & set(words.split()):  # a sentence about what a command did
            yield words


REMEDIES = _remedies()


def test_there_are_remedies_to_check() -> None:
    assert len(REMEDIES) > 150
    assert sum(bool(list(_commands(text))) for _, text in REMEDIES) > 20


@pytest.mark.parametrize(("where", "text"), REMEDIES)
def test_every_command_and_option_that_a_remedy_names_exists(where: str, text: str) -> None:
    for line in _commands(text):
        words = [word.replace("7", "1") for word in shlex.split(line.replace("...", ""))]
        _parse(words[1:])
    if any(other in text for other in _OTHERS):
        return
    known = {option for _, leaf in _leaves() for option in options_of(leaf, [])}
    assert set(_OPTION.findall(text)) <= known


@pytest.mark.parametrize(("where", "text"), [r for r in REMEDIES if "--set " in r[1]])
def test_every_setting_that_a_remedy_names_exists(where: str, text: str) -> None:
    for key, value in re.findall(r"--set ([a-z_.]+)=([^\s,;)]*)", text):
        given = {"7": "1", "VALUE": "1", "N": "1", "FILE": "x.jsonl", "NAME": "x"}.get(value, value)
        load_train_config([], [f"{key}={given or 1}"], for_training=False)


def test_a_remedy_is_said_in_the_options_of_the_command_that_failed() -> None:
    taken = {name: options_of(leaf, []) for name, leaf in _leaves()}
    assert fitted("use --device cpu, or x", taken["train"]) == "use --device cpu, or x"
    assert fitted("use --device cpu, or x", taken["eval model"]) == "use --set device=cpu, or x"
    assert fitted("start it (--servers mcp.json)", taken["train"]) == "start it (--servers mcp.json)"
    other = "first: mcpagent train --mode full"
    assert fitted(other, taken["eval model"]) == other, "another command's options are its own"
    for name, options in taken.items():
        if "--set" in options:
            for _, text in REMEDIES:
                mine = fitted(text, options).partition("mcpagent ")[0]
                foreign = (set(_OPTION.findall(mine)) & SETTING_OF.keys()) - options
                assert foreign == set(), f"{name}: {mine}"


def test_what_an_option_sets_is_a_setting() -> None:
    for key in SETTING_OF.values():
        section: object = TrainConfig()
        for part in key.split("."):
            assert hasattr(section, part), key
            section = getattr(section, part)


def test_a_real_failure_says_what_the_command_takes(tmp_path: Path) -> None:
    samples = PACKAGE.parent / "data" / "samples" / "train.jsonl"
    words = ["data", "validate", str(samples), "--no-catalog", "--calibrate", "gold", "--out", "x.jsonl"]
    settings = ["--set", "tools.cassette=nowhere", "--set", "tools.cassette_mode=strict"]
    done = mcpagent(*words, *settings, cwd=tmp_path)
    assert done.returncode == 2
    assert "record one: --set tools.cassette_mode=record" in done.stderr
