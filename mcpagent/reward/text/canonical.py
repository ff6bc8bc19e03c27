"""Text as it is read: numbers in digits, one kind of quotes, no marks that say nothing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import cast

from text_to_num import alpha2digit as _alpha2digit  # pyright: ignore

from mcpagent.reward.text.words import WORDS, pattern

_digits = cast("Callable[..., str]", _alpha2digit)  # it has no types

_LONG_SPACE = re.compile(r"(\s\s)\s+")  # patterns with spaces take time by the square of it, or more
_STRUCK = re.compile(r"~~.*?~~|<(del|s|strike)>.*?</\1>|(?:.\u0336)+", re.DOTALL | re.IGNORECASE)
_MARKS = re.compile(
    r"[*`]+|(?<!\w)_+|_+(?!\w)|^\s*>\s+|\bi\.e\.,?|</?(?:[biup]|em|strong|code|br|span|div|li|[uo]l)\s*/?>",
    re.MULTILINE | re.IGNORECASE,
)
_TEX = re.compile(
    r"\\(?:left|right|quad)\b|\\[,;:! ()\[\]]|\$+(?=[^$\n]+\$(?!\d))|(?<=[\w})])(?<!\b[A-Z]{2})\$+(?!\d)"
)
_TEX_BOX = re.compile(r"\\(?:boxed|text\w*|math\w+)\s*\{([^{}]*)\}")
_TEX_MARKS = (("\\times", "×"), ("\\cdot", "×"), ("\\%", "%"), ("\\$", "$"), ("{,}", ","), ("\\_", "_"))
_LINK = re.compile(r"\[([^\]\n]+)\]\((?:mailto:)?([^()\s]+)\)|<((?:https?:|mailto:)?[^<>\s]*[@/][^<>\s]*)>")
_POWER = re.compile(r"(\d(?:\.\d+)?)\s?[×x*·]\s?10\s?(?:\^\s?\{?\s?([-+−]?\d+)\}?|([⁻⁺]?[⁰¹²³⁴-⁹]+))")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_DRAWN = re.compile(r"½ ?[-–—] ?½")  # of chess
_VULGAR = re.compile(r"(\d*)\s?([¼½¾⅓⅔⅛])")
_MIXED = re.compile(r"(?<![\d/.])(\d+) ([1-9])/([248])(?![\d/])")  # 12 3/4
_QUOTES = str.maketrans(
    {
        "’": "'",
        "‘": "'",
        "“": '"',
        "”": '"',
        "♭": "-flat",
        "♯": "-sharp",
        "−": "-",
        "–": "-",
        "—": "-",
        "‑": "-",
    }
)
_SPELT = pattern("spelt")
_MORE_SPELT = [(re.compile(said, re.IGNORECASE), instead) for said, instead in WORDS["more_spelt"].items()]
_SCALED = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?)[ -]({'|'.join(WORDS['scales'])})s?\b", re.IGNORECASE)
_DECIMAL_SCALED = re.compile(r"\b(\d+\.\d+) (1000(?:000)*)\b")  # four point five million
_CENTURIES = {"nineteen": "19", "twenty": "20"}
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_YEAR = re.compile(  # nineteen eighty-six
    rf"\b(nineteen|twenty) ((?:ten|eleven|twelve|\w+teen|(?:{_TENS})"
    r"(?:[- ](?:one|two|three|four|five|six|seven|eight|nine))?)\b)",
    re.IGNORECASE,
)
# "that one", but not "that one hour"
_PRONOUN = re.compile(
    r"\b((?:that|this|which|the|each|every|any|other|another|only|last|next|first|same) o)ne\b"
    r"(?! [a-z]{3,}| \d)|\b(o)nes\b",
    re.IGNORECASE,
)
_DOZEN = re.compile(r"\b(?:(\d+) )?dozen\b", re.IGNORECASE)
_FIRST_ONE = re.compile(
    r"(?<=\d(?:st|nd|rd|th) )1\b|(?<![\w.-])1(?= of (?:the|its|their|his|her|my) )"
    r"|(?<=\b(?:last|next|only|same) )1(?=\W*$| (?:on|in|at|is|was|of)\b|[,;])"
)
_A_LONG_ONE = re.compile(r"\b((?:an?|the|another|every) (?:[a-z]+ )?)1(?=[.,;!?)](?!\d)|$)", re.MULTILINE)
_LONG_UNIT = re.compile("|".join(f"({pattern})" for pattern in WORDS["long_units"].values()), re.IGNORECASE)
_LONG_UNIT_STARTS = tuple(WORDS["long_unit_starts"])  # one of them is in what has a long unit: quick to see
_HALVES = {"half": 0.5, "quarter": 0.25, "three quarter": 0.75, "3 quarter": 0.75}
_AND_A_HALF = re.compile(
    r"\b(an?|one|\d+)((?: [a-z]+)?) and (?:an? )?(half|(?:(?:three|3)[ -])?quarter)s?\b"
    r"(?!(?-i: [A-Z][a-z]{2}))",  # "96 and Half Moon Bay"
    re.IGNORECASE,
)
_MONEY = [
    "pounds?",
    *(name for coins in WORDS["money"].values() for name in coins.get(1, "").split() if name.isalpha()),
]
_COINS = re.compile(rf"\b(\d+) ({'|'.join(_MONEY)}) (\d\d)\b(?! ?[c¢p%])", re.IGNORECASE)  # 38 francs 60
# "6 minutes 18", "2 m 38"
_PARTS = {"h": "min", "min": "s", "m": "cm"}
_BARE_PART = re.compile(
    r"\b(\d+ ?(?:(h)(?:ours?|rs)|(min)(?:ute)?s?|(m)(?:et(?:re|er)s?)?) \d\d)\b(?! ?[\w%:°]|[.,]\d)"
)
_CLOCK, _PART_OF_DAY = pattern("clock"), pattern("part_of_day")
_DOTTED = re.compile(r"\b[A-Za-z]\.(?: ?[A-Za-z]\.){1,2}")
LEGAL = frozenset(WORDS["legal_forms"].split())
_AND = re.compile(
    r"\b(?:as well as|along with|together with|in addition to|und|et(?! al\b))\b", re.IGNORECASE
)
_COORDINATE = re.compile(r"(\d+(?:\.\d+)?)\s?(?:°|degrees?)\s?([NSEW]|north|south|east|west)\b")
_NUMERO = re.compile(
    r"\bno\.? ?(?=#?\d)|\bno\. ?(?=(?:[A-Z]+-)+\d)|(?<=[a-z] )no(?: is|:) (?=[A-Z]*[-/ ]?\d)|(?<!\w)#(?=\d)"
    r"|^(?-i:no\. ?(?=[A-Z]{1,4}(?: ?[A-Z\d-]+)+\W*$))",
    re.IGNORECASE,
)
_ISO_WEEK, _DAY_LATER = re.compile(r"\b\d{4}-W(?=[0-5]\d\b)"), re.compile(r"\(\+1 ?d(?:ay)?\)")
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=[$€£]?\d)|-(?=(?:[A-Z]{3}|[₹¥]) ?\d)", re.IGNORECASE)
_MINUS_OUTSIDE = re.compile(r"(?<![\w-])-([A-Z]{3} ?|[₹¥] ?)(?=\d)")
_GROUPS = re.compile(r"(?<![\w.,])(?<![^\W\d_]-)\d{1,3}(?:[ ']\d{3})+(?!\d)")
_COMMA_DECIMALS = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d{1,2}|\d{4,})(?!\d|,\d)")
_COMMA_GROUPS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d|,\d)")
_POINT_GROUPS = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.,])")
MONTHS = [tuple(names.split()) for names in WORDS["months"]]
MONTH = rf"(?:{'|'.join(name for names in MONTHS for name in names)})\b\.?"
DAY = r"\d{1,2}(?:st|nd|rd|th|er)?"
_DAYS_OF_MONTH = re.compile(
    rf"(?<![,&\d] )(?<!and )(?<!or )(?<![.:])\b({DAY}(?:(?:,| and| or| &|, and) {DAY})+ (?:of )?)({MONTH})",
    re.IGNORECASE,
)
# September 2023, on the 14th
_DAY_AFTER = re.compile(
    rf"({MONTH} \d{{4}})(,? on|,| \()? ?the (\d{{1,2}})(?:st|nd|rd|th)\b\)?", re.IGNORECASE
)
_MONTH_BEFORE = re.compile(rf"{MONTH}:? $", re.IGNORECASE)


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return `text` without struck-out words, marks of Markdown and LaTeX and invisible characters, with
    straight quotes, the digits 0 to 9 and numbers in digits."""
    text = _STRUCK.sub(" ", _LONG_SPACE.sub(r"\1", text))
    if "\\" in text or "$" in text:
        for mark, instead in _TEX_MARKS:
            text = text.replace(mark, instead)
        text = _TEX.sub(" ", _TEX_BOX.sub(r"\1", _TEX_BOX.sub(r"\1", text)))
    if "10" in text:
        text = _POWER.sub(lambda m: f"{m[1]}e{(m[2] or m[3]).translate(_RAISED).replace('−', '-')}", text)
    if not text.isascii():
        text = _DRAWN.sub("1/2-1/2", text)
        text = _VULGAR.sub(lambda m: f"{float(m[1] or 0) + unicodedata.numeric(m[2]):.4g}", text)
        text = unicodedata.normalize("NFKC", text.translate(_QUOTES))
        text = "".join(map(_plain_character, text))
    text = _MIXED.sub(lambda m: f"{int(m[1]) + int(m[2]) / int(m[3]):.4g}", text)
    text = _AND.sub("and", _LINK.sub(_link, _MARKS.sub("", text)))
    text = _DOTTED.sub(
        lambda m: w if (w := m[0].replace(".", "").replace(" ", "")).lower() in LEGAL else m[0], text
    )
    text = _COORDINATE.sub(lambda m: ("-" if m[2][0] in "SWsw" else "") + m[1], text)
    if any(map(text.lower().__contains__, _LONG_UNIT_STARTS)):
        text = _LONG_UNIT.sub(_long_unit, text)
    if _SPELT.search(text):
        text = _SCALED.sub(_scaled, text)
        for pattern, instead in _MORE_SPELT:
            text = pattern.sub(instead, text)
        text = _YEAR.sub(lambda m: _CENTURIES[m[1].lower()] + _digits(m[2], "en", threshold=1), text)
        text = _PRONOUN.sub(lambda m: f"{m[1]}\ue000" if m[1] else f"{m[2]}\ue000s", text)
        # "one" stays a word: it is mostly a pronoun.
        text = "\n".join(_digits(line, "en", threshold=1) for line in text.split("\n"))
        text = text.replace("\ue000", "ne")
        text = _DOZEN.sub(lambda m: str(12 * int(m[1] or 1)), text)
        text = _A_LONG_ONE.sub(r"\1one", text)
        text = _DECIMAL_SCALED.sub(lambda m: f"{Decimal(m[1]) * int(m[2]):f}", _FIRST_ONE.sub("one", text))
    if "pound" in text.lower():  # "nine pounds and eighty pence"
        text = _LONG_UNIT.sub(_long_unit, text)
    text = _SCALED.sub(_scaled, _AND_A_HALF.sub(_with_half, text))
    text = _COINS.sub(r"\1.\3 \2", text)
    text = _BARE_PART.sub(lambda m: f"{m[1]} {_PARTS[m[2] or m[3] or m[4]]}", text)
    text = _PART_OF_DAY.sub(_on_the_clock, _CLOCK.sub(_clock, text))
    text = _DAYS_OF_MONTH.sub(_with_month, text)
    text = _DAY_AFTER.sub(r"\3 \1", text)
    text = _DAY_LATER.sub("(next day)", _ISO_WEEK.sub("week ", _NUMERO.sub("number ", text)))
    text = _MINUS_OUTSIDE.sub(r"\1-", text)
    text = _MINUS.sub("-", text)
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = _COMMA_GROUPS.sub(lambda m: m[0].replace(",", ""), text)
    text = _POINT_GROUPS.sub(lambda m: m[0].replace(".", ""), text)
    return _COMMA_DECIMALS.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)


