"""What the things and fields of results are called, and the expressions that lead to them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from mcpagent.config.environment import resource_path
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.answers import Leaf, Place, is_cursor, is_paging, one_of, place_of
from mcpagent.synth.explore.graph import OF_ONE_TABLE, Fact, name_words, scalars
from mcpagent.tools.probes.arguments import resolved

SQL = re.compile(r"\s*SELECT\s.*\sFROM\s+[\"'`\[]?(\w+)", re.IGNORECASE)
_CATALOGUES = ("sqlite_master", "sqlite_schema", "information_schema")  # what lists the tables
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
CODE = re.compile(r"[A-Za-z#]{0,4}[-_]?\d[\w-]*|(?=\D*\d)[0-9a-f]{8}[0-9a-f-]{4,}")
PASTED = re.compile(r"(?=\S*\d)[\w-]{20,}")  # a UUID or hash: people copy one of them, and never type it
_QUOTABLE = re.compile(r"[\"'{}]")
_LONGEST_NAME = 5  # words of a value that stands in a sentence without quotes
# Words of names that say nothing of what is meant.
_NAMING = ("name", "title", "label", "full_name", "fullname", "display_name", "username", "login")
NO_NAME = 99
_ADJUNCTS = ("from", "to", "on", "with", "without")  # what subjects without a thing begin with
_OTHER_NAMING = ("symbol", "ticker", "code", "slug", "path", "key", "id")
_PLACE = re.compile(r"\[(\d+)\]")
_AMOUNT = re.compile(r"-?[\d.]+ \S.* in \S.*")  # of what is converted
_SHIFTED = re.compile(r"-?[\d.]+ \w+ (after|before) \S.*")


@lru_cache(maxsize=1)
def frames() -> Mapping[str, Any]:
    """The content of `templates/wording/intent.yaml`."""
    return yaml.safe_load(resource_path("templates/wording/intent.yaml").read_text("utf-8"))


@lru_cache(maxsize=32)
def lexicon(what: str) -> frozenset[str]:
    """The words of names of that sort."""
    return frozenset(frames()["words"][what].split())


def field_words(leaf: Leaf, fact: Fact) -> str:
    """What a person calls the field of a leaf: `weight in kg` for `weight_kg`, what the tool is about where
    its own name says nothing."""
    place = place_of(leaf)
    tail = [name for name in place.tail if name.lower() not in lexicon("generic")]
    if not tail and {*name_words(fact.spec.name)} & lexicon("converts"):
        return "amount"
    if not tail and place.rows is None:
        is_date = isinstance(leaf.value, str) and DATE.fullmatch(leaf.value)
        return "date" if is_date else counted(topic(fact.spec), leaf.value)
    if not tail:
        return topic(fact.spec)
    if len(tail) > 1 and tail[-1].lower() in ("name", "value"):
        return spaced(tail[-2])
    if event := event_of(leaf):
        return when_of(event, leaf.value)
    return counted(_without_kind(human("_".join(tail[-2:])), fact), leaf.value)


def _without_kind(words: str, fact: Fact) -> str:
    """`name` for the `pub name` of a pub, not where another thing has found it."""
    first, _, rest = words.partition(" ")
    nouns = [noun for name in fact.arguments if (noun := noun_in(name)) and not is_paging(name)]
    is_name = {*rest.lower().split()} <= lexicon("identifiers")
    if is_name and nouns and all(first not in name_words(noun) for noun in nouns):
        return words
    return rest if rest and first == one_of(topic(fact.spec).split()[-1]) else words


def event_of(leaf: Leaf) -> str:
    """The participle of a field that says when something happened to a thing: `built` for `built: 1987`.
    Empty where the field is not called so, or its value is neither a year nor a date."""
    place = place_of(leaf)
    word = spaced(leaf.name if place.wrap else place.field or leaf.name)
    word = re.sub(r"^year |( (year|at|on|in|date))+$", "", word)
    if not (re.fullmatch(r"[a-z]{3,}ed", word) and word not in lexicon("not_events")) and (
        word not in lexicon("events")
    ):
        return ""
    value = leaf.value
    is_year = re.fullmatch(r"1\d{3}|20\d\d|2100", str(value)) is not None
    is_date = isinstance(value, str) and DATE.fullmatch(value) is not None
    return word if is_year or is_date else ""


def when_of(event: str, value: Any) -> str:
    """`construction year` for what was `built` in 1950, `opening date` for what was `opened` on a day."""
    return f"{_noun_of_event(event)} {'date' if DATE.fullmatch(str(value)) else 'year'}"


def _noun_of_event(event: str) -> str:
    if event in frames()["nouns"]:
        return frames()["nouns"][event]
    if event.endswith("ated"):
        return f"{event[:-2]}ion"
    if event.endswith(("ized", "ised")):
        return f"{event[:-2]}ation"
    if event.endswith("ied"):
        return f"{event[:-3]}ying"
    return f"{event.removesuffix('ed')}ing"


def counted(words: str, value: Any) -> str:
    """`number of platforms` for the `platforms` of a station where they are a number."""
    last = words.rpartition(" ")[2]
    is_several = last.endswith("s") and not last.endswith(("ss", "us", "is"))
    is_measure = last in lexicon("singular") or {"of", "in"} & {*words.split()}
    return f"number of {words}" if is_number(value) and is_several and not is_measure else words


def human(name: str) -> str:
    """`n_prices` is `number of prices`, `weight_kg` `weight in kg`, `change_percent` `change in percent`."""
    words = spaced(name).split()
    if len(words) > 1 and words[0] in ("n", "num", "nr", "count", "total") and words[-1].endswith("s"):
        return f"number of {' '.join(w for w in words[1:] if w != 'of')}"
    if len(words) > 1 and words[-1] in ("count", "total"):
        return f"number of {plural(' '.join(words[:-1]))}"
    if len(words) > 1 and words[-1] in (*lexicon("units"), "percent"):
        return f"{' '.join(words[:-1])} in {words[-1]}"
    said = " ".join(words)
    for phrase, noun in frames()["phrases"].items():
        said = re.sub(rf"\b{phrase}$", noun, said)
    return " ".join(frames()["written"].get(word, word) for word in said.split())


def spaced(name: str) -> str:
    """`repo_path` and `repoPath` are `repo path`."""
    return " ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_\-./]", " ", name).lower().split())


def topic(spec: ToolSpec) -> str:
    """What a tool is about, by its name: `market gainers` for `fmp_get_market_gainers`."""
    server = set(spaced(spec.server).split())
    words: list[str] = []
    for word in spaced(spec.name).split():
        if words and word in lexicon("ends"):
            break
        if (
            word not in lexicon("verbs")
            and word not in server
            and word not in lexicon("ends")
            and word not in ("all", "the", "my")
        ):
            words.append(word)
    named = spaced(spec.name).split()
    alike = [] if lexicon("works_out") & {*named} else [w for w in named if w in server - lexicon("verbs")]
    return " ".join(words) or " ".join(alike) or "result"


def plural(noun: str) -> str:
    """Several things of a kind."""
    if noun.endswith(("ch", "sh", "x", "ss")):
        return noun + "es"
    if noun.endswith("s"):
        return noun
    return noun[:-1] + "ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else noun + "s"


def kind_of(fact: Fact, place: Place, about: str = "") -> str:
    """What one item of the list is, in words; `about` is what the call is said to be about."""
    kind = spaced(place.kind)
    head, _, last = kind.rpartition(" ")
    if head and one_of(last) in lexicon("identifiers"):
        kind = head  # `recipe_ids` lists recipes
    if kind and kind not in lexicon("generic"):
        return one_of(kind)
    for name, text in fact.texts:
        if match := SQL.match(text):
            if match[1].lower() in _CATALOGUES:
                return "table"
            return one_of(spaced(match[1])) if about == match[1] else "entry"
        if set(spaced(name).split()) & lexicon("not_a_noun"):
            return "match"
    words = one_of(topic(fact.spec))
    if words == "table" and OF_ONE_TABLE & {*name_words(fact.spec.name)}:
        return "column"
    member = frames()["members"].get(topic(fact.spec).split()[-1])
    return member or (words if words.split()[-1] not in lexicon("generic") else "entry")


def key_of(leaf: Leaf, fact: Fact) -> Leaf | None:
    """The sibling of a leaf of a list by which a person tells its item from the others."""
    place = place_of(leaf)
    if place.rows is None:
        return None
    for name, column in _naming_columns(fact.leaves).get(place.rows, ()):
        mine = column.get(place.index)
        if name != place.field and mine is not None and not _QUOTABLE.search(str(mine.value)):
            return mine
    return None


def holder_of(fact: Fact, place: Place, key: Leaf | None = None) -> str | None:
    """The thing that has the list, where it is one of several that have such a list. Empty where there is one
    list alone, or `key` tells the item from those of all lists; None where the thing has no name."""
    above, _, below = (place.rows or "").rpartition("[")
    number = below.partition("]")[0]
    if not above or not any(_in_other_item(leaf.expression, above, number) for leaf in fact.leaves):
        return ""
    if key and sum(leaf.value == key.value and leaf.field == key.field for leaf in fact.leaves) == 1:
        return ""
    for _, column in _naming_columns(fact.leaves).get(above, ()):
        if "[" not in above and (mine := column.get(int(number))) is not None:
            return said_value(mine.value)
    return None


def _in_other_item(expression: str, rows: str, number: str) -> bool:
    return f"{rows}[" in expression and f"{rows}[{number}]" not in expression


@lru_cache(maxsize=1024)
def _naming_columns(leaves: tuple[Leaf, ...]) -> Mapping[str, list[tuple[str, dict[int, Leaf]]]]:
    """By list, the columns whose texts tell its items apart, those first that people use."""
    columns: dict[str, dict[str, dict[int, Leaf]]] = {}
    for leaf in leaves:
        at = place_of(leaf)
        is_name = (
            at.rows is not None and len(at.tail) == 1 and at.wrap is None and isinstance(leaf.value, str)
        )
        if is_name and at.rows is not None and naming_rank(at.field) < NO_NAME:
            columns.setdefault(at.rows, {}).setdefault(at.field, {})[at.index] = leaf
    return {
        rows: [
            (name, by_name[name])
            for name in sorted(by_name, key=naming_rank)
            if len({leaf.value for leaf in by_name[name].values()}) == len(by_name[name])
        ]
        for rows, by_name in columns.items()
    }


def naming_rank(name: str) -> int:
    """How little a field is what people call a thing by: 0 is `name`, NO_NAME is not at all."""
    word = spaced(name).replace(" ", "_")
    names = (*_NAMING, *_OTHER_NAMING)
    if word in names:
        return names.index(word)
    last = word.rpartition("_")[2]
    return 20 + names.index(last) if last in names else NO_NAME


def subject_of(fact: Fact, *, instead: Mapping[str, str] | None = None) -> str:
    """What the call is about: its arguments as a person names them, some by a phrase `instead` of them.
    Empty for a call without arguments."""
    phrases = instead or {}
    if worked_out := _worked_out(fact, phrases):
        return worked_out
    main: list[tuple[str, str]] = []
    extra: list[str] = []
    choices: list[str] = []  # what the schema gives to choose from says too little alone
    for name, value in fact.arguments.items():
        if is_paging(name, value):
            continue  # nobody asks for a part of a list
        text = phrases.get(name) or said_value(value)
        if name not in phrases and " " in text and not text.startswith('"') and _is_free(name, value):
            text = f'"{text}"'
        words = set(spaced(name).split())
        if isinstance(value, bool):
            extra.append(f"{'with' if value else 'without'} {spaced(name)}")
        elif words & lexicon("from"):
            extra.insert(0, f"from {text}")
        elif words & lexicon("to"):
            extra.append(f"to {text}")
        elif isinstance(value, str) and DATE.fullmatch(value):
            extra.append(f"on {text}")
        elif isinstance(value, str) and name not in phrases and (noun := _choice_noun(fact.spec, name)):
            choices.append(f"the {noun} {text}")
        elif name not in phrases and is_number(value) and (many := _of_number(name, text)):
            extra.append(f"with {many}")
        elif main and isinstance(value, int | float):
            extra.append(f"with {noun_in(name) or spaced(name)} {text}")
        else:
            main.append((name, text if name in phrases else _named(fact, name, text)))
    things = [text for _, text in main]
    if len(main) > 1:
        things = [
            text if " " in text else f"{noun_in(name) or spaced(name)} {text}".strip() for name, text in main
        ]
    if not things:
        things, choices = choices[:1], choices[1:]
    return " ".join([" and ".join(things), *(f"for {choice}" for choice in choices), *extra]).strip()


def _worked_out(fact: Fact, phrases: Mapping[str, str]) -> str:
    """What is worked out of a number, as people say it: `97 CHF in USD`, `30 days after 2024-01-02`. Empty
    for other calls."""
    words = {*name_words(fact.spec.name)}
    numbers = [(name, v) for name, v in fact.arguments.items() if is_number(v) and name not in phrases]
    rest = {n: phrases.get(n) or said_value(v) for n, v in fact.arguments.items() if not is_number(v)}
    if len(numbers) != 1 or len(rest) + 1 != len(fact.arguments):
        return ""
    name, number = numbers[0]
    source, target = (
        next((text for n, text in rest.items() if {*spaced(n).split()} & lexicon(side)), "")
        for side in ("from", "to")
    )
    if words & lexicon("converts") and len(rest) == 2 and source and target:
        is_phrase = source in phrases.values()
        return f"{number}{' of' if is_phrase else ''} {source} in {target}"
    when = "after" if words & lexicon("later") else "before" if words & lexicon("earlier") else ""
    is_dated = len(rest) == 1 and all(DATE.fullmatch(str(fact.arguments[n])) for n in rest)
    return f"{number} {noun_in(name)} {when} {next(iter(rest.values()))}" if when and is_dated else ""


def _of_number(parameter: str, text: str) -> str:
    """`at least 3 stars` for `min_stars`, `3 seats` for `seats`; empty where the name says no such thing."""
    first, _, rest = noun_in(parameter).partition(" ")
    bound = {"min": "least", "minimum": "least", "max": "most", "maximum": "most"}.get(first, "")
    noun = rest if bound else noun_in(parameter)
    is_several = noun.endswith("s") and one_of(noun) != noun and noun.split()[-1] not in lexicon("singular")
    if not bound or not rest:
        return f"{text} {noun}" if is_several else ""
    return f"at {bound} {text} {noun}" if is_several else f"a {noun} of at {bound} {text}"


def is_amount(subject: str) -> bool:
    """Whether a subject is an amount of one thing in another: `97 CHF in USD`."""
    return _AMOUNT.fullmatch(subject) is not None


def _is_free(parameter: str, value: Any) -> bool:
    """Whether an argument is any text, rather than the name of a thing."""
    words = set(spaced(parameter).split())
    return isinstance(value, str) and not SQL.match(value) and bool(words & lexicon("not_a_noun"))


def is_adjunct(subject: str) -> bool:
    """Whether a subject names no thing, only times or choices: `from USD to EUR`, `on 2025-01-02`."""
    return subject.split(" ", 1)[0] in _ADJUNCTS or _SHIFTED.fullmatch(subject) is not None


def of(subject: str) -> str:
    """A subject as the end of a phrase: `of Aurora`, `from USD to EUR`."""
    return subject if is_adjunct(subject) else f"of {subject}"


def _choice_noun(spec: ToolSpec, parameter: str) -> str:
    """What a parameter chooses that takes one of a few values: `month` for `month`. Empty for others."""
    schema = resolved(spec.input_schema.get("properties", {}).get(parameter, {}), spec.input_schema)
    return noun_in(parameter) if schema.get("enum") else ""


def _named(fact: Fact, name: str, text: str) -> str:
    """`berth 12`, but `Aurora`: a number or a code alone says nothing."""
    value = fact.arguments[name]
    is_number_or_code = is_number(value) or (isinstance(value, str) and CODE.fullmatch(value))
    noun = noun_of(fact, name) if is_number_or_code else ""
    return f"{noun} {text}" if noun else text


def noun_in(parameter: str) -> str:
    """The noun that a name of a parameter or field holds; empty for `query` or `id`."""
    words = [
        frames()["codes"].get(w, w)
        for w in spaced(parameter).split()
        if w not in lexicon("identifiers") and w not in lexicon("not_a_noun")
    ]
    return " ".join(words)


def noun_of(fact: Fact, parameter: str) -> str:
    """What kind of thing a parameter names: `channel` for `channel_id`, `ship` for the `name` of a ship.
    Empty where neither the parameter nor the tool says so."""
    if any(SQL.match(text) for name, text in fact.texts if name == parameter):
        return ""
    if noun := noun_in(parameter):
        return noun
    words = set(spaced(parameter).split())
    if words & {"symbol", "ticker"}:
        return spaced(parameter)
    if words & lexicon("not_a_noun"):
        return ""
    return one_of(topic(fact.spec).split()[-1])


def said_value(value: Any) -> str:
    """An argument as it stands in a sentence: the table of a SELECT, quotes around what is long."""
    if isinstance(value, list):
        texts = [said_value(item) for item in value]
        return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if match := SQL.match(value):
        return "the database" if match[1].lower() in _CATALOGUES else match[1]
    plain = "\n" not in value and len(value.split()) <= _LONGEST_NAME and value[-1:].isalnum()
    return value if plain and '"' not in value else json.dumps(value, ensure_ascii=False)


def at_of(fact: Fact, about: str) -> str:
    """Where a list was got from, as the end of a phrase: ` in ships`, ` for Aurora`; or nothing."""
    if not about or is_adjunct(about):
        return about and f" {about}"
    is_inside = any(
        SQL.match(text) or "/" in text or set(spaced(name).split()) & lexicon("inside")
        for name, text in fact.texts
    )
    return f" {'in' if is_inside else 'for'} {about}"


def at_step(expression: str, number: int) -> str:
    """The expression over the result of that step."""
    return expression.replace("@", f"step{number}")


def expression_of(leaf: Leaf, fact: Fact, number: int) -> str:
    """The leaf in the result of a step: in a list that names its items by the name, since that is what the
    question says."""
    place, key = place_of(leaf), key_of(leaf, fact)
    if key is None or place.rows is None or place.wrap or len(place.tail) != 1:
        return at_step(leaf.expression, number)
    rows = at_step(place.rows, number)
    by_name = (
        f'at(find(pluck({rows}, "{place_of(key).field}"), "{key.value}"), pluck({rows}, "{place.field}"))'
    )
    return by_name if len(by_name) < 280 else at_step(leaf.expression, number)


def tables_of(fact: Fact) -> list[tuple[str, Leaf]]:
    """The lists of a result, each with a leaf of every column of its first item."""
    seen: dict[tuple[str, tuple[str, ...]], Leaf] = {}
    lengths: dict[str, set[int]] = {}
    for leaf in fact.leaves:
        place = place_of(leaf)
        if place.rows is not None and "[" not in place.rows and place.wrap is None and len(place.tail) == 1:
            seen.setdefault((place.rows, place.tail), leaf)
            lengths.setdefault(place.rows, set()).add(place.index)
    return [(rows, leaf) for (rows, _), leaf in seen.items() if len(lengths[rows]) >= 3]


def column_of(fact: Fact, leaf: Leaf) -> list[str | int | float]:
    """The values of the field of a leaf in all items of its list."""
    place = place_of(leaf)
    return [o.value for o in fact.leaves if (p := place_of(o)).rows == place.rows and p.tail == place.tail]


def unit_of(leaf: Leaf) -> str:
    """The unit that the name of a field ends with; empty where there is none that is converted, or nothing
    else in the name."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", place_of(leaf).field).lower()
    what, _, last = name.rpartition("_")
    is_count = counted(human(name), leaf.value).startswith("number of ")  # `skipped_days` are no skipped time
    return last if what and not is_count and last in frames()["conversions"] else ""


