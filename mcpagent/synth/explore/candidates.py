"""What a tool may be asked about: values for its parameters, of several kinds, the likeliest first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.answers import Leaf, is_cursor, is_paging, listed_values, named_in
from mcpagent.synth.explore.graph import OF_ONE_TABLE, SELECT, is_number_for, name_words
from mcpagent.synth.explore.naming import lexicon
from mcpagent.tools.probes.arguments import resolved
from mcpagent.tools.workspace import files_below

_DEEPEST = 6  # of objects in objects
_DRAWN = 60  # values that are made up for a parameter whose description says of which form they are
_NUMBERS = 5  # of a drawn list
_MANY = 400  # values of one kind that are remembered
_KINDS = 4  # of values of one slot that are combined with those of others
REFUSALS = 5  # of a kind of value, after which it is not tried again
_VAGUE = frozenset(
    ("id", "name", "key", "value", "title", "code", "path", "url", "text", "type", "data", "of")
)

# What a description says of the form of a value, and what a value of that form looks like.
_ASKED = (
    ("date-time", r"date[- _]?time|timestamp|iso[- ]?8601"),
    ("time", r"\bhh:mm|24-hour"),
    ("date", r"yyyy-mm-dd|\bdates?\b|\bday\b"),
    ("timezone", r"time ?zones?\b|\biana\b|\btz\b"),
    ("url", r"\bur[il]s?\b|\blink\b|\bhttps?\b"),
    ("sql", r"\bsql\b|\bselect\b"),
    ("expression", r"\bexpressions?\b|\bformula\b|\bequation\b"),
    ("path", r"\b(path|file|folder|directory|dir|repo|repository|filename|filepath|database)s?\b"),
    ("email", r"\be-?mail\b"),
    ("uuid", r"\bu?uid\b"),
    ("color", r"\bcolou?rs?\b|\bhex code\b"),
    ("text", r"\b(text|string|message|content|sentence|input|word)s?\b"),
)
_LOOKS = (
    ("url", r"[a-z][a-z0-9+.-]*://\S+"),
    ("email", r"[^@\s]+@[^@\s]+\.\w+"),
    ("date-time", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*"),
    ("date", r"\d{4}-\d\d-\d\d"),
    ("time", r"\d\d:\d\d(:\d\d)?"),
    ("uuid", r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    ("color", r"#[0-9a-fA-F]{3,8}"),
    ("timezone", r"(Africa|America|Asia|Atlantic|Australia|Europe|Pacific|Etc)/[A-Z]\w+(/\w+)?"),
    ("mime", r"(application|audio|font|image|text|video)/[\w.+-]+"),
    ("path", r"(?:\S*/\S*|[\w-]+\.[A-Za-z]\w{0,4})"),
)
_OF_FORMAT = {
    "uri": "url",
    "date": "date",
    "date-time": "date-time",
    "time": "time",
    "email": "email",
    "uuid": "uuid",
}
_ZONES = (
    *("America/New_York", "Europe/London", "Asia/Tokyo", "Australia/Sydney", "America/Los_Angeles"),
    *("Europe/Berlin", "Asia/Kolkata", "Africa/Cairo", "America/Sao_Paulo", "Asia/Singapore", "Europe/Paris"),
    *(
        "America/Chicago",
        "Asia/Dubai",
        "Pacific/Auckland",
        "Africa/Nairobi",
        "Asia/Kathmandu",
        "Europe/Moscow",
    ),
    *("America/Denver", "Africa/Lagos", "Asia/Seoul", "America/Bogota", "Europe/Athens", "Pacific/Honolulu"),
)
_SENTENCES = (
    *("The ferry leaves at noon.", "Bring two copies of the form.", "hello world", "Fresh bread and olives"),
    *("The library closes early on Fridays.", "lighthouse", "Grace Hopper", "Meet me at the old harbour"),
    *("Rain is expected in the north.", "winter garden", "Seven boats came back", "Please water the plants"),
    *("The quick brown fox jumps over the lazy dog", "paper lantern", "An honest answer", "copper kettle"),
    *("Turn left after the bridge", "marzipan", "We counted forty geese", "the museum of small things"),
)
_TABLE = r"[A-Za-z_]\w*(\.\w+)?"
_AGGREGATES = (("MAX", "highest"), ("MIN", "lowest"), ("AVG", "average"), ("SUM", "total"))
_DISCOVERY = (  # what a database says of itself, in the dialects that there are
    "SELECT name FROM sqlite_master WHERE type = 'table'",
    "SELECT table_name FROM information_schema.tables",
    "SHOW TABLES",
)


@dataclass(frozen=True)
class CandidateValue:
    """A value for a parameter; `item` is the thing that it was said of, where it was learned."""

    value: Any
    item: str = ""


@dataclass
class Kind:
    """Values that are alike: from one field, or drawn for one reason. `score` says how likely they are to be
    what is asked for; `refused` and `accepted` count what the tool said of them, `pending` what it is being
    asked."""

    label: str
    score: float
    candidates: list[CandidateValue] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0
    pending: int = 0
    _seen: set[str] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether it may be tried again."""
        most = max(REFUSALS, self.accepted + 1) if self.accepted else REFUSALS
        return self.refused + (0 if self.accepted else self.pending) < most

    @property
    def rank(self) -> float:
        """The score, after what was heard."""
        return self.score + min(self.accepted, 2) - 0.8 * self.refused - 0.3 * self.pending

    def add(self, candidate: CandidateValue) -> bool:
        """Whether it is new."""
        key = repr(candidate.value)
        if key in self._seen or len(self.candidates) >= _MANY:
            return False
        self._seen.add(key)
        self.candidates.append(candidate)
        return True