@lru_cache(maxsize=4096)
def is_number_word(word: str) -> bool:
    """Return whether a word is a number in one of the languages that are known."""
    return any(
        _digits(word, language, threshold=0) != word for language in ("de", "fr", "es", "it", "pt", "nl")
    )


def _link(match: re.Match[str]) -> str:
    shown, target = match[1], match[2]
    if match[3]:
        return match[3]
    return shown if target.casefold() in shown.casefold() or "@" in target else f"{shown} ({target})"


def _scaled(match: re.Match[str]) -> str:
    number = Decimal(match[1].replace(",", "")).scaleb(WORDS["scales"][match[2].lower()])
    return f"{number:f}"


def _long_unit(match: re.Match[str]) -> str:
    is_before = match.string[match.end() : match.end() + 1].isdigit()
    return [*WORDS["long_units"]][(match.lastindex or 1) - 1] + " " * is_before


def _with_half(match: re.Match[str]) -> str:
    whole = int(match[1]) if match[1].isdigit() else 1
    return f"{whole + _HALVES[match[3].lower().replace('-', ' ')]:g}{match[2]}"


def _clock(match: re.Match[str]) -> str:
    minutes = {"half": 30, "quarter": 15}.get(match[1].lower()) or int(match[1])
    hour = {"midnight": 24, "noon": 12, "one": 1}.get(match[3].lower()) or int(match[3])
    hour, minutes = (hour % 24, minutes) if match[2].lower() == "past" else ((hour - 1) or 12, 60 - minutes)
    is_half_told = match[3].lower() in ("noon", "midnight") or re.match(
        r" ?[ap]\.?m\b", match.string[match.end() :], re.I
    )
    return f"{hour}:{minutes:02}" + ("" if is_half_told else " o'clock")


def _on_the_clock(match: re.Match[str]) -> str:
    half = "am" if (match[3] or "").lower() == "morning" or (match[4] and match[1] == "12") else "pm"
    return f"{match[1]}{match[2]} {half}"


def _with_month(match: re.Match[str]) -> str:
    """24 April and 25 April for "24 and 25 April", but not in "5 Oct: 12, 7 Oct: 15"."""
    if _MONTH_BEFORE.search(match.string[: match.start()]):
        return match[0]
    return re.sub(r"(?<=\w)(?=,| and\b| or\b| &)", f" {match[2]}", match[1]) + match[2]


def _plain_character(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf":
        return ""
    return str(unicodedata.digit(character)) if kind == "Nd" else character
