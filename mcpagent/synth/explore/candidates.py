"""What a tool may be asked about: for each parameter lists of values, the likely ones first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import SELECT, is_number_for
from mcpagent.synth.explore.leaves import Leaf
from mcpagent.synth.explore.paging import is_cursor, is_limit, is_paging
from mcpagent.synth.explore.words import GENERIC, IDENTIFIERS, VERBS, name_words, words_of
from mcpagent.tools.probes.arguments import resolved
from mcpagent.tools.workspace import files_below

# How soon a list of values is tried: an enum, what names or the user say, what may be meant, what is made up.
GIVEN, LIKELY, POSSIBLE, GUESSED = range(4)

_CONFIGURED = "of the configuration"
_DEEPEST = 6  # of objects in objects
_DRAWN = 60  # values that are made up for a parameter
_MANY = 400  # values of one list that are remembered
_REFUSALS = 5  # of values from one place, after which it is left alone
_ALL = 100  # items of a list with a limit, to see all of it
_VAGUE = IDENTIFIERS | GENERIC | words_of("path url type of")

# What a name or a description says of the form of a value, and what a value of that form looks like.
_ASKED = (
    ("time", r"\bhh:mm|24-hour"),
    ("date", r"yyyy-mm-dd|\bdates?\b|\bday\b|timestamp"),
    ("timezone", r"time ?zones?\b|\biana\b|\btz\b"),
    ("url", r"\bur[il]s?\b|\blink\b"),
    ("sql", r"\bsql\b|\bselect\b"),
    ("expression", r"\bexpressions?\b|\bformula\b|\bequation\b"),
    ("path", r"\b(path|file|folder|directory|dir|repo|repository|filename|filepath|database)s?\b"),
    ("text", r"\b(text|string|message|content|sentence|input|word)s?\b"),
)
_LOOKS = {
    "url": r"[a-z][a-z0-9+.-]*://\S+",
    "date": r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d\S*)?",
    "time": r"\d\d:\d\d(:\d\d)?",
    "timezone": r"(Africa|America|Asia|Atlantic|Australia|Europe|Pacific|Etc)/[A-Z]\w+(/\w+)?",
    "path": r"(?:\S*/\S*|[\w-]+\.[A-Za-z]\w{0,4})",
}
_ZONES = (
    *("America/New_York", "Europe/London", "Asia/Tokyo", "Australia/Sydney", "Asia/Kolkata", "Africa/Cairo"),
)
_SENTENCES = (
    *("hello world", "lighthouse", "winter garden", "Fresh bread and olives", "Seven boats came back"),
    *("The gate stays open", "Two crates are missing", "Snow fell all night", "Ask again on Monday"),
)

# Lists of values in a description or in a refusal.
_QUOTED = re.compile(r"(?<!\w)['\"`‘“]([^'\"`’”\n]{1,60})['\"`’”](?!\w)")
_LISTED = re.compile(
    r"(?:e\.g\.?,?|such as|one of|options?(?: are)?|supported(?: \w+)?|valid(?: \w+)?|available(?: \w+)?"
    r"|must be|should be|choose from|either|examples?|like)\s*:?\s*\[?([^.;()\n\]]{2,600})",
    re.I,
)
_BARE = re.compile(r"[A-Za-z0-9_°/+.#-]+(?: [A-Za-z0-9_-]+)?")
_MOST_LISTED = 60  # values that a text names


@dataclass
class Candidates:
    """Values for a parameter that come from one place, how soon they are tried (`rank`), and how often one
    was accepted or refused."""

    rank: int
    values: dict[str, Any] = field(default_factory=dict)  # by repr
    accepted: int = 0
    refused: int = 0

    @property
    def is_open(self) -> bool:
        """Return True if more of them may be tried; of what the schema or the user gives always."""
        return self.rank == GIVEN or self.refused < max(_REFUSALS, self.accepted + 1)


@dataclass
class Slot:
    """A scalar in the arguments of a tool: where it stands, what it takes, and the candidates for it by
    label."""

    path: tuple[str | int, ...]
    name: str
    schema: JsonObject
    about: str
    type: str
    form: str = ""
    lists: dict[str, Candidates] = field(default_factory=dict)

    def add(self, label: str, rank: int, values: Iterable[Any]) -> None:
        """More values from a place."""
        for value in values:
            listed = self.lists.setdefault(label, Candidates(rank)).values
            if len(listed) < _MANY:
                listed.setdefault(repr(value), value)

    def likeliest(self, rank: int) -> list[tuple[Candidates, Any]]:
        """Return the values that are as likely as those of a list that was accepted, of no list that was only
        refused; if none was accepted, those of the lowest rank that has any."""
        taken = [each.rank for each in self.lists.values() if each.accepted]
        if not taken:
            return next(filter(None, map(self.values, range(rank + 1))), [])
        lists = [each for each in self.lists.values() if each.rank <= min(taken) and each.is_open]
        return _in_turn([each for each in lists if each.accepted or not each.refused])

    def values(self, rank: int) -> list[tuple[Candidates, Any]]:
        """Return what is to be tried now, each with its list. If two were accepted, or a path that the server
        was started with, none that are less likely or of a list that was only refused."""
        lists = [each for each in self.lists.values() if each.rank <= rank and each.is_open]
        started = self.lists.get(_CONFIGURED)
        if taken := [each.rank for each in lists if each.accepted > (each is not started)]:
            lists = [e for e in lists if e.rank <= min(taken) and (e.accepted or not e.refused)]
        return _in_turn(lists)


def _in_turn(lists: Sequence[Candidates]) -> list[tuple[Candidates, Any]]:
    """Return one value of each list in turn, each with its list, the likelier lists first."""
    lists = sorted(lists, key=lambda each: each.rank)
    turns = itertools.zip_longest(*([(each, v) for v in each.values.values()] for each in lists))
    return [pair for turn in turns for pair in turn if pair is not None]


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
    root = spec.input_schema
    # What the lines of a docstring say of parameters: `unit: the unit to convert to`.
    documented = dict(
        re.findall(
            r"^\s*[-*]?\s*`?(\w+)`?\s*(?:\([^)]*\))?\s*(?::|-)\s+(.+)$", spec.description, re.MULTILINE
        )
    )
    required: list[Slot] = []
    template: JsonObject = {}
    optional: list[Slot] = []
    for name, schema in root.get("properties", {}).items():
        slots: list[Slot] = []
        value = _template(schema, (name,), name, root, documented.get(name, ""), slots)
        for slot in slots:
            slot.form = _form_asked(slot, spec) if slot.type == "string" else ""
        if name in root.get("required", ()) or name in given:
            template[name] = value
            required += slots
        elif len(slots) == 1 and value is None:
            optional += slots
    return Shape(template, tuple(required), tuple(optional))


def _template(
    schema: Any, path: tuple[str | int, ...], name: str, root: JsonObject, about: str, slots: list[Slot]
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
        return {
            key: _template(properties.get(key, {}), (*path, key), key, root, about, slots) for key in needed
        }
    if kind == "array":
        items = resolved(schema.get("items", {}), root)
        if items.get("type") not in ("number", "integer"):
            length = min(max(1, schema.get("minItems", 1)), schema.get("maxItems", 4))
            return [_template(items, (*path, n), name, root, about, slots) for n in range(length)]
        schema, kind = {**schema, "items": items}, "numbers"
    slots.append(Slot(path, name, schema, str(schema.get("description") or about), kind))
    return None


def _form_asked(slot: Slot, spec: ToolSpec) -> str:
    """The form of what a parameter takes, by its format, name and description; empty if that is not said."""
    name = " ".join(name_words(slot.name))
    if name in ("query", "sql", "statement") and re.search(
        r"\bsql\b|\bselect\b", f"{spec.description} {slot.about}", re.I
    ):
        return "sql"
    said = (str(slot.schema.get("format", "")), name, slot.about)
    return next((form for text in said for form, pattern in _ASKED if re.search(pattern, text, re.I)), "")


def value_form(value: object) -> str:
    """Return the form of a value; empty for a plain word."""
    if not isinstance(value, str):
        return "number"
    looks = next((form for form, pattern in _LOOKS.items() if re.fullmatch(pattern, value.strip())), "")
    return looks or ("text" if " " in value.strip() else "")


def add_own_values(slot: Slot, spec: ToolSpec, *, seed: int, places: Sequence[str] = ()) -> None:
    """The values that the schema and the descriptions give, the paths that the server was started with
    (`places`) and the files in them, and those that are drawn for a form."""
    schema, form = slot.schema, slot.form
    if slot.type == "boolean" or isinstance(schema.get("enum"), list):
        slot.add("enum", GIVEN, [value for value in schema.get("enum", [False, True]) if value is not None])
        return
    slot.add("examples", LIKELY, schema["examples"] if isinstance(schema.get("examples"), list) else [])
    slot.add("default", LIKELY, [schema["default"]] if schema.get("default") not in (None, "") else [])
    rng = Random(derive_seed(seed, "drawn", spec.dotted, list(map(str, slot.path))))
    if slot.type in ("number", "integer", "numbers"):
        slot.add("all", LIKELY, [min(_ALL, schema.get("maximum", _ALL))] if is_limit(slot.name) else [])
        is_known = is_paging(slot.name) or "id" in name_words(slot.name)  # pages are followed, not guessed
        slot.add("drawn", GUESSED if is_known else POSSIBLE, _numbers(slot, rng))
    elif slot.type == "string":
        said = [v for v in listed_values(slot.about) if form not in _LOOKS or value_form(v) in (form, "")]
        slot.add("described", LIKELY, said)
        if not form:  # of the tool, by which something else may be meant
            slot.add("named in the description", POSSIBLE, listed_values(spec.description))
        slot.add(_CONFIGURED, LIKELY, places if form in ("path", "url") else ())
        for place in places if form == "path" else ():
            files = files_below(Path(place), most=_DRAWN)
            slot.add(
                "in a folder of the configuration", POSSIBLE, [f"{place.rstrip('/')}/{f}" for f in files]
            )
            slot.add("below a folder of the configuration", POSSIBLE, files)
        slot.add("drawn", GUESSED if form in ("text", "") else LIKELY, _texts(form, rng))


def _numbers(slot: Slot, rng: Random) -> Iterator[Any]:
    schema = slot.schema["items"] if slot.type == "numbers" else slot.schema
    low = int(schema.get("minimum", schema.get("exclusiveMinimum", 1) + 1))
    high = int(max(low, min(schema.get("maximum", low + 199), low + 998)))
    for _ in range(_DRAWN):
        yield [rng.randint(low, high) for _ in range(3)] if slot.type == "numbers" else rng.randint(low, high)


def _texts(form: str, rng: Random) -> Iterator[str]:
    """Texts of a form; none if only the server knows what there is."""
    if form in ("timezone", "text", ""):
        yield from _ZONES if form == "timezone" else _SENTENCES
    for _ in range(_DRAWN if form in ("date", "time", "expression") else 0):
        one, other, third = rng.randint(3, 99), rng.randint(3, 99), rng.randint(2, 60)
        if form == "date":
            yield f"{2019 + one % 8}-{1 + other % 12:02}-{1 + third % 28:02}"
        elif form == "time":
            yield f"{one % 24:02}:{5 * (other % 12):02}"
        else:
            yield rng.choice((f"{one} * {other} + {third}", f"({one} + {other}) * {third}"))


def listed_values(text: str) -> list[str]:
    """Return the values that a text names: in quotes, or in a list after "one of", "e.g." and the like."""
    values = _QUOTED.findall(text)
    for match in _LISTED.finditer(text):
        parts = re.split(r",\s*(?:or |and )?|\s+(?:or|and)\s+|\||\s/\s", match[1].strip())
        parts = [part.strip(" '\"`*<>[]") for part in parts]
        values += [part for part in parts if _BARE.fullmatch(part) and len(part) <= 40]
    return list(dict.fromkeys(value.strip() for value in values if value.strip()))[:_MOST_LISTED]


def learned_rank(slot: Slot, spec: ToolSpec, source: ToolSpec, value: str | int, leaf: Leaf) -> int | None:
    """Return how soon a value that another call gave is tried for this slot; None if it is not for it.
    Depends on the value by its type and form alone."""
    is_number = not isinstance(value, str)
    if slot.schema.get("enum") or slot.type not in (
        ("string", "integer", "number") if is_number else ("string",)
    ):
        return None
    if is_paging(slot.name, value) or is_cursor(leaf.name):
        return None
    if is_number and not is_number_for(source, leaf, spec, slot.name):
        return None
    looks, related = value_form(value), _relation(slot, spec, source, leaf)
    if slot.form == "sql":
        around = name_words(f"{leaf.expression} {source.name}")
        return None if looks else LIKELY if "table" in around else POSSIBLE
    if slot.type == "string" and is_number and related < 2:
        return None
    if slot.form in _LOOKS and slot.form != looks and not related:
        return None
    rank = LIKELY if related > 1 else POSSIBLE if related else GUESSED
    # A name without its folder may be a path, but seldom is.
    if slot.form and slot.form == looks and (looks != "path" or "/" in str(value)):
        rank = LIKELY
    elif slot.form in _LOOKS and slot.form != looks:
        rank += 1
    return min(GUESSED, rank + leaf.in_prose)


def taken_by(slot: Slot, value: str | int) -> Any:
    """Return a value that another call gave, as the slot takes it."""
    return f"{SELECT}{value}" if slot.form == "sql" else str(value) if slot.type == "string" else value


def naming(spec: ToolSpec, values: Sequence[str | int]) -> Iterator[JsonObject]:
    """Yield arguments in which each parameter that the tool needs is one of the values, or of its schema's;
    of a tool that needs nothing also with one parameter that it may be given."""
    shape = argument_shape(spec)
    more = [] if shape.required else [slot for slot in shape.optional if not is_paging(slot.name)]
    for each in (shape, *(shape.requiring([slot]) for slot in more)):
        columns = [
            slot.schema.get("enum")
            or [taken_by(slot, v) for v in values if slot.type == "string" or isinstance(v, int)]
            for slot in each.required
            if slot.type in ("string", "integer", "number")
        ]
        if len(columns) == len(each.required):
            yield from map(each.filled, itertools.islice(itertools.product(*columns), _DRAWN))


def _relation(slot: Slot, spec: ToolSpec, source: ToolSpec, leaf: Leaf) -> int:
    """Return how much the names of a parameter, a field and their tools say that one feeds the other: 0 to
    3."""
    of_list = leaf.level.kind if leaf.level and not leaf.tail else ""  # an item goes by the name of its list
    asked, given = set(name_words(slot.name)), set(name_words(leaf.name or of_list))
    path = re.sub(r"@|\b(word|number|rest)\(|\bresult\b", " ", leaf.expression)
    around = given | {*name_words(path), *name_words(source.name)}
    about = {*name_words(spec.name), *name_words(slot.about), *name_words(spec.description), *asked}
    near = given if given - _VAGUE else around  # the reader of a loan is no loan
    is_named = bool(asked) and asked <= near
    is_like = is_named or bool(asked & near - _VAGUE) or (bool(given) and given <= asked)
    return bool(about & around - _VAGUE - VERBS) + is_like + (is_named and bool(asked - _VAGUE))
