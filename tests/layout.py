"""Count what a reader has to hold: `python -m tests.layout` prints the tables of docs/design/0004-layout.md.

It counts the package of the folder it runs in, so that an older commit is counted from a worktree of it with
`PYTHONPATH=. python PATH/TO/tests/layout.py`.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rooms() -> dict[str, dict[str, int]]:
    """Files, lines, functions and classes of each folder of the package; of its own files under `*.py`."""
    counted: dict[str, dict[str, int]] = {}
    package = Path("mcpagent")
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).parts
        text = path.read_text(encoding="utf-8")
        room = counted.setdefault(
            parts[0] if len(parts) > 1 else "*.py",
            dict.fromkeys(("files", "lines", "functions", "classes"), 0),
        )
        nodes = list(ast.walk(ast.parse(text)))
        room["files"] += 1
        room["lines"] += len(text.splitlines())
        room["functions"] += sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in nodes)
        room["classes"] += sum(isinstance(n, ast.ClassDef) for n in nodes)
    return dict(sorted(counted.items()))


def python_lines(folder: str) -> int:
    """Lines of the Python files that git knows in a folder."""
    listed = subprocess.run(["git", "ls-files", f"{folder}/*.py"], capture_output=True, text=True, check=True)
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths if path.exists())


def configuration_keys() -> int:
    """Settings that a file can set, sections apart."""
    from pydantic import BaseModel

    from mcpagent.config.schema import TrainConfig

    def leaves(model: type[BaseModel]) -> int:
        total = 0
        for field in model.model_fields.values():
            kind: Any = field.annotation
            total += leaves(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else 1
        return total

    return leaves(TrainConfig)


def commands() -> tuple[int, int, int]:
    """Commands, the options of all of them without --help, and how many of those differ by name."""
    import typer.main

    from mcpagent.cli.main import COMMANDS, load_command

    def leaves(command: Any) -> Iterator[Any]:
        below = getattr(command, "commands", None)
        if below is None:
            yield command
        else:
            for each in below.values():
                yield from leaves(each)

    assert typer.main
    every = [leaf for name in COMMANDS for leaf in leaves(load_command(name))]
    options = [p.name for c in every for p in c.params if p.param_type_name == "option" and p.name != "help"]
    return len(every), len(options), len(set(options))


def main() -> None:
    """Print the counts as rows of Markdown tables."""
    counted = rooms()
    for room, numbers in counted.items():
        print(f"| {room} | " + " | ".join(f"{n:,}" for n in numbers.values()) + " |")
    total = {name: sum(room[name] for room in counted.values()) for name in next(iter(counted.values()))}
    print("| all | " + " | ".join(f"{n:,}" for n in total.values()) + " |")
    for folder in ("tests", "benchmarks", "examples"):
        print(f"| lines of {folder} | {python_lines(folder):,} |")
    pages = sum(len(p.read_text(encoding="utf-8").splitlines()) for p in Path("docs").rglob("*.md"))
    print(f"| lines of docs | {pages:,} |")
    print(f"| configuration keys | {configuration_keys()} |")
    print("| commands, their options, different ones | {}, {}, {} |".format(*commands()))


if __name__ == "__main__":
    main()
