"""Commands that pages, configs and help texts show exist with their options; links lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from mcpagent.cli.main import COMMANDS, load_command
from mcpagent.config.resolve import ALIASES, FOLDED, IGNORED
from tests.house import ROOT

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "AGENTS.md")),
        *ROOT.glob("data/**/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("skills/**/*.md"),
    ]
)
_FENCE = re.compile(r"^```(?:bash|sh|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
_INLINE = re.compile(r"`((?:mcpagent|make) [^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def _commands(text: str) -> Iterator[str]:
    """The commands of a page: in blocks whole, in running text perhaps only their beginning."""
    for block in [*_FENCE.findall(text), *_INDENTED.findall(text)]:
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"^\s*(?:Example: )?\$?\s*(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?", "", line)
            if command.startswith(("mcpagent ", "make ")):
                yield re.split(r" [|>&#]|  #", command)[0]
    yield from _INLINE.findall(text)


def _shown() -> list[tuple[str, str]]:
    """(where, command) over all pages and issue forms, first lines of configs, and examples in help texts."""
    found = [
        (path.relative_to(ROOT).as_posix(), line) for path in PAGES for line in _commands(path.read_text())
    ]
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        first = path.read_text().splitlines()[0].removeprefix("# ")
        found.append((path.name, re.sub(r"^accelerate launch .* -m mcpagent\.cli\.main", "mcpagent", first)))
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        found += [(path.name, line) for line in _INLINE.findall(path.read_text())]
    for name, command in _leaves():
        lines = re.findall(r"Example: (mcpagent [^\n]+)", command.help)
        found += [(f"help of {name}", line) for line in lines]
    return sorted(set(found))


def _leaves() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its full name."""
    for name in COMMANDS:
        command: Any = load_command(name)
        subcommands = getattr(command, "commands", {})
        yield from ((f"{name} {sub}", leaf) for sub, leaf in subcommands.items())
        if not subcommands:
            yield name, command


def _parse(words: list[str]) -> None:
    """Parse a command as `mcpagent` would, without running it."""
    name, *rest = words
    assert name in COMMANDS, f"there is no command {name}"
    command: Any = load_command(name)
    while hasattr(command, "commands"):
        if not rest:
            return
        assert rest[0] in command.commands, f"{name} has no subcommand {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    if rest:
        command.make_context(name, rest)


def _mistake(line: str) -> object:
    """What is wrong with a command that is shown: targets, files or words that are not there."""
    program, *words = shlex.split(line.replace("…", "").replace(" ...", ""))
    if program == "make":
        targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
        named = [word for word in words if "=" not in word]
        missing = set(named) - targets
        for word in words:
            if word.startswith("ARGS="):
                given = shlex.split(word.removeprefix("ARGS="))
                if not named[0].startswith("test"):
                    _parse([*named, *given])
                else:  # what it is given is pytest's
                    missing |= {path for path in given if path[0] != "-" and not (ROOT / path).exists()}
        return missing
    if words not in (["--help"], ["--version"]):
        try:
            _parse(words)
        except (AssertionError, typer.TyperException) as error:
            return error
    return None


def test_a_command_that_is_shown_exists_with_its_options() -> None:
    shown = _shown()
    assert len(shown) > 200
    assert [(where, line, wrong) for where, line in shown if (wrong := _mistake(line))] == []


def test_pages_configs_and_help_texts_are_read() -> None:
    where = {where for where, _ in _shown()}
    assert {"README.md", "docs/quickstart.md", "data/README.md", "quickstart.yaml"} <= where
    assert {"AGENTS.md", "skills/mcpagent/SKILL.md", "no_tasks.yml", "refused_model.yml"} <= where
    assert {f"help of {name}" for name, _ in _leaves()} <= where, "every command has an example"


@pytest.mark.parametrize("words", [["trian"], ["data", "convert"], ["eval", "model", "x", "--sample", "3"]])
def test_a_command_that_does_not_exist_is_noticed(words: list[str]) -> None:
    with pytest.raises((AssertionError, typer.TyperException)):
        _parse(words)


def test_every_familiar_spelling_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    folded = {".".join(key) for key in FOLDED}
    familiar = {*ALIASES, *IGNORED, *folded} - {"algorithm"}
    assert {key for key in familiar if key not in page} == set()