@dataclass
class Slot:
    """A scalar in the arguments of a tool: where it stands, what it takes, and the kinds of values for it."""

    path: tuple[str | int, ...]
    name: str
    schema: JsonObject
    about: str
    type: str
    form: str
    kinds: dict[str, Kind] = field(default_factory=dict)

    @property
    def parameter(self) -> str:
        """The parameter that it stands in."""
        return str(self.path[0])

    @property
    def is_free(self) -> bool:
        """Whether it takes any text."""
        return self.type == "string" and not self.schema.get("enum")

    def add(self, label: str, score: float, values: Sequence[Any], item: str = "") -> None:
        """More values of a kind."""
        if not values:
            return
        kind = self.kinds.setdefault(label, Kind(label, score))
        for value in values:
            kind.add(CandidateValue(value, item))

    @property
    def was_accepted(self) -> bool:
        """Whether the tool took any value for it."""
        return any(kind.accepted for kind in self.kinds.values())

    @property
    def best(self) -> float:
        """The score of the best kind that was never refused."""
        return max((kind.score for kind in self.kinds.values() if not kind.refused), default=-9.0)


def ranked_kinds(slot: Slot, level: float, spent: Collection[str]) -> list[Kind]:
    """The kinds that are worth trying now, the best first, without those of which every value is `spent`.
    Where one was accepted, no unlikely ones."""
    usable = [
        kind for kind in slot.kinds.values() if kind.is_open and kind.candidates and kind.score >= level
    ]
    settled = [
        kind.score - (0.5 if len(kind.candidates) > 1 else 1.5)  # one value leaves more to be learned
        for kind in usable
        if kind.accepted >= min(2, len(kind.candidates))
    ]
    if (least := max(settled, default=None)) is not None:
        usable = [kind for kind in usable if kind.accepted or kind.score > least]
    usable = [kind for kind in usable if kind.label not in spent]
    return sorted(usable, key=lambda kind: -kind.rank)[:_KINDS]


