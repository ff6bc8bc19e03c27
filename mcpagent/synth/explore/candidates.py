"""What a tool may be asked about: values for its parameters, of several kinds, the likeliest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from mcpagent.synth.explore.words import name_words, words_of
from mcpagent.tools.probes.arguments import resolved
from mcpagent.tools.workspace import files_below

_DEEPEST = 6  # of objects in objects
_DRAWN = 60  # values that are made up for a parameter
_MANY = 400  # values of one kind that are remembered
_MORE = 100  # of a list, to see all of it
MORE = "enough for all"  # the label of such limits
REFUSALS = 5  # of a kind of value, after which it is not tried again
_VAGUE = words_of("id name key value title code path url text type data of")
_ACTS = words_of("get list find read search show lookup")

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
_LOOKS = (
    ("url", r"[a-z][a-z0-9+.-]*://\S+"),
    ("date", r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d\S*)?"),
    ("time", r"\d\d:\d\d(:\d\d)?"),
    ("timezone", r"(Africa|America|Asia|Atlantic|Australia|Europe|Pacific|Etc)/[A-Z]\w+(/\w+)?"),
    ("path", r"(?:\S*/\S*|[\w-]+\.[A-Za-z]\w{0,4})"),
)
_ZONES = (
    "America/New_York",
    "Europe/London",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Asia/Kolkata",
    "Africa/Cairo",
)
_SENTENCES = (
    *("hello world", "lighthouse", "winter garden", "Fresh bread and olives", "Seven boats came back"),
    *("The gate stays open", "Two crates are missing", "Snow fell all night", "Ask again on Monday"),
)
_DRAWN_SCORE = {"timezone": 4.0, "date": 3.0, "time": 3.0, "expression": 3.0}

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
class Kind:
    """Values that are alike: from one field, or drawn for one reason. `score` says how likely they are to be
    what is asked for; `refused` and `accepted` count what the tool said of them, `pending` what it is being
    asked."""

    label: str
    score: float
    values: dict[str, Any] = field(default_factory=dict)  # by repr
    accepted: int = 0
    refused: int = 0
    pending: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it may be tried again."""
        most = max(REFUSALS, self.accepted + 1) if self.accepted else REFUSALS
        return self.refused + (0 if self.accepted else self.pending) < most

    @property
    def rank(self) -> float:
        """The score, after what was heard."""
        return self.score + min(self.accepted, 2) - 0.8 * self.refused - 0.3 * self.pending


@dataclass
class Slot:
    """A scalar in the arguments of a tool: where it stands, what it takes, and the kinds of values for it."""

    path: tuple[str | int, ...]
    name: str
    schema: JsonObject
    about: str
    type: str
    form: str = ""
    kinds: dict[str, Kind] = field(default_factory=dict)

    @property
    def parameter(self) -> str:
        """The parameter that it stands in."""
        return str(self.path[0])

    def add(self, label: str, score: float, values: Sequence[Any]) -> None:
        """More values of a kind."""
        for value in values:
            kind = self.kinds.setdefault(label, Kind(label, score))
            if len(kind.values) < _MANY:
                kind.values.setdefault(repr(value), value)

    @property
    def was_accepted(self) -> bool:
        """Whether the tool took any value for it."""
        return any(kind.accepted for kind in self.kinds.values())

    @property
    def best(self) -> float:
        """The score of the best kind that was never refused."""
        return max((kind.score for kind in self.kinds.values() if not kind.refused), default=-9.0)

    def ranked(self, level: float) -> list[Kind]:
        """Return the kinds that are worth trying now, the best first. If one was accepted, no unlikely
        ones."""
        usable = [kind for kind in self.kinds.values() if kind.is_open and kind.score >= level]
        least = max((kind.score - 0.5 for kind in usable if kind.accepted > 1), default=level)
        return sorted((k for k in usable if k.accepted or k.score >= least), key=lambda kind: -kind.rank)


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

    def filled(self, slots: Sequence[Slot], values: Sequence[Any]) -> JsonObject:
        """Return the template with a value in each of the slots."""
        arguments = deepcopy(self.template)
        for slot, value in zip(slots, values, strict=True):
            node: Any = arguments
            for step in slot.path[:-1]:
                node = node[step]
            node[slot.path[-1]] = value
        return arguments


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
    looks = next((form for form, pattern in _LOOKS if re.fullmatch(pattern, value.strip())), "")
    return looks or ("text" if " " in value.strip() else "")


