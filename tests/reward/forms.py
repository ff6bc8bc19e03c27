"""Ways to say a value, right and wrong, made from parts: how it is written, and the sentence around it.

Whether an answer is right follows from how it was made, and from nothing that grades it. A way to write a
value (`RIGHT`, `WRONG`) meets every frame of its kind of answer, on records with values drawn at random.
"""

from __future__ import annotations

import json
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
    *("November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ONES = (  # noqa: SIM905
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_PEOPLE = (
    *("Søren Kjærgaard", "Ana-Lucía Peña", "Tomás Ó Briain", "Wei Zhang", "Priya Raman", "Jürgen Groß"),
    *("Zoë van den Berg", "Kofi Mensah", "Łukasz Wójcik", "Mary O'Neill", "Émile Brunet", "Ingrid Haug"),
)
_PLACES = (
    *("Tromsø", "São Paulo", "New Haven", "Kraków", "Cape Town", "Saint-Malo", "Aarhus", "Los Angeles"),
    *("Zürich", "Port of Spain", "Reykjavík", "Kyoto"),
)
_GOODS = (
    *("olive oil", "roof tiles", "wool", "frozen cod", "copper wire", "jute bags", "cement", "green tea"),
    *("pine planks", "solar panels", "rye flour", "glass jars"),
)
_STATES = ("loading", "anchored", "delayed", "under repair", "at sea", "inspected")
_THINGS = ("Aurora", "Halcyon", "Brise-Lames", "Old Margit", "K-19 Otter", "Saga III")


@dataclass(frozen=True)
class Asked:
    """A question with what is shown, its check, and the values from which wrong answers are made."""

    kind: str
    question: str
    thing: str
    label: str
    shown: str
    check: dict[str, Any]
    value: Any
    others: tuple[Any, ...] = ()  # of other records, in the same field
    stranger: str = ""  # the value of another field of the record


@dataclass(frozen=True)
class Said:
    """An answer, whether it is right, and by which parts it was made."""

    asked: Asked
    text: str
    is_right: bool
    writing: str
    frame: str

    @property
    def is_held_out(self) -> bool:
        """Whether this pair of parts is one of the fifth that nobody looks at."""
        return zlib.crc32(f"{self.asked.kind} {self.writing} {self.frame}".encode()) % 5 == 0


def in_words(number: int) -> str:
    """Return an English number word, as textbooks spell it."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{_ONES[number // 100]} hundred{rest}"
    rest = number % 1000
    joint = "" if not rest else f" and {in_words(rest)}" if rest < 100 else f", {in_words(rest)}"
    return f"{in_words(number // 1000)} thousand{joint}"


def ordinal(day: int) -> str:
    return f"{day}{'th' if 10 <= day % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


# What is asked --------------------------------------------------------------------------------------------


def record(random: Random) -> dict[str, Any]:
    start = datetime(2026, 1, 1, 6, 0) + timedelta(days=random.randrange(700), minutes=random.randrange(900))
    return {
        "name": "",
        "code": f"{random.choice('BKQX')}{random.choice('LMRT')}-{random.randrange(1000, 9999)}",
        "captain": random.choice(_PEOPLE),
        "home port": random.choice(_PLACES),
        "length": round(random.uniform(20, 300), 2),
        "cargo mass": random.randrange(1100, 98000),
        "crew size": random.randrange(2, 60),
        "harbour fee": round(random.uniform(12, 9400), 2),
        "launch date": f"{start:%Y-%m-%d}",
        "arrival": f"{start + timedelta(days=40):%Y-%m-%dT%H:%M}",
        "crossing time": random.randrange(61, 600),
        "status": random.choice(_STATES),
        "goods": random.sample(_GOODS, 3),
        "insured": random.random() < 0.5,
    }


def asked(seed: int) -> list[Asked]:
    """Return one question of each kind on records of this seed."""
    random = Random(seed)
    names = random.sample(_THINGS, 3)
    records = [record(random) | {"name": name} for name in names]
    while any(len({str(r[field]) for r in records}) < 3 for field in records[0] if field != "insured"):
        records = [record(random) | {"name": name} for name in names]
    shown = _shown(records, random.randrange(3))
    first, second, third = records
    questions: list[Asked] = []

    def ask(kind: str, label: str, stranger: str, question: str | None = None, **check: Any) -> None:
        value = check.pop("value", first[label])
        others = check.pop("others", (second[label], third[label]) if label in second else ())
        said = question or f"What is the {label} of the {names[0]}?"
        spec = {"value": value} | check
        questions.append(
            Asked(kind, said, names[0], label, shown, spec, value, tuple(others), str(first[stranger]))
        )

    ask("measure", "length", "crew size", type="number", unit="m")
    ask("mass", "cargo mass", "crew size", type="number", unit="kg")
    ask("money", "harbour fee", "crew size", type="number", unit="EUR")
    ask("count", "crew size", "length", f"How many people are in the crew of the {names[0]}?", type="number")
    ask(
        *("duration", "crossing time", "crew size", f"How long does the {names[0]} take to cross?"),
        type="number",
        unit="minutes",
    )
    ask("date", "launch date", "arrival", f"When was the {names[0]} launched?", type="date")
    ask("moment", "arrival", "launch date", f"When does the {names[0]} arrive?", type="date")
    ask("person", "captain", "home port", f"Who is the captain of the {names[0]}?", type="name")
    ask("place", "home port", "captain", type="name")
    ask("state", "status", "home port", type="name")
    ask("id", "code", "name", type="name")
    ask("set", "goods", "captain", f"Which goods does the {names[0]} carry?", type="set")
    ask("yes_no", "insured", "status", f"Is the {names[0]} insured?", type="yes_no")
    longer, shorter = sorted((first, second), key=lambda r: float(r["length"]), reverse=True)
    ask(
        *("choice", "name", "captain", f"Which is longer, the {names[0]} or the {names[1]}?"),
        type="choice",
        value=longer["name"],
        others=[shorter["name"]],
        options=[first["name"], second["name"]],
    )
    ask(
        *("pairs", "status", "captain", f"What are the statuses of the {names[0]} and the {names[1]}?"),
        type="pairs",
        value={names[0]: first["status"], names[1]: second["status"]},
        others=[third["status"]],
    )
    return questions


def _shown(records: list[dict[str, Any]], form: int) -> str:
    if form == 0:
        return json.dumps([{k.replace(" ", "_"): v for k, v in r.items()} for r in records])
    if form == 1:
        return "\n\n".join("\n".join(f"{k.title()}: {_flat(v)}" for k, v in r.items()) for r in records)
    rows = ["| " + " | ".join(records[0]) + " |", "|" + "---|" * len(records[0])]
    return "\n".join(rows + ["| " + " | ".join(map(_flat, r.values())) + " |" for r in records])


def _flat(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


# How a value is written -----------------------------------------------------------------------------------

Writing = Callable[[Any], str]


def _grouped(mark: str, point: str = ".") -> Callable[[float], str]:
    def write(value: float) -> str:
        whole = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
        return whole.replace(".", "\0").replace(",", mark).replace("\0", point)

    return write


def _plain(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


_NUMBERS: dict[str, Callable[[float], str]] = {
    "plain": _plain,
    "comma": _grouped(","),
    "thin space": _grouped("\u202f"),
    "no-break space": _grouped("\u00a0"),
    "swiss": _grouped("'"),
    "curly swiss": _grouped("’"),
    "comma decimals": _grouped(" ", ","),
    "german": _grouped(".", ","),
}


def _times(numbers: dict[str, Callable[[float], str]], units: dict[str, str]) -> dict[str, Writing]:
    return {
        f"{name}, {unit}": lambda value, write=write, form=form: form.replace("#", write(value))
        for name, write in numbers.items()
        for unit, form in units.items()
    }


def _euros(value: float) -> str:
    whole, cents = divmod(round(value * 100), 100)
    return f"{whole} euros and {cents} cents" if cents else f"{whole} euros"


def _long_date(form: str) -> Writing:
    def write(value: str) -> str:
        at = datetime.fromisoformat(value)
        parts = {
            "d": str(at.day),
            "dd": f"{at.day:02}",
            "th": ordinal(at.day),
            "mm": f"{at.month:02}",
            "Month": MONTHS[at.month - 1],
            "Mon": MONTHS[at.month - 1][:3],
            "yyyy": str(at.year),
            "Wday": WEEKDAYS[at.weekday()],
            "Wdy": WEEKDAYS[at.weekday()][:3],
            "HH": f"{at.hour:02}",
            "h": str(at.hour % 12 or 12),
            "MM": f"{at.minute:02}",
            "ap": "am" if at.hour < 12 else "pm",
        }
        return form.format(**parts)

    return write


_DATES = (
    *(
        "{yyyy}-{mm}-{dd}",
        "{d} {Month} {yyyy}",
        "{dd} {Mon} {yyyy}",
        "{Month} {d}, {yyyy}",
        "{Mon}. {d}, {yyyy}",
    ),
    *(
        "{th} {Month} {yyyy}",
        "the {th} of {Month} {yyyy}",
        "{Month} {th}, {yyyy}",
        "{Wday}, {d} {Month} {yyyy}",
    ),
    *("{Wdy} {d} {Mon} {yyyy}", "{Wday} {Month} {th} {yyyy}", "{d}. {Month} {yyyy}", "{d}-{Mon}-{yyyy}"),
    *("{yyyy}/{mm}/{dd}", "{dd}.{mm}.{yyyy}", "{Month} {d} {yyyy}", "the {th} of {Month}, {yyyy}"),
    *("{Wday} the {th} of {Month} {yyyy}", "{yyyy} {Month} {d}", "{d} {Month}, {yyyy}"),
)
_TIMES = ("{HH}:{MM}", "{h}:{MM} {ap}", "{h}:{MM}{ap}", "{HH}:{MM}:00")
_MOMENTS = (
    *("{yyyy}-{mm}-{dd}T{HH}:{MM}", "{yyyy}-{mm}-{dd} {HH}:{MM}", "{yyyy}-{mm}-{dd}T{HH}:{MM}:00"),
    *(
        f"{date}{joint}{time}"
        for date in _DATES[1:10]
        for joint in (" at ", ", ", " ")
        for time in _TIMES[:3]
    ),
    *(f"{time}{joint}{date}" for date in _DATES[1:8] for joint in (" on ", ", ") for time in _TIMES[:2]),
    "{HH}h{MM} on {d} {Month} {yyyy}",
    "{d} {Month} {yyyy} ({HH}:{MM})",
)


def _title(value: str) -> str:
    return " ".join(word[:1].upper() + word[1:].lower() for word in value.split())


RIGHT: dict[str, dict[str, Writing]] = {
    "measure": _times(
        _NUMBERS,
        {
            "bare": "#",
            "m": "# m",
            "glued": "#m",
            "metres": "# metres",
            "meters": "# meters",
            "long": "# m long",
        },
    )
    | {
        "kilometres in brackets": lambda v: f"{v:.2f} m ({v / 1000:.3f} km)",
        "feet in brackets": lambda v: f"{v:.2f} m ({v / 0.3048:.1f} ft)",
        "centimetres": lambda v: f"{round(v * 100)} cm",
        "equals": lambda v: f"{v:.2f} m = {round(v * 100):,} cm",
        "exactly": lambda v: f"exactly {v:.2f} m",
        "TeX": lambda v: f"${v:.2f}\\,\\text{{m}}$",
        "boxed": lambda v: f"\\boxed{{{v:.2f}\\ \\mathrm{{m}}}}",
    },
    "mass": _times(
        _NUMBERS,
        {"bare": "#", "kg": "# kg", "glued": "#kg", "kilograms": "# kilograms", "of cargo": "# kg of cargo"},
    )
    | {
        "tonnes": lambda v: f"{v / 1000:.3f} t",
        "tonnes in brackets": lambda v: f"{v:,} kg ({v / 1000:.3f} tonnes)",
        "tonnes first": lambda v: f"{v / 1000:.3f} t ({v} kg)",
        "about tonnes": lambda v: f"{v:,} kg, about {v / 1000:.1f} t",
        "words": lambda v: f"{in_words(v)} kilograms",
        "words bare": in_words,
        "thousand": lambda v: f"{v / 1000:.3f} thousand kg",
        "TeX": lambda v: f"$${v:,} \\text{{ kg}}$$".replace(",", "{,}"),
    },
    "money": _times(
        _NUMBERS,
        {
            "bare": "#",
            "sign": "€#",
            "sign after": "# €",
            "glued": "#€",
            "code": "# EUR",
            "code first": "EUR #",
            "euros": "# euros",
        },
    )
    | {
        "cents": lambda v: f"{round(v * 100)} cents",
        "and cents": _euros,
        "cents in brackets": lambda v: f"€{v:,.2f} ({round(v * 100):,} cents)",
        "TeX": lambda v: f"\\boxed{{€{v:.2f}}}",
    },
    "count": {
        **{name: _NUMBERS[name] for name in ("plain",)},
        "words": in_words,
        "Words": lambda v: in_words(v).capitalize(),
        "people": lambda v: f"{v} people",
        "words people": lambda v: f"{in_words(v)} people",
        "persons": lambda v: f"{v} persons",
        "crew members": lambda v: f"{v} crew members",
        "both": lambda v: f"{v} ({in_words(v)})",
        "both swapped": lambda v: f"{in_words(v)} ({v})",
        "point nought": lambda v: f"{v}.0",
        "a crew": lambda v: f"a crew of {v}",
        "in total": lambda v: f"{v} in total",
        "exactly": lambda v: f"exactly {v}",
        "a total": lambda v: f"a total of {v}",
    },
    "duration": {
        "plain": str,
        "minutes": lambda v: f"{v} minutes",
        "min": lambda v: f"{v} min",
        "mins": lambda v: f"{v} mins",
        "glued": lambda v: f"{v}min",
        "words": lambda v: f"{in_words(v)} minutes",
        "hours": lambda v: f"{v // 60} hours {v % 60} minutes",
        "hours and": lambda v: f"{v // 60} hours and {v % 60} minutes",
        "h min": lambda v: f"{v // 60} h {v % 60} min",
        "glued h": lambda v: f"{v // 60}h {v % 60}m",
        "h00": lambda v: f"{v // 60}h{v % 60:02}",
        "clock": lambda v: f"{v // 60}:{v % 60:02} h",
        "hours in brackets": lambda v: f"{v} minutes ({v // 60} h {v % 60} min)",
        "hours in words": lambda v: f"{in_words(v // 60)} hours and {in_words(v % 60)} minutes",
        "minutes in brackets": lambda v: f"{v // 60} hours and {v % 60} minutes ({v} minutes)",
        "seconds": lambda v: f"{v * 60} seconds",
        "that is": lambda v: f"{v} minutes, i.e. {v // 60} hours and {v % 60} minutes",
        "or": lambda v: f"{v} minutes, that is {v // 60} h {v % 60} min",
    },
    "date": {form: _long_date(form) for form in _DATES},
    "moment": {form: _long_date(form) for form in _MOMENTS},
    "person": {
        "plain": str,
        "upper": str.upper,
        "lower": str.lower,
        "captain": lambda v: f"Captain {v}",
        "capt.": lambda v: f"Capt. {v}",
        "surname first": lambda v: f"{v.split(' ', 1)[1]}, {v.split(' ', 1)[0]}",
        "Mr or Ms": lambda v: f"Ms {v}",
        "curly": lambda v: v.replace("'", "’"),
        "no hyphen": lambda v: v.replace("-", " "),
        "double space": lambda v: v.replace(" ", "  "),
        "handle": lambda v: v.lower().replace(" ", "."),
        "decomposed": lambda v: unicodedata.normalize("NFD", v),
        "in apposition": lambda v: f"{v}, the captain",
    },
    "place": {
        "plain": str,
        "upper": str.upper,
        "lower": str.lower,
        "port of": lambda v: f"the port of {v}",
        "in": lambda v: f"in {v}",
        "no hyphen": lambda v: v.replace("-", " "),
        "decomposed": lambda v: unicodedata.normalize("NFD", v),
        "harbour": lambda v: f"{v} harbour",
        "city": lambda v: f"the city of {v}",
    },
    "state": {
        "plain": str,
        "title": _title,
        "upper": str.upper,
        "capital": str.capitalize,
        "underscores": lambda v: v.replace(" ", "_"),
        "hyphens": lambda v: v.replace(" ", "-"),
        "currently": lambda v: f"currently {v}",
        "it is": lambda v: f"it is {v}",
        "right now": lambda v: f"{v} right now",
        "at the moment": lambda v: f"{v} at the moment",
    },
    "id": {
        "plain": str,
        "lower": str.lower,
        "no hyphen": lambda v: v.replace("-", ""),
        "space": lambda v: v.replace("-", " "),
        "hash": lambda v: f"#{v}",
        "code": lambda v: f"code {v}",
        "no-break hyphen": lambda v: v.replace("-", "\u2011"),
        "brackets": lambda v: f"[{v}]",
    },
    "set": {
        "commas": ", ".join,
        "and": lambda v: f"{v[0]}, {v[1]} and {v[2]}",
        "oxford": lambda v: f"{v[0]}, {v[1]}, and {v[2]}",
        "ampersand": lambda v: f"{v[0]}, {v[1]} & {v[2]}",
        "other order": lambda v: f"{v[2]}, {v[0]} and {v[1]}",
        "semicolons": "; ".join,
        "slashes": " / ".join,
        "pipes": " | ".join,
        "ands": " and ".join,
        "plus": " + ".join,
        "dots": " · ".join,
        "lines": "\n".join,
        "bullets": lambda v: "\n".join(f"- {item}" for item in v),
        "stars": lambda v: "\n".join(f"* {item}" for item in v),
        "dot bullets": lambda v: "\n".join(f"• {item}" for item in v),
        "numbered": lambda v: "\n".join(f"{n}. {item}" for n, item in enumerate(v, 1)),
        "numbered in line": lambda v: "; ".join(f"{n}) {item}" for n, item in enumerate(v, 1)),
        "bracketed numbers": lambda v: " ".join(f"({n}) {item}" for n, item in enumerate(v, 1)),
        "JSON": lambda v: json.dumps(v),
        "python": lambda v: str(v),
        "braces": lambda v: "{" + ", ".join(v) + "}",
        "quotes": lambda v: ", ".join(f'"{item}"' for item in v),
        "bold": lambda v: ", ".join(f"**{item}**" for item in v),
        "code": lambda v: ", ".join(f"`{item}`" for item in v),
        "capitals": lambda v: ", ".join(item.capitalize() for item in v),
        "title": lambda v: ", ".join(map(_title, v)),
        "count first": lambda v: f"three: {v[0]}, {v[1]} and {v[2]}",
        "as well as": lambda v: f"{v[0]} and {v[1]} as well as {v[2]}",
        "along with": lambda v: f"{v[0]} and {v[1]}, along with {v[2]}",
        "first second": lambda v: f"first {v[0]}, second {v[1]}, third {v[2]}",
        "both ... and": lambda v: f"{v[0]}, {v[1]}, and also {v[2]}",
        "table": lambda v: "| goods |\n|---|\n" + "\n".join(f"| {item} |" for item in v),
    },
    "yes_no": {
        "plain": lambda v: "yes" if v else "no",
        "capital": lambda v: "Yes" if v else "No",
        "true": lambda v: "true" if v else "false",
        "True": lambda v: "True" if v else "False",
        "upper": lambda v: "YES" if v else "NO",
        "comma": lambda v: "Yes, it is" if v else "No, it is not",
        "contraction": lambda v: "Yes, it's insured" if v else "No, it isn't insured",
        "clause": lambda v: "it is insured" if v else "it is not insured",
        "state": lambda v: "insured" if v else "not insured",
        "uninsured": lambda v: "Yes, it is insured" if v else "No, it is uninsured",
        "indeed": lambda v: "Yes, indeed" if v else "No, unfortunately not",
        "dash": lambda v: "Yes - insured" if v else "No - not insured",
        "currently": lambda v: "Yes, it is currently insured" if v else "No, it is not currently insured",
    },
    "choice": {
        "plain": str,
        "the": lambda v: f"the {v}",
        "upper": str.upper,
        "lower": str.lower,
        "is longer": lambda v: f"the {v} is longer",
        "longer one": lambda v: f"the longer one is the {v}",
        "of the two": lambda v: f"{v} is the longer of the two",
        "ship": lambda v: f"the ship {v}",
        "quoted": lambda v: f'the "{v}"',
    },
    "pairs": {
        "colons": lambda v: ", ".join(f"{k}: {s}" for k, s in v.items()),
        "is": lambda v: " and ".join(f"the {k} is {s}" for k, s in v.items()),
        "while": lambda v: ", while ".join(f"the {k} is {s}" for k, s in v.items()),
        "semicolon": lambda v: "; ".join(f"{k} is {s}" for k, s in v.items()),
        "equals": lambda v: ", ".join(f"{k} = {s}" for k, s in v.items()),
        "arrows": lambda v: "\n".join(f"{k} → {s}" for k, s in v.items()),
        "bullets": lambda v: "\n".join(f"- **{k}**: {s}" for k, s in v.items()),
        "dashes": lambda v: "\n".join(f"{k} - {s}" for k, s in v.items()),
        "brackets": lambda v: ", ".join(f"{k} ({s})" for k, s in v.items()),
        "value first": lambda v: ", ".join(f"{s} ({k})" for k, s in v.items()),
        "for": lambda v: " and ".join(f"{s} for the {k}" for k, s in v.items()),
        "respectively": lambda v: f"{' and '.join(v.values())}, respectively",
        "JSON": lambda v: json.dumps(v),
        "table": lambda v: (
            "| ship | status |\n|---|---|\n" + "\n".join(f"| {k} | {s} |" for k, s in v.items())
        ),
        "other order": lambda v: ", ".join(f"{k}: {s}" for k, s in reversed(v.items())),
        "but": lambda v: ", but ".join(f"the {k} is {s}" for k, s in v.items()),
        "whereas": lambda v: ", whereas ".join(f"the {k} is {s}" for k, s in v.items()),
        "possessive": lambda v: ", ".join(f"the {k}'s status is {s}" for k, s in v.items()),
    },
}
_PHRASES = ("measure", "mass", "money", "count", "duration", "date", "moment", "person", "place", "id")

# Sentences around a value. "#" is the value, "@" the thing, "%" what was asked of it.
BARE = {
    "alone": "#",
    "full stop": "#.",
    "bold": "**#**",
    "italics": "_#_",
    "bold stop": "**#**.",
    "quotes": '"#"',
    "curly quotes": "“#”",
    "code": "`#`",
    "exclamation": "#!",
    "spaces": "  #  ",
    "check mark": "# ✅",
    "arrow": "→ #",
    "brackets": "(#)",
    "bullet": "- #",
    "heading": "### #",
    "quote": "> #",
    "equals": "= #",
    "label": "%: #",
    "Label": "**Result:** #",
    "JSON": '{"answer": "#"}',
    "JSON label": '{"%": "#"}',
    "fence": "```\n#\n```",
    "underline": "__#__",
    "html": "<b>#</b>",
}
SENTENCES = {
    "it is": "It is #.",
    "that is": "That's #.",
    "of": "The % of the @ is #.",
    "possessive": "The @'s % is #.",
    "inverted": "# is the % of the @.",
    "for": "For the @, the % is #.",
    "so": "So the answer is #.",
    "therefore": "Therefore, it's #.",
    "would be": "That would be #.",
    "source after": "#, according to get_ship.",
    "source in brackets": "# (according to get_ship)",
    "source before": "According to the register, it is #.",
    "based on": "Based on the tool result, the % is #.",
    "listed": "The record lists #.",
    "listed as": "It is listed as #.",
    "shows": "The tool shows #.",
    "recorded": "The % is recorded as #.",
    "sure": "Sure! It is #.",
    "I found": "I found that it is #.",
    "as of": "As of now, it is #.",
    "per record": "# as per the record",
    "final": "Final: #",
    "thing first": "@: #",
    "thing dash": "@ - #",
    "bold in sentence": "The % of the **@** is **#**.",
    "you asked": "You asked for the %: it is #.",
    "happy": "Happy to help: #",
    "looks": "Looking at the record, the % is #.",
    "returned": "get_ship returned #.",
    "here": "Here is the %: #",
}
STORIES = {
    "looked up": "I looked up the @ with get_ship. The % is #.",
    "help": "The % of the @ is #. Let me know if you need anything else!",
    "steps": "First I called get_ship for the @. Then I read its record. It is #.",
    "greeting": "Hello! Thanks for asking. The % of the @ is #. Have a nice day.",
    "lines": "Here is what I found:\n\n#",
    "lookup": "After checking the record of the @, I can say that the % is #.",
}

# What is said of a value so that the answer is wrong. "#" is the right value, "~" another record's.
NEGATED = {
    "other": "~",
    "it is other": "It is ~.",
    "of": "The % of the @ is ~.",
    "or": "# or ~",
    "either": "either # or ~",
    "other or": "~ or #",
    "and": "# and ~",
    "slash": "# / ~",
    "comma": "#, ~",
    "not": "not #",
    "it is not": "It is not #.",
    "is not, but": "It is not #, it is ~.",
    "not ... but": "not # but ~",
    "contraction": "It isn't #.",
    "corrected": "#. No wait, it is ~.",
    "corrected dash": "# - sorry, I meant ~",
    "struck": "~~#~~ ~",
    "rather": "~ rather than #",
    "instead": "~ instead of #",
    "not in brackets": "~ (not #)",
    "guess": "maybe #",
    "perhaps": "Perhaps #, perhaps ~.",
    "unknown": "I don't know.",
    "cannot": "I cannot find the % of the @.",
    "echo": "The % of the @.",
    "question": "What is the % of the @?",
    "none": "none",
    "nothing": "",
    "dots": "...",
    "anything but": "anything but #",
    "false that": "It is false that it is #.",
    "used to": "~ (formerly #)",
    "if": "# unless it is ~",
    "bracket other": "# (or ~)",
    "between": "between # and ~",
    "stranger": "§",
    "all": "#, ~, §",
    "wrong mark": "# is wrong",
    "question mark": "#?",
    "never": "never #",
    "could be": "It could be # or something else.",
    "two lines": "#\n~",
    "two bullets": "- #\n- ~",
    "thing of other": "~ is the % of the @.",
}


def _swapped_digits(value: Any) -> str:
    digits = str(value)
    for at in range(len(digits) - 1):
        if (
            digits[at].isdigit()
            and digits[at + 1].isdigit()
            and digits[at] != digits[at + 1]
            and digits[at + 1] != "0"
        ):
            return digits[:at] + digits[at + 1] + digits[at] + digits[at + 2 :]
    return digits + "1"


def _shifted(days: int) -> Writing:
    def write(value: str) -> str:
        at = datetime.fromisoformat(value) + timedelta(days=days)
        return at.isoformat()[: len(value)]

    return write


_QUANTITIES: dict[str, Writing] = {
    "swapped digits": _swapped_digits,
    "ten times": lambda v: _plain(v * 10),
    "one more": lambda v: _plain(v + 1),
    "one less": lambda v: _plain(v - 1),
    "negative": lambda v: f"-{_plain(v)}",
    "more than": lambda v: f"more than {_plain(v)}",
    "less than": lambda v: f"less than {_plain(v)}",
    "at least": lambda v: f"at least {_plain(v)}",
    "twice": lambda v: f"twice {_plain(v)}",
    "range": lambda v: f"{_plain(v)} to {_plain(v + 5)}",
    "plus": lambda v: f"{_plain(v)}+",
    "thousand": lambda v: f"{_plain(v)} thousand",
    "million": lambda v: f"{_plain(v)} million",
    "percent": lambda v: f"{_plain(v)}%",
    "over": lambda v: f"over {_plain(v)}",
    "up to": lambda v: f"up to {_plain(v)}",
    "half": lambda v: f"half of {_plain(v)}",
    "words of another": lambda v: in_words(int(v) + 3),
}
WRONG: dict[str, dict[str, Writing]] = {
    "measure": _QUANTITIES
    | {
        "feet": lambda v: f"{v:.2f} ft",
        "centimetres": lambda v: f"{v:.2f} cm",
        "kilometres": lambda v: f"{v:.2f} km",
        "kilograms": lambda v: f"{v:.2f} kg",
        "coarse": lambda v: f"{round(v, -1) + 10:.0f} m",
        "false conversion": lambda v: f"{v:.2f} m ({v / 100:.3f} km)",
    },
    "mass": _QUANTITIES
    | {"tonnes": lambda v: f"{v} t", "grams": lambda v: f"{v} g", "pounds": lambda v: f"{v:,} lb"},
    "money": _QUANTITIES
    | {
        "dollars": lambda v: f"${v:.2f}",
        "cents": lambda v: f"{v:.2f} cents",
        "pounds": lambda v: f"£{v:.2f}",
    },
    "count": _QUANTITIES | {"ordinal of another": lambda v: ordinal(v + 2)},
    "duration": _QUANTITIES
    | {
        "hours": lambda v: f"{v} hours",
        "seconds": lambda v: f"{v} seconds",
        "false hours": lambda v: f"{v // 60} hours and {(v + 7) % 60} minutes",
    },
    "date": {
        "day after": _shifted(1),
        "day before": _shifted(-1),
        "month after": _shifted(31),
        "year after": _shifted(366),
        "year before": lambda v: f"{int(v[:4]) - 1}{v[4:]}",
        "in words": lambda v: _long_date("{d} {Month} {yyyy}")(_shifted(3)(v)),
        "after": lambda v: f"after {v}",
        "before": lambda v: f"before {v}",
        "month alone": _long_date("{Month} {yyyy}"),
        "year alone": lambda v: v[:4],
        "span": lambda v: f"{v} to {_shifted(4)(v)}",
    },
    "moment": {
        "day after": _shifted(1),
        "year before": lambda v: f"{int(v[:4]) - 1}{v[4:]}",
        "hour after": lambda v: (datetime.fromisoformat(v) + timedelta(hours=1)).isoformat()[:16],
        "half a day": lambda v: (datetime.fromisoformat(v) + timedelta(hours=12)).isoformat()[:16],
        "date alone": lambda v: v[:10],
        "minute": lambda v: (datetime.fromisoformat(v) + timedelta(minutes=1)).isoformat()[:16],
        "before": lambda v: f"before {v}",
    },
    "person": {
        "letter": lambda v: v[:-1] + ("x" if v[-1] != "x" else "y"),
        "deputy": lambda v: f"{v}'s deputy",
        "son": lambda v: f"the son of {v}",
        "other surname": lambda v: f"{v.split()[0]} Miller",
        "with another": lambda v: f"{v} and Bob Miller",
        "invented": lambda v: "Bob Miller",
    },
    "place": {
        "near": lambda v: f"near {v}",
        "letter": lambda v: v[:-1] + ("x" if v[-1] != "x" else "y"),
        "with another": lambda v: f"{v} and Rotterdam",
        "invented": lambda v: "Rotterdam",
        "opposite": lambda v: f"opposite {v}",
    },
    "state": {
        "not": lambda v: f"not {v}",
        "never": lambda v: f"it was never {v}",
        "almost": lambda v: f"almost {v}",
        "neither": lambda v: f"neither {v} nor sunk",
        "invented": lambda v: "sunk",
    },
    "id": {
        "swapped digits": _swapped_digits,
        "truncated": lambda v: v[:-1],
        "longer": lambda v: f"{v}7",
        "other letter": lambda v: ("Z" if v[0] != "Z" else "Y") + v[1:],
        "digits alone": lambda v: v[-3:],
        "suffix": lambda v: f"{v}-B",
    },
    "set": {
        "two": lambda v: f"{v[0]} and {v[1]}",
        "one": lambda v: v[0],
        "one more": lambda v: f"{v[0]}, {v[1]}, {v[2]} and diesel",
        "replaced": lambda v: f"{v[0]}, {v[1]} and diesel",
        "or": lambda v: f"{v[0]}, {v[1]} or {v[2]}",
        "all but": lambda v: f"{v[0]}, {v[1]}, but not {v[2]}",
        "some": lambda v: f"{v[0]}, {v[1]} and maybe {v[2]}",
        "none": lambda v: "none",
        "count alone": lambda v: "three",
        "not": lambda v: f"not {v[0]}, {v[1]} and {v[2]}",
        "bullets of two": lambda v: f"- {v[0]}\n- {v[2]}",
        "bullets of four": lambda v: f"- {v[0]}\n- {v[2]}\n- {v[1]}\n- diesel",
        "JSON of two": lambda v: json.dumps(v[:2]),
        "JSON of four": lambda v: json.dumps([*v, "diesel"]),
        "except": lambda v: f"{v[0]}, {v[1]}, except {v[2]}",
        "and others": lambda v: f"{v[0]}, {v[1]}, {v[2]} and ham",
    },
    "yes_no": {
        "opposite": lambda v: "no" if v else "yes",
        "Opposite": lambda v: "No, it is not" if v else "Yes, it is",
        "clause": lambda v: "it is not insured" if v else "it is insured",
        "contraction": lambda v: "It isn't insured." if v else "It's insured.",
        "both": lambda v: "yes and no",
        "or": lambda v: "yes or no",
        "slash": lambda v: "yes/no",
        "maybe": lambda v: "maybe",
        "not sure": lambda v: "I am not sure",
        "thing": lambda v: "the insurance",
        "other state": lambda v: "uninsured" if v else "insured",
        "then other": lambda v: "Yes. Actually no." if v else "No. Actually yes.",
    },
    "choice": {
        "both": lambda v: "both",
        "neither": lambda v: "neither",
        "same": lambda v: "they are the same length",
        "shorter": lambda v: f"the {v} is shorter",
        "not": lambda v: f"not the {v}",
        "unknown": lambda v: "it is hard to tell",
    },
    "pairs": {
        "swapped": lambda v: ", ".join(f"{k}: {s}" for k, s in zip(v, reversed(v.values()), strict=True)),
        "swapped is": lambda v: " and ".join(
            f"the {k} is {s}" for k, s in zip(v, reversed(v.values()), strict=True)
        ),
        "swapped values": lambda v: " and ".join(reversed(v.values())) + ", respectively",
        "one": lambda v: f"{next(iter(v))}: {next(iter(v.values()))}",
        "same": lambda v: ", ".join(f"{k}: {next(iter(v.values()))}" for k in v),
        "both": lambda v: f"both are {next(iter(v.values()))}",
        "JSON swapped": lambda v: json.dumps(dict(zip(v, reversed(v.values()), strict=True))),
        "one not": lambda v: " and ".join(
            f"the {k} is {n}{s}" for n, (k, s) in zip(("", "not "), v.items(), strict=True)
        ),
        "one changed": lambda v: f"{next(iter(v))}: {next(iter(v.values()))}, {[*v][1]}: sunk",
        "bullets swapped": lambda v: "\n".join(
            f"- {k}: {s}" for k, s in zip(v, reversed(v.values()), strict=True)
        ),
    },
}


def said(question: Asked, *, on_line: bool) -> Iterator[Said]:
    """Yield the right and the wrong answers to a question: lines, or whole texts."""
    kind = question.kind
    frames = dict(BARE)
    if kind in _PHRASES or kind == "state":
        frames |= SENTENCES
        if not on_line:
            frames |= STORIES
    for writing, write in RIGHT[kind].items():
        written = write(question.value)
        for frame, form in frames.items():
            if _fit(written, writing, form):
                yield Said(question, _filled(form, question, written), True, writing, frame)
    for writing, write in WRONG[kind].items():
        for frame, form in frames.items():
            written = write(question.value)
            if _fit(written, writing, form):
                yield Said(question, _filled(form, question, written), False, writing, frame)
    plain = next(iter(RIGHT[kind].values()))
    for frame, form in NEGATED.items():
        if kind in ("yes_no", "set", "pairs") or (kind == "choice" and "%" in form) or not question.others:
            continue
        for place, other in enumerate(question.others):
            text = _filled(form, question, plain(question.value), plain(other))
            yield Said(question, text, False, f"other {place}", frame)


def _fit(written: str, writing: str, form: str) -> bool:
    """Whether a way of writing goes into a frame: one line into one line, quotes not into quotes."""
    if "\n" in written and form not in ("#", "```\n#\n```", "**Result:** #", "%: #", "Here is the %: #"):
        return False
    marks = set('`*_"$\\[{#<') & set(written)
    return not (marks and form not in ("#", "#.", "It is #.", "%: #")) and not (
        written[:1] in "-~" and form.endswith("- #")
    )


def _filled(form: str, question: Asked, value: str, other: str = "") -> str:
    parts = {"#": value, "~": other, "@": question.thing, "%": question.label, "§": question.stranger}
    if form.count("~") >= 4:  # struck out
        return f"~~{value}~~ {other}"
    heading = "### " if form.startswith("### ") else ""
    text = "".join(parts.get(c, c) for c in form.removeprefix("### "))
    return heading + text[:1].upper() + text[1:] if form[:1] == "%" else heading + text
