"""The repository as data for the tests of the house: its files, the imports of each module, its commands."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mcpagent"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package by the name of its folder."""
    paths = {path: path.relative_to(ROOT).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in paths.items()}


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a file, node by node; read once, since every rule looks at every file."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> frozenset[str]:
    """Everything that a file imports, at any depth: in functions and under TYPE_CHECKING too."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def own_imports(path: Path) -> set[str]:
    """The modules of mcpagent that a file imports; a name inside a module counts as that module."""
    known = modules()
    found = {name for name in imports(path) if name.partition(".")[0] == "mcpagent"}
    return {name if name in known else name.rpartition(".")[0] for name in found}


def foreign_imports(path: Path) -> set[str]:
    """The top-level modules that a file imports from other distributions."""
    names = {name.partition(".")[0] for name in imports(path)}
    return names - set(sys.stdlib_module_names) - {"mcpagent"}