def add_own_values(slot: Slot, spec: ToolSpec, *, seed: int) -> None:
    """The values that the schema and the descriptions give, and those that are drawn for a form."""
    schema = slot.schema
    if slot.type == "boolean" or isinstance(schema.get("enum"), list):
        slot.add("enum", 7, [value for value in schema.get("enum", [False, True]) if value is not None])
        return
    slot.add("examples", 6, schema["examples"] if isinstance(schema.get("examples"), list) else [])
    slot.add("default", 4, [schema["default"]] if schema.get("default") not in (None, "") else [])
    if is_limit(slot.name) and slot.type in ("number", "integer"):
        slot.add(MORE, 5, [min(_MORE, schema.get("maximum", _MORE))])
    rng = Random(derive_seed(seed, "drawn", spec.dotted, list(map(str, slot.path))))
    if slot.type in ("number", "integer", "numbers"):
        slot.add("drawn", 0 if "id" in name_words(slot.name) else 2, list(_numbers(slot, rng)))
    elif slot.type == "string":
        is_told = slot.form in dict(_LOOKS)
        said = [v for v in listed_values(slot.about) if not is_told or value_form(v) in (slot.form, "")]
        slot.add("described", 5, said)
        if not slot.form:  # of the tool, by which something else may be meant
            slot.add("named in the description", 2.2, listed_values(spec.description))
        slot.add("drawn", _DRAWN_SCORE.get(slot.form, 0.0), list(dict.fromkeys(_texts(slot.form, rng))))


def add_places(slot: Slot, places: Sequence[str]) -> None:
    """The paths that a server was started with, and the files in such folders, to be tried if nothing
    likelier is left: a tool that takes the folder itself would refuse them all."""
    if slot.form in ("path", "url"):
        slot.add("of the configuration", 4, places)
    for place in places if slot.form == "path" else ():
        files = files_below(Path(place), most=_DRAWN)
        slot.add("in a folder of the configuration", 1.9, [f"{place.rstrip('/')}/{file}" for file in files])
        slot.add("below a folder of the configuration", 1.8, files)


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


def learned_kind(
    slot: Slot, spec: ToolSpec, source: ToolSpec, value: str | int, leaf: Leaf, prefix: str
) -> tuple[str, float] | None:
    """Return the label and the score of the kind that a value which another call gave has for this slot; None
    if it is not for it. Depends on the value by its type and form alone."""
    if slot.schema.get("enum") or slot.type not in ("string", "integer", "number"):
        return None
    is_number = not isinstance(value, str)
    if is_paging(slot.name, value) or is_cursor(leaf.name):
        return None  # pages are followed, not guessed
    if is_number and not is_number_for(source, leaf, spec, slot.name):
        return None
    if slot.type != "string" and not is_number:
        return None
    label = f"{source.dotted}:{leaf.column}"
    looks = value_form(value)
    if slot.form == "sql":
        around = name_words(f"{leaf.expression} {source.name}")
        return None if is_number or looks else (f"{label} as a table", 3.5 if "table" in around else 1.0)
    score = _relation(slot, spec, source, leaf)
    if slot.type == "string" and is_number and score < 2:
        return None
    if slot.form and slot.form == looks:
        # A name without its folder may be a path, but seldom is.
        score += 2 if looks != "path" or "/" in str(value) else 0.5
    elif slot.form in dict(_LOOKS):
        if score < 1:
            return None
        score -= 2
    elif looks == "text" and not slot.form:
        score -= 0.5
    score -= 1.0 if leaf.in_prose else 0.0
    score += 0.5 if prefix else 0.0  # the whole path, rather than a name that only the folder knows
    return f"{label}{' in a folder' if prefix else ''} {looks}", score


def taken_by(slot: Slot, value: str | int) -> Any:
    """Return a value that another call gave, as the slot takes it."""
    return f"{SELECT}{value}" if slot.form == "sql" else str(value) if slot.type == "string" else value


def _relation(slot: Slot, spec: ToolSpec, source: ToolSpec, leaf: Leaf) -> float:
    """How much the names of a parameter, a field and their tools say that one feeds the other."""
    asked, given = set(name_words(slot.name)), set(name_words(leaf.name))
    path = re.sub(r"@|\b(word|number|rest)\(|\bresult\b", " ", leaf.expression)
    around = given | {*name_words(path), *name_words(source.name)}
    about = {*name_words(spec.name), *name_words(slot.about), *name_words(spec.description), *asked}
    score = 1.0 if about & around - _VAGUE - _ACTS else 0.0
    if asked and asked <= around:
        return score + (2.5 if asked - _VAGUE else 1.0) + (0.5 if asked == given else 0.0)
    return score + (1.0 if asked & around - _VAGUE or (given and given <= asked) else 0.0)