@dataclass(frozen=True)
class Shape:
    """The arguments that a tool needs: a template with None where `required` slots stand, and the `optional`
    slots."""

    template: JsonObject
    required: tuple[Slot, ...]
    optional: tuple[Slot, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All of them."""
        return (*self.required, *self.optional)

    def filled(self, slots: Sequence[Slot], values: Sequence[Any]) -> JsonObject:
        """The template with a value in each of the slots."""
        arguments = _copied(self.template)
        for slot, value in zip(slots, values, strict=True):
            node: Any = arguments
            for step in slot.path[:-1]:
                node = node[step]
            node[slot.path[-1]] = value
        return arguments

    def requiring(self, slots: Sequence[Slot]) -> Shape:
        """The same with some of the optional slots among the required ones."""
        names = [slot.name for slot in slots]
        left = tuple(slot for slot in self.optional if slot.name not in names)
        return Shape({**self.template, **dict.fromkeys(names)}, (*self.required, *slots), left)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def argument_shape(spec: ToolSpec) -> Shape:
    """What there is to fill in when the tool is called."""
    root = spec.input_schema
    documented = _documented(spec.description)
    required: list[Slot] = []
    template: JsonObject = {}
    optional: list[Slot] = []
    needed = root.get("required", ())
    for name, schema in root.get("properties", {}).items():
        into = required if name in needed else []
        maker = _SlotMaker(root, spec, documented.get(name, ""), into)
        value = maker.value(schema, (name,), name, 0)
        if name in needed:
            template[name] = value
        elif len(into) == 1 and len(into[0].path) == 1 and value is None:
            optional.append(into[0])
    return Shape(template, tuple(required), tuple(optional))


def _documented(description: str) -> dict[str, str]:
    """What the lines of a docstring say of parameters: `unit: the unit to convert to`."""
    lines = re.findall(r"^\s*[-*]?\s*`?(\w+)`?\s*(?:\([^)]*\))?\s*(?::|-)\s+(.+)$", description, re.M)
    return dict(lines)


class _SlotMaker:
    def __init__(self, root: JsonObject, spec: ToolSpec, documented: str, slots: list[Slot]) -> None:
        self._root, self._spec, self._documented, self._slots = root, spec, documented, slots

    def value(self, schema: Any, path: tuple[str | int, ...], name: str, depth: int) -> Any:
        schema = resolved(schema, self._root)
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if depth > _DEEPEST or kind == "null":
            return None
        if kind == "object":
            properties = schema.get("properties", {})
            needed = schema.get("required") or list(properties)[:1]
            return {key: self.value(properties.get(key, {}), (*path, key), key, depth + 1) for key in needed}
        if kind == "array":
            items = resolved(schema.get("items", {}), self._root)
            if items.get("type") in ("number", "integer"):
                self._add({**schema, "items": items}, path, name, "numbers")
                return None
            length = min(max(1, schema.get("minItems", 1)), schema.get("maxItems", 4))
            return [self.value(items, (*path, n), name, depth + 1) for n in range(length)]
        self._add(schema, path, name, kind)
        return None

    def _add(self, schema: JsonObject, path: tuple[str | int, ...], name: str, kind: str) -> None:
        about = str(schema.get("description") or self._documented)
        slot = Slot(path, name, schema, about, kind, "")
        if kind == "string":
            slot.form = _form_asked(slot, self._spec)
        self._slots.append(slot)


def _form_asked(slot: Slot, spec: ToolSpec) -> str:
    """The form of what a parameter takes, by its format, name and description; empty if that is not said."""
    if slot.schema.get("format") in _OF_FORMAT:
        return _OF_FORMAT[slot.schema["format"]]
    name = " ".join(name_words(slot.name))
    if name in ("query", "sql", "statement") and re.search(
        _ASKED[5][1], f"{spec.description} {slot.about}", re.I
    ):
        return "sql"
    for text in (name, slot.about.lower()):
        for form, pattern in _ASKED:
            if re.search(pattern, text, re.I):
                return form
    return ""


def value_form(value: object) -> str:
    """The form of a value; empty for a plain word."""
    if not isinstance(value, str):
        return "number"
    text = value.strip()
    for form, pattern in _LOOKS:
        if re.fullmatch(pattern, text):
            return form
    return "text" if " " in text else ""


def add_own_values(slot: Slot, spec: ToolSpec, *, seed: int) -> None:
    """The values that the schema and the descriptions give, and those that are drawn for a form."""
    schema = slot.schema
    if slot.type == "boolean":
        slot.add("enum", 7, [False, True])
        return
    if isinstance(schema.get("enum"), list):
        slot.add("enum", 7, [value for value in schema["enum"] if value is not None])
        return
    if isinstance(schema.get("examples"), list):
        slot.add("examples", 6, schema["examples"])
    if schema.get("default") not in (None, ""):
        slot.add("default", 4, [schema["default"]])
    rng = Random(derive_seed(seed, "drawn", spec.dotted, list(map(str, slot.path))))
    if slot.type in ("number", "integer", "numbers"):
        slot.add("drawn", 0 if "id" in name_words(slot.name) else 2, list(_numbers(slot, rng)))
    elif slot.type == "string":
        said = listed_values(slot.about)
        slot.add("described", 5, [value for value in said if not slot.form or _may_be(slot.form, value)])
        if not slot.form:  # of the tool, by which something else may be meant
            words = [*named_in(spec.description), *listed_values(spec.description)]
            slot.add("named in the description", 2.2, words)
        slot.add("drawn", _DRAWN_SCORE.get(slot.form, 0.0), list(_texts(slot.form, rng)))


def add_places(slot: Slot, places: Sequence[str]) -> None:
    """The paths that a server was started with, and the files in such folders, to be tried where nothing
    likelier is left: a tool that takes the folder itself would refuse them all."""
    if slot.form in ("path", "url"):
        slot.add("of the configuration", 4, places)
    for place in places if slot.form == "path" else ():
        files = files_below(Path(place), most=_DRAWN)
        slot.add("in a folder of the configuration", 1.9, [f"{place.rstrip('/')}/{file}" for file in files])
        slot.add("below a folder of the configuration", 1.8, files)


_DRAWN_SCORE = {"timezone": 4.0, "date": 3.0, "time": 3.0, "date-time": 3.0, "expression": 3.0, "sql": 2.0}


def _may_be(form: str, value: str) -> bool:
    looks = value_form(value)
    return looks == form or form not in dict(_LOOKS) or not looks


def _numbers(slot: Slot, rng: Random) -> Iterator[Any]:
    schema = slot.schema["items"] if slot.type == "numbers" else slot.schema
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1 if "exclusiveMinimum" in schema else 2)
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 199) - ("exclusiveMaximum" in schema))
    high = max(low, min(high, low + 998))
    step = schema.get("multipleOf", 1)

    def one() -> int | float:
        if (
            schema.get("type") == "integer"
            or lexicon("counted") & set(name_words(slot.name))
            or rng.random() < 0.7
        ):
            return min(
                int(high), max(int(-(-low // step) * step), rng.randint(int(low), int(high)) // step * step)
            )
        return round(rng.uniform(low, high), 1)

    for _ in range(_DRAWN):
        length = max(slot.schema.get("minItems", 0), min(slot.schema.get("maxItems", _NUMBERS), _NUMBERS))
        yield [one() for _ in range(length)] if slot.type == "numbers" else one()


def _texts(form: str, rng: Random) -> Iterator[str]:
    """Texts of a form; none where only the server knows what there is."""
    if form == "timezone":
        yield from rng.sample(_ZONES, len(_ZONES))
    elif form == "sql":
        yield from _DISCOVERY
    elif form in ("text", ""):
        yield from rng.sample(_SENTENCES, len(_SENTENCES))
    elif form in ("date", "time", "date-time", "expression", "uuid", "color", "email"):
        for _ in range(_DRAWN):
            yield _drawn(form, rng)


def _drawn(form: str, rng: Random) -> str:
    date = f"{rng.randint(2019, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    time = f"{rng.randint(0, 23):02}:{rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02}"
    match form:
        case "date":
            return date
        case "time":
            return time
        case "date-time":
            return f"{date}T{time}:00Z"
        case "uuid":
            digits = f"{rng.getrandbits(128):032x}"
            return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
        case "color":
            return f"#{rng.getrandbits(24):06x}"
        case "email":
            return f"person{rng.randint(1, 99)}@example.com"
        case _:
            one, other, third = rng.randint(3, 99), rng.randint(3, 99), rng.randint(2, 60)
            return rng.choice(
                (f"{one} * {other} + {third}", f"({one} + {other}) * {third}", f"{one} * {other} - {third}")
            )


def learned_kind(
    slot: Slot, spec: ToolSpec, source: ToolSpec, value: str | int, leaf: Leaf, prefix: str
) -> tuple[str, float] | None:
    """The label and the score of the kind that a value which another call gave has for this slot; None where
    it is not for it. Depends on the value by its type and form alone."""
    if slot.schema.get("enum") or slot.form == "sql" or slot.type not in ("string", "integer", "number"):
        return None
    is_number = not isinstance(value, str)
    if is_paging(slot.name, value) or is_cursor(leaf.name):
        return None  # pages are followed, not guessed
    if is_number and not is_number_for(source, leaf, spec, slot.name):
        return None
    if slot.type != "string" and not is_number:
        return None
    score = _relation(slot, spec, source, leaf)
    looks = value_form(value)
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
    if leaf.expression.startswith(("word(", "number(")) and not leaf.name:
        score -= 1.0
    score += 0.5 if prefix else 0.0  # the whole path, rather than a name that only the folder knows
    return f"{source.dotted}:{leaf.field}{' in a folder' if prefix else ''} {looks}", score


def add_statements(slot: Slot, source: ToolSpec, arguments: Sequence[str], leaf: Leaf) -> None:
    """The statements that a value suggests to a slot for SQL: it may be a table, or be in a row of one."""
    label = f"{source.dotted}:{leaf.field}"
    table = next((t.removeprefix(SELECT) for t in arguments if t.startswith(SELECT)), None)
    if table is not None and re.fullmatch(_TABLE, table):
        column = leaf.name
        if re.fullmatch(r"[A-Za-z_]\w*", column) and leaf.expression.endswith(f".{column}"):
            if isinstance(leaf.value, str):
                if len(leaf.value) <= 40 and leaf.key is None:  # what a row is called by
                    quoted = leaf.value.replace("'", "''")
                    slot.add(f"{label} of a row", 3.2, [f"{SELECT}{table} WHERE {column} = '{quoted}'"])
            elif "id" not in name_words(column):
                named = [f"SELECT {f}({column}) AS {w}_{column} FROM {table}" for f, w in _AGGREGATES]
                slot.add(f"{source.dotted}:{table} of a column", 3.3, named)
    elif isinstance(leaf.value, str) and re.fullmatch(_TABLE, leaf.value):
        around = f"{leaf.expression} {source.name} {' '.join(arguments)}"
        is_listed = "table" in name_words(around) and not OF_ONE_TABLE & set(name_words(source.name))
        score = 3.5 if is_listed else 1.0
        slot.add(f"{label} as a table", score, [SELECT + leaf.value])
        if score > 1:
            slot.add(f"{label} counted", 3.4, [f"SELECT COUNT(*) AS number_of_rows FROM {leaf.value}"])


def _relation(slot: Slot, spec: ToolSpec, source: ToolSpec, leaf: Leaf) -> float:
    """How much the names of a parameter, a field and their tools say that one feeds the other."""
    asked, given = set(name_words(slot.name)), set(name_words(leaf.name))
    path = re.sub(r"\b(word|number|rest)\(", "", leaf.expression)
    around = set(name_words(re.sub(r"@|\bresult\b", " ", path))) | set(name_words(source.name))
    score = 0.0
    if asked and asked == given:
        score += 3.0 if asked - _VAGUE else 1.5
    elif asked and asked <= given | around:
        score += 2.5 if asked - _VAGUE else 1.0
    elif (asked & given) - _VAGUE or (asked & around) - _VAGUE:
        score += 1.0
    elif given and given <= asked:
        score += 0.75
    target = set(name_words(spec.name)) | asked
    if (target & (around | given)) - _VAGUE - {"get", "list", "find", "read", "search", "show", "lookup"}:
        score += 1.0
    if ((given | around) & set(name_words(slot.about))) - _VAGUE:
        score += 0.5
    if (given & set(name_words(spec.description))) - _VAGUE:
        score += 0.75
    return score