def same_place(leaf: Leaf | None, fact: Fact | None) -> Leaf | None:
    """The leaf at the same place of another result; of what a line of a text says after a name, that of the
    same name, since values of several words move what follows."""
    if leaf is None or fact is None:
        return None
    if leaf.name and place_of(leaf).wrap:
        return next((each for each in fact.leaves if each.name and each.label == leaf.label), None)
    return next((other for other in fact.leaves if other.expression == leaf.expression), None)


def whole_of(leaf: Leaf) -> str:
    """The text that a word or number is taken from, as an expression."""
    return leaf.expression.partition("(")[2].rpartition(",")[0]


def is_number(value: object) -> bool:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_quantity(leaf: Leaf) -> bool:
    """Whether a leaf is a number that is more or less than another, which one that names a thing is not."""
    place = place_of(leaf)
    if not place.tail and place.rows is not None and place.kind.lower() in ("", *lexicon("generic")):
        return isinstance(leaf.value, float)  # whole numbers of a list without a name are those of things
    last = spaced(place.field or place.kind).rpartition(" ")[2]
    return is_number(leaf.value) and not {last, one_of(last)} & lexicon("identifiers")


def subject_set(fact: Fact) -> frozenset[str]:
    """The arguments of a call as texts, whatever their parameters are called."""
    return frozenset(str(value) for value in scalars(fact.arguments))


def is_worth_asking(leaf: Leaf) -> bool:
    """Not what could be guessed: a short word, a small number, or the place in a list that it is asked of;
    nor what nobody would count to."""
    if not leaf.is_near or is_cursor(leaf.name):
        return False
    if place_of(leaf).wrap and not leaf.name and str(leaf.value).lower() in lexicon("stop"):
        return False
    if isinstance(leaf.value, str):
        return len(leaf.value) >= 3 and any(character.isalnum() for character in leaf.value)
    places = [int(place) for place in _PLACE.findall(leaf.expression)]
    return abs(leaf.value) > 2 and leaf.value not in places and leaf.value - 1 not in places
