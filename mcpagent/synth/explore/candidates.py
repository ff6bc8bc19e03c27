"""What a tool may be asked about: for each parameter lists of values, the likely ones first; and whether
it tells the answer of a question if it is called with what that names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import SELECT, Relations
from mcpagent.synth.explore.leaves import Leaf, Scalar
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.run import SynthSession
from mcpagent.tools.languages import SqlGuard
from mcpagent.tools.probes.arguments import resolved
from mcpagent.tools.words import name_words
from mcpagent.tools.workspace import files_below

# How soon a list of values is tried: an enum or the user's; what the schema or a field's name says is meant;
# what the names of lists and tools say, and paths that the server was started with; any text.
GIVEN, LIKELY, POSSIBLE, GUESSED = RANKS = range(4)

_CONFIGURED = "of the configuration"
_EXAMPLES = ("examples", "quoted")  # of a schema
_QUOTED = re.compile(r"(?<!\w)['\"`]([^'\"`\n]{1,60})['\"`](?!\w)")  # in what a schema says: an example
_DEEPEST = 6  # of objects in objects
_FILES = 60  # below a folder of the configuration
_NAMINGS = 60  # calls of a tool with what a question names
_MANY = 400  # values of one list that are remembered
_REFUSALS = 5  # of values from one place, after which it is left alone


@dataclass
class Candidates:
    """Values for a parameter that come from one place, how soon they are tried (`rank`), and how often one
    was accepted or refused. Those of an example may be of nothing that there is."""

    rank: int
    is_example: bool = False
    values: dict[str, Any] = field(default_factory=dict)  # by repr
    accepted: int = 0
    refused: int = 0


@dataclass
class Slot:
    """A scalar in the arguments of a tool: where it stands, what it takes, and the candidates for it by
    label."""

    path: tuple[str | int, ...]
    name: str
    schema: JsonObject
    type: str
    is_sql: bool = False
    lists: dict[str, Candidates] = field(default_factory=dict)

    def add(self, label: str, rank: int, values: Iterable[Any]) -> None:
        """More values from a place."""
        for value in values:
            listed = self.lists.setdefault(label, Candidates(rank, label in _EXAMPLES)).values
            if len(listed) < _MANY:
                listed.setdefault(repr(value), value)

    def values(self, rank: int) -> list[tuple[Candidates, Any]]:
        """Return what is to be tried now, a value of each list in turn, with its list. If two were accepted,
        or a path that the server was started with, none that are less likely or of a list that was only
        refused."""
        lists = [each for each in self.lists.values() if each.rank <= rank]
        lists = [e for e in lists if e.rank == GIVEN or e.refused < max(_REFUSALS, e.accepted + 1)]
        started = self.lists.get(_CONFIGURED)
        if taken := [each.rank for each in lists if each.accepted > (each is not started)]:
            lists = [e for e in lists if e.rank <= min(taken) and (e.accepted or not e.refused)]
        lists.sort(key=lambda each: each.rank)
        turns = itertools.zip_longest(*([(each, v) for v in each.values.values()] for each in lists))
        return [pair for turn in turns for pair in turn if pair is not None]

    def add_own(self, places: Sequence[str] = ()) -> None:
        """Add the values that the schema gives, and the paths that the server was started with (`places`)
        with the files in them."""
        if self.type == "boolean" or isinstance(self.schema.get("enum"), list):
            enum = self.schema.get("enum", [False, True])
            self.add("enum", GIVEN, [value for value in enum if value is not None])
            return
        self.add("default", LIKELY, [self.schema["default"]] if self.schema.get("default") else [])
        self.add(_EXAMPLES[0], LIKELY, self.schema.get("examples") or [])
        quoted = _QUOTED.findall(str(self.schema.get("description", "")))
        self.add(_EXAMPLES[1], LIKELY, quoted if self.type == "string" and not self.is_sql else ())
        for place in places if self.type == "string" and not self.is_sql else ():
            files = files_below(Path(place), most=_FILES)
            self.add(_CONFIGURED, POSSIBLE, [place])
            self.add(f"below {_CONFIGURED}", LIKELY, files)
            self.add(f"in {_CONFIGURED}", POSSIBLE, [f"{place.rstrip('/')}/{file}" for file in files])

    def taking(self, value: Scalar) -> Any:
        """Return a value that another call gave, as the slot takes it."""
        return f"{SELECT}{value}" if self.is_sql else str(value) if self.type == "string" else value

    def rank_of(self, spec: ToolSpec, source: ToolSpec, leaf: Leaf, relations: Relations) -> int | None:
        """Return how soon a value that a tool gave is tried for this slot of another one; None if it is not
        for it."""
        is_number = not isinstance(leaf.value, str)
        takes = ("string", "integer", "number") if is_number else ("string",)
        if self.schema.get("enum") or self.type not in takes or isinstance(leaf.value, float):
            return None
        if self.is_sql:
            return LIKELY if isinstance(leaf.value, str) and leaf.value.isidentifier() else None
        given, asked = name_words(leaf.name), name_words(self.name)
        if relations.shared(source, leaf, spec, self.name):
            return POSSIBLE if given and {*given}.isdisjoint(asked) else LIKELY
        is_code = leaf.is_key and given[-1:] == asked[-1:]  # of `soc_codes` for `occ_code`
        is_alike = POSSIBLE if given and given[-1:] == asked[-1:] else GUESSED  # `date` for `start_date`
        return None if is_number else LIKELY if is_code or given == asked else is_alike


@dataclass(frozen=True)
class Shape:
    """The arguments that a tool needs: a template with None if `required` slots stand, and the `optional`
    slots."""

    template: JsonObject
    required: tuple[Slot, ...]
    optional: tuple[Slot, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All of them."""
        return (*self.required, *self.optional)

    def filled(self, values: Sequence[Any]) -> JsonObject:
        """Return the template with a value in each of the required slots."""
        arguments = deepcopy(self.template)
        for slot, value in zip(self.required, values, strict=True):
            node: Any = arguments
            for step in slot.path[:-1]:
                node = node[step]
            node[slot.path[-1]] = value
        return arguments

    def requiring(self, slots: Collection[Slot]) -> Shape:
        """Return the shape in which these of the optional slots have to be filled too."""
        template = {**self.template, **dict.fromkeys([slot.name for slot in slots])}
        rest = tuple(slot for slot in self.optional if slot not in slots)
        return Shape(template, (*self.required, *slots), rest)