def test_links_within_the_repository_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in _LINK.findall(page.read_text())]
    nowhere = [(p, t) for p, t in links if "://" not in t and not (p.parent / t).exists()]
    assert nowhere == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in _LINK.findall(index.read_text())}
    assert {path for path in (ROOT / "docs").rglob("*.md") if path != index} <= linked


def test_the_command_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_attack_of_the_security_page_has_its_test() -> None:
    nodes = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(nodes) > 5
    missing = [
        f"{path}::{name}"
        for path, name in nodes
        if not (ROOT / path).is_file()
        or not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M)
    ]
    assert missing == []


_MAP_ROW = re.compile(
    r"^\| (?P<question>[^|]+\?) \| \[[^]]+\]\((?P<page>[^)]+)\) "
    r"\| `(?P<file>[^`]+)` \| `(?P<name>[^`]+)` \|$",
    re.MULTILINE,
)
MAP = [match.groupdict() for match in _MAP_ROW.finditer((ROOT / "CONTRIBUTING.md").read_text())]


def _definition(file: Path, dotted: str) -> bool:
    """Whether a file defines a function or class, or a method as `Class.method`."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for name in dotted.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        body = next((node.body for node in body if isinstance(node, kinds) and node.name == name), [])
    return bool(body)


def _named_folders(page: Path) -> set[str]:
    """The folders of the package that a page names, as `mcpagent/tools/` or through a file in them."""
    return set(re.findall(r"`(mcpagent/\w+)/", page.read_text()))


def test_the_map_leads_from_a_page_to_a_folder_a_file_and_a_function() -> None:
    for row in MAP:
        assert _definition(ROOT / row["file"], row["name"]), row["question"]
        assert "/".join(row["file"].split("/")[:2]) in _named_folders(ROOT / row["page"]), row["question"]


def test_every_row_of_the_map_is_read_and_no_place_stands_twice() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Map")[2]
    assert len(MAP) == section.count("| `mcpagent/") > 20
    assert (
        len({row["question"] for row in MAP}) == len({(row["file"], row["name"]) for row in MAP}) == len(MAP)
    )


def test_every_file_that_a_page_names_exists() -> None:
    paths = {
        (page.name, path)
        for page in PAGES
        if page.name not in {"CHANGELOG.md", "0004-layout.md"}  # these name what was before, too
        for path in re.findall(
            r"`((?:mcpagent|benchmarks|configs|templates|tests)/[a-z_\d./-]+)`", page.read_text()
        )
    }
    assert len(paths) > 40
    assert {(page, path) for page, path in paths if not (ROOT / path).exists()} == set()


def test_every_term_of_the_glossary_is_in_the_code_that_it_names() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    classes = re.findall(r"`(\w+)` in `(mcpagent/[\w./]+)`", page)
    assert len(classes) >= 8
    assert [pair for pair in classes if not _definition(ROOT / pair[1], pair[0])] == []


def test_every_step_of_the_episode_page_is_a_function_that_exists() -> None:
    page = (ROOT / "docs" / "episode.md").read_text()
    steps = re.findall(r"\| `(mcpagent/[\w/]+\.py)` \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert len(steps) == page.count("| `mcpagent/") > 20
    assert [(path, name) for path, name in steps if not _definition(ROOT / path, name)] == []


_STEP = re.compile(r"^\d+\. `(mcpagent/\S+\.py)`: (.+?)(?=^\d+\. |^$)", re.MULTILINE | re.DOTALL)


def test_a_dozen_files_of_at_most_3500_lines_are_the_reading_path() -> None:
    """What the page points at in a file is a name of that file."""
    steps = _STEP.findall((ROOT / "docs" / "reading.md").read_text())
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in steps}
    assert len(texts) == len(steps) == 12
    assert sum(len(text.splitlines()) for text in texts.values()) <= 3500
    for path, advice in steps:
        assert 2 <= len(advice.strip().splitlines()) <= 3, path
        names = re.findall(r"`([A-Za-z_.]+)`", advice)
        assert names, path
        lost = {name for name in names if not re.search(rf"\b{name.rpartition('.')[2]}\b", texts[path])}
        assert lost == set(), path
