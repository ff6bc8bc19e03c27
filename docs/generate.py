"""Write the pages that the code is the source of: `make docs`. `--check` says whether they are current.

docs/cli.md comes from the help of every command; docs/settings.md from the fields of the configuration, whose
comments in the source are what a setting means; the tables of docs/results.md from docs/results.jsonl.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import typer
import typer.main
from pydantic import BaseModel

from mcpagent.cli.main import COMMANDS, load_command
from mcpagent.config.schema import ResetSection, ServerSection, TrainConfig

_HERE = Path(__file__).parent
_WIDTH = 10_000  # of a line, so that none is broken

_COMMANDS_HEAD = """\
# Command line

Written by `make docs` from `--help`; do not edit.

Every command that prints a result takes `--json`: one JSON document on stdout, everything else on stderr.
Exit codes: 0 good, 1 the run or a check failed, 2 you have something to fix (the message says what), 130
interrupted, with a last line on stderr that says what is kept and which command goes on.
`--help` lists the options of a command, what each does, and its default.
"""

_SETTINGS_HEAD = """\
# Settings

Written by `make docs` from `mcpagent/config/schema.py`; do not edit.

Every key of a configuration file and of `--set SECTION.KEY=VALUE`: what it means, what it takes, its default.
[Configuration](configuration.md) says how files are joined and which other spellings are read. Names that
end in `_s` are seconds, `_tokens` tokens, `_chars` characters.
"""


def commands() -> str:
    """Return the page of the commands: the same text on every terminal."""
    helps = [each for name in COMMANDS for each in _helps(load_command(name), f"mcpagent {name}")]
    return "\n".join([_COMMANDS_HEAD, *(_command(*each) for each in helps)])


def _helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of a command, or of each of its subcommands."""
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _helps(subcommand, f"{path} {name}")
    if hasattr(command, "commands"):
        return
    context = typer.Context(command, info_name=path, terminal_width=_WIDTH)
    yield path, re.split(r"\n\n(?:Arguments|Options):\n", command.get_help(context).strip())[0]


def _command(path: str, text: str) -> str:
    _, *paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))  # the first is the usage
    told = [part for part in paragraphs if not part.startswith("Example: ")]
    examples = [f"`{part.removeprefix('Example: ')}`" for part in paragraphs if part.startswith("Example: ")]
    return f"## {path}\n\n{' '.join(told)}\nExample: {', '.join(examples)}.\n"


def settings() -> str:
    """Return the page of the settings: the keys of a run, then each section."""
    fields = {name: field.annotation for name, field in TrainConfig.model_fields.items()}
    sections = {name: kind for name, kind in fields.items() if isinstance(kind, type(BaseModel))}
    more = {"tools.per_server.NAME": ServerSection, "tools.per_server.NAME.reset": ResetSection}
    pages = [_section("A run", "Keys that belong to no section.", TrainConfig, without=sections)]
    for name, kind in {**sections, **more}.items():
        pages.append(_section(f"`{name}`", " ".join(inspect.cleandoc(kind.__doc__ or "").split()), kind))
    return "\n".join([_SETTINGS_HEAD, *pages])


def _section(title: str, told: str, model: Any, *, without: Iterable[str] = ()) -> str:
    schema = model.model_json_schema()
    meanings = _meanings(model)
    rows = [
        f"| `{key}` | {meanings.get(key, '')} | {_values(field, schema)} | {_default(field)} |"
        for key, field in schema["properties"].items()
        if key not in without
    ]
    table = ["| key | meaning | takes | default |", "|---|---|---|---|", *rows, ""]
    return "\n".join([f"## {title}", "", re.sub(r"\bNone\b", "`null`", told), "", *table])


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """By field, the comments above it and behind it."""
    source = textwrap.dedent(inspect.getsource(model))
    tokens = list(tokenize.generate_tokens(StringIO(source).readline))
    comments = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    meanings = dict[str, str]()
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno:
            first = node.lineno
            while first - 1 in comments and comments[first - 1].line.lstrip().startswith("#"):
                first -= 1
            lines = [*range(first, node.lineno), node.end_lineno]
            said = [comments[line].string.lstrip("# ") for line in lines if line in comments]
            meanings[node.target.id] = re.sub(r"\bNone\b", "`null`", " ".join(said)).replace("|", "\\|")
    return meanings


_WORDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _values(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return what a field takes, in words."""
    if "$ref" in field:
        field = {**schema["$defs"][field["$ref"].rpartition("/")[2]], **field}
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_values(choice, schema) for choice in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum") or [field["const"]])
    kind = field.get("type")
    if kind == "null":
        return "`null`"
    if kind == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_values(items, schema)}" if "$ref" not in items else "list of mappings"
    if kind == "object":
        return "mapping"
    bounds = [f"{sign} {field[name]}" for name, sign in _BOUNDS.items() if name in field]
    return " ".join([_WORDS.get(str(kind), "a value"), ", ".join(bounds)]).strip()


def _default(field: dict[str, Any]) -> str:
    return f"`{json.dumps(field['default'])}`" if "default" in field else "required"


# By the name of a stage in docs/results.jsonl, as `quickstart --json` has it, the head of its column.
STAGES = {
    "untrained": "untrained",
    "untrained_2_shots": "with two shots",
    "warm_start": "supervised",
    "trained": "GRPO",
    "random_rewards": "random rewards",
    "more_demonstrations": "more demonstrations",
    "rejection_sampling": "rejection sampling",
}
# What else a run says of itself.
_FACTS = {
    "model": "{}",
    "machine": "{}",
    "steps": "{} steps",
    "took": "{}",
    "seed": "seed {}",
    "date": "{}",
    "command": "`{}`",
}
_RUNS = re.compile(r"(<!-- runs: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def results() -> str:
    """Return the page of the results, each table with the runs of docs/results.jsonl that name it."""
    lines = (_HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    page = (_HERE / "results.md").read_text(encoding="utf-8")
    return _RUNS.sub(
        lambda m: f"{m[1]}\n{_runs([run for run in runs if run['table'] == m[2]])}\n{m[3]}", page
    )


def _runs(runs: list[dict[str, Any]]) -> str:
    """Return a table of success, a row for each run and decoding, and a list of what the runs were."""
    stages = [stage for stage in STAGES if any(stage in run for run in runs)]
    head = ["server", "n", *(STAGES[stage] for stage in stages)]
    rows = [head, ["---"] * len(head)]
    for number, run in enumerate(runs, 1):
        for decoding in ("greedy", "sampled"):
            successes = [run.get(stage, {}).get(decoding) for stage in stages]
            if ns := [success["n"] for success in successes if success]:
                cells = [_success(success, ns[-1]) for success in successes]
                rows.append([f"{number}. {run['server']}", f"{ns[-1]}\u00a0{decoding}", *cells])
    told = (
        f"{number}. " + "; ".join(_FACTS[fact].format(run[fact]) for fact in _FACTS if fact in run) + "\n"
        for number, run in enumerate(runs, 1)
    )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n" + "".join(told)


def _success(success: dict[str, Any] | None, n: int) -> str:
    """Return success in percent with its interval, in a line that does not break; its n if not `n`."""
    if success is None:
        return ""
    value, low, high = (f"{100 * success[key]:.3g}" for key in ("value", "low", "high"))
    text = f"{value} [{low}, {high}]" + (f" of {success['n']}" if success["n"] != n else "")
    return text.replace(" ", "\u00a0")


_PAGES = {_HERE / "cli.md": commands, _HERE / "settings.md": settings, _HERE / "results.md": results}


def main() -> int:
    is_current = True
    for path, write in _PAGES.items():
        page = write()
        if "--check" not in sys.argv[1:]:
            path.write_text(page, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != page:
            print(f"{path.name} is not what it is made from says; run: make docs", file=sys.stderr)
            is_current = False
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