def argument_shape(spec: ToolSpec, given: Sequence[str] = ()) -> Shape:
    """Return what there is to fill in when the tool is called; parameters with a value `given` are always
    filled."""
    root, guard = spec.input_schema, SqlGuard(spec)
    parameters = root.get("properties", {})
    sql = guard.declared or (parameters if guard.is_needed and len(parameters) == 1 else ())
    required: list[Slot] = []
    template: JsonObject = {}
    optional: list[Slot] = []
    for name, schema in parameters.items():
        slots: list[Slot] = []
        value = _template(schema, (name,), name, root, slots)
        for slot in slots:
            slot.is_sql = slot.type == "string" and slot.name in sql
        if name in root.get("required", ()) or name in given:
            template[name] = value
            required += slots
        elif len(slots) == 1 and value is None:
            optional += slots
    return Shape(template, tuple(required), tuple(optional))


def _template(
    schema: Any, path: tuple[str | int, ...], name: str, root: JsonObject, slots: list[Slot]
) -> Any:
    """Return a value of the schema with None for each scalar, of which a slot is appended to `slots`."""
    schema = resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if len(path) > _DEEPEST or kind == "null":
        return None
    if kind == "object":
        properties = schema.get("properties", {})
        needed = schema.get("required") or list(properties)[:1]
        return {key: _template(properties.get(key, {}), (*path, key), key, root, slots) for key in needed}
    if kind == "array":
        items = resolved(schema.get("items", {}), root)
        length = min(max(1, schema.get("minItems", 1)), schema.get("maxItems", 4))
        return [_template(items, (*path, n), name, root, slots) for n in range(length)]
    slots.append(Slot(path, name, schema, kind))
    return None


def naming(spec: ToolSpec, values: Sequence[str | int]) -> Iterator[JsonObject]:
    """Yield arguments in which each parameter that the tool needs is one of the values, or of its schema's;
    of a tool that needs nothing also with one parameter that it may be given."""
    shape = argument_shape(spec)
    more = [] if shape.required else shape.optional
    for each in (shape, *(shape.requiring([slot]) for slot in more)):
        columns = [
            slot.schema.get("enum")
            or [slot.taking(v) for v in map(str, values) if slot.type == "string"]
            or [int(v) for v in map(str, values) if slot.type != "string" and v.isdecimal()]
            for slot in each.required
            if slot.type in ("string", "integer", "number")
        ]
        if len(columns) == len(each.required):
            yield from map(each.filled, itertools.islice(itertools.product(*columns), _NAMINGS))


async def telling_call(
    session: SynthSession, spec: ToolSpec, named: Sequence[str | int], facts: Sequence[Any]
) -> JsonObject | None:
    """Return arguments, made of what a question names, with which the tool gives all of the facts; None if
    there are none."""
    for arguments in naming(spec, named):
        result = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
        if not result.is_error and all(stands_in(fact, result.content) for fact in facts):
            return arguments
    return None
