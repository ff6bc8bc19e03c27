"""What errors tell a person to type next: every remedy in the code base is parsed as `mcpagent` would."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import typer

from mcpagent.config.schema import TrainConfig
from tests.house import PACKAGE
from tests.test_docs import _leaves, _parse

_TEXTS = ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp  # expressions that `_text` reads
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
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
    remedies: dict[tuple[str, str], None] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        skipped, named = set[int](), set[int]()
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in node.values}
            elif isinstance(node, ast.keyword) and node.arg == "remedy":
                named.add(id(node.value))
            elif isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
                skipped.add(id(node.body[0].value))
        for node in nodes:
            if not isinstance(node, _TEXTS) or id(node) in skipped:
                continue
            text = _text(node)
            if text and (id(node) in named or re.match(r"(?:.*: |.*, |.* or |\s*)`?mcpagent [a-z]", text)):
                remedies[f"{path.relative_to(PACKAGE)}:{node.lineno}", text] = None
    return list(remedies)


def _commands(text: str) -> Iterator[str]:
    for shown in _COMMAND.findall(text):
        words = _WORDS_AFTER.sub("", shown).strip()
        if not {"printed", "wrote"} & set(words.split()):  # a sentence about what a command did
            yield words


def test_every_command_and_option_that_a_remedy_names_exists() -> None:
    parameters = [parameter for _, leaf in _leaves() for parameter in leaf.params]
    options = {option for p in parameters for option in (*p.opts, *p.secondary_opts)}
    remedies = _remedies()
    commands = [(where, line) for where, text in remedies for line in _commands(text)]
    assert len(remedies) > 150 and len(commands) > 20
    wrong = []
    for where, line in commands:
        words = [word.replace("7", "1") for word in shlex.split(line.replace("...", ""))]
        try:
            _parse(words[1:])
        except (AssertionError, typer.TyperException) as error:
            wrong.append(f"{where}: `{line}`: {error}")
    for where, text in remedies:
        if not any(other in text for other in _OTHERS):
            wrong += [f"{where}: {option}" for option in set(_OPTION.findall(text)) - options]
    assert wrong == []


def test_a_remedy_that_changes_a_setting_names_a_key_that_exists() -> None:
    keys = {key for _, text in _remedies() for key in re.findall(r"--set ([a-z_.]+)=", text)}
    assert len(keys) > 5
    for key in keys:
        section: object = TrainConfig()
        for part in key.split("."):
            if isinstance(section, dict):  # by server
                break
            assert hasattr(section, part), key
            section = getattr(section, part)
