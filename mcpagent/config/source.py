"""YAML files and `--set` options as flat entries, each with the place that it came from. What is not a
configuration is a UserError with that place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from mcpagent.errors import UserError

Key = tuple[str, ...]
_MAX_NODES = 100_000  # a configuration has some hundred
_MAX_DEPTH = 12  # a configuration has four levels; deeper is an anchor that holds itself


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One setting: its dotted key as written, its value, and where it stands ("file:line" or the option)."""

    key: Key
    value: Any
    where: str

    @property
    def dotted(self) -> str:
        """The key with dots between its parts."""
        return ".".join(self.key)


class _Loader(yaml.SafeLoader):
    """YAML with numbers as YAML 1.2 reads them (PyYAML takes 1e-5 for a text) and dates left as text."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_Loader` would take for something else, such as the name 1e5."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )


def write_tree(tree: dict[str, Any]) -> str:
    """YAML that `read_file` reads as the same values, in ASCII so that no line break is lost in a text."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def read_file(path: Path) -> list[Entry]:
    """Entries of one YAML file. Raises UserError."""
    where = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError("there is no such file", where=where) from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=where) from None
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {error.start})", where=where) from None
    return _parse(text, prefix=(), place=lambda mark: where if mark is None else f"{where}:{mark.line + 1}")


def read_override(text: str) -> list[Entry]:
    """Entries of one `a.b=value`; the value is YAML. Raises UserError."""
    where = f"--set {text}"
    dotted, equals, value = text.partition("=")
    key = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(key):
        raise UserError("write it as key=value, for example --set rollout.group_size=8", where=where)
    return _parse(value, prefix=key, place=lambda _: where)


def set_option(*key: str, value: Any) -> str:
    """Return the option of a setting as a shell takes it, whatever the names in its key hold."""
    plain = list(takewhile(lambda part: part.strip() == part and not {".", "="} & {*part}, key))
    for part in reversed(key[len(plain) :]):
        value = {part: value}
    written = value if isinstance(value, str) else json.dumps(value)
    return f"--set {shlex.quote('.'.join(plain) + '=' + written)}"


_Place = Callable[[yaml.Mark | None], str]  # what an error says of a place in the text, or of all of it


def _parse(text: str, *, prefix: Key, place: _Place) -> list[Entry]:
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # a character that YAML does not allow, such as NUL
        raise UserError(f"is not valid YAML: {error}", where=place(None)) from None
    try:
        node = loader.get_single_node()
        if node is None:
            return [Entry(key=prefix, value=None, where=place(None))] if prefix else []
        if not prefix and not isinstance(node, yaml.MappingNode):
            raise UserError("a configuration is a mapping of keys to values", where=place(node.start_mark))
        _refuse_expansion(node, where=place(node.start_mark))
        return list(_walk(loader, node, prefix=prefix, place=place))
    except RecursionError:
        raise UserError("is nested too deeply", where=place(None)) from None
    except yaml.MarkedYAMLError as error:
        where = place(error.problem_mark or error.context_mark)
        raise UserError(f"is not valid YAML: {error.problem or error.context}", where=where) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: what only looks like a number, such as 0b
        raise UserError(f"is not valid YAML: {error}", where=place(None)) from None
    finally:
        loader.dispose()


def _refuse_expansion(root: yaml.Node, *, where: str) -> None:
    """Aliases of aliases stand for more nodes than there is time or memory for; those that hold themselves
    for no end of them."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        sizes[id(node)] = _MAX_NODES  # while it is counted: what it holds may be itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for pair in inner for part in (pair if isinstance(pair, tuple) else (pair,))]
        sizes[id(node)] = 1 + sum(map(size, parts))
        return sizes[id(node)]

    if size(root) > _MAX_NODES:
        raise UserError("is nested too deeply by its aliases", where=where)


def _walk(loader: _Loader, node: yaml.Node, *, prefix: Key, place: _Place) -> Iterator[Entry]:
    """The leaves below `node`; an empty mapping is one."""
    where = place(node.start_mark)
    if not isinstance(node, yaml.MappingNode) or not node.value:
        yield Entry(key=prefix, value=loader.construct_object(node, deep=True), where=where)
        return
    if len(prefix) > _MAX_DEPTH:
        raise UserError("is nested too deeply", where=where)
    _refuse_duplicates(node, place)
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = (*prefix, str(key_node.value))
        if isinstance(value_node, yaml.MappingNode):
            yield from _walk(loader, value_node, prefix=key, place=place)
        else:
            value = loader.construct_object(value_node, deep=True)
            yield Entry(key=key, value=value, where=place(key_node.start_mark))


def _refuse_duplicates(node: yaml.MappingNode, place: _Place) -> None:
    seen: dict[str, yaml.Node] = {}
    for key_node, _ in node.value:
        where = place(key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError("a key must be a plain word", where=where)
        first = seen.setdefault(key_node.value, key_node)
        if first is not key_node:
            raise UserError(
                f"{key_node.value} stands here a second time (first at line {first.start_mark.line + 1})",
                where=where,
            )
