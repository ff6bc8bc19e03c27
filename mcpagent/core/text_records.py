"""The list or the record that a text is, as servers write it that answer people: tables, rows, items, lines.

    | id   | name |        id;name           - ws-1: North Bay       ## North Bay
    |------|------|        ws-1;North Bay     - ws-2: Old Mill        ID: ws-1
    | ws-1 | North Bay |   ws-2;Old Mill      1. North Bay (ws-1)     Region: coast

names in one line: `Stations: ws-1, ws-2 and ws-3`, and one thing with a line, or a row of a table, for each
field. What a fence holds (```csv) is read by `core.placeholders`.

Only what has one structure from its first item to its last is taken for a list; prose is not.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_LONGEST = 200_000  # characters
_LONGEST_ITEM = 160
_LONGEST_NAME = 60  # of an item without any mark
_LEAST_JOINED = 4  # names in one line
_JOINED = re.compile(r"[\w./-]{0,59}[^\W\d_][\w./-]{0,59}")
_FILE = re.compile(r"[\w./-]*\w\.[A-Za-z]\w{1,4}")
_AROUND = 3  # lines before the first item and after the last: a title, a count, a hint
_DELIMITERS = "\t|;,"
_MARK = re.compile(r"(\s*)(?:[-*•+]|\d{1,4}[.)])\s+(?=\S)")
_HEADING = re.compile(r"#{1,6}\s+(?=\S)")
_RULE = re.compile(r"\s*([-=_*~])\1{2,}\s*")
_COLUMN_RULE = re.compile(r"\s*[-=]{3,}(?:\s+[-=]{2,})*\s*")
_TABLE_RULE = re.compile(r"\s*[|+]?(\s*:?[-=]{2,}:?\s*[|+])*\s*:?[-=]{2,}:?\s*[|+]?\s*")
_PAIR = re.compile(r"[\s*•+-]*([A-Za-z][^:\n]{0,39}?)[*_`]*:[*_`]*\s+(\S.*)")
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_GAP = re.compile(r" {2,}")
_CODE = re.compile(r"(?=\S*\d)[\w./#-]+|[A-Z]{2,6}")
_YEAR = re.compile(r"1\d{3}|20\d\d")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ABSENT = ("-", "–", "—")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,9})?")
_LABEL = re.compile(r"([^:,]{1,60}):\s+(.+)")
_ONE_WORD = re.compile(r"\S+")
_NAME = re.compile(r"\S+|[A-Z0-9]\S*(?: (?:of|the|de|[A-Z0-9]\S*)){0,4}")  # one word, or words as names have
_EMPHASIS = "*_`\"'"
# What stands between the parts of an item, and whether the second may be the code: `ws-1: North Bay`,
# `ws-1 - North Bay`, `North Bay (ws-1)`, `North Bay (#ws-1) and more`. In `Height: 12` and `Height - 12` the
# number is no code.
_BETWEEN = (
    (re.compile(r"(?P<a>[^:]+):\s+(?P<b>.+)"), False),
    (re.compile(r"(?P<a>.+\S)\s*[(\[<](?:(?:ID|Id|id)[:=]?\s*|#)?(?P<b>[^()\[\]<>]+)[)\]>]"), True),
    (re.compile(r"(?P<a>[^(:]+\S)\s*\((?:[Ii][Dd][:=]?\s*|#)(?P<b>[^()\s]+)\)[\s,:;].*"), True),
    (re.compile(r"[(\[<](?:(?:ID|Id|id)[:=]?\s*|#)?(?P<a>[^()\[\]<>]+)[)\]>]:?\s*(?P<b>.+)"), False),
    (re.compile(r"(?P<a>.+?)\s+(?:[-–—|]|->|=>)\s+(?P<b>.+)"), False),
    (re.compile(r"(?P<a>\S[^\t]*)\t+(?P<b>[^\t]+)"), False),
)
_CODED = re.compile(r"(?=\S*\d)[\w./#-]+:\s")
_DETAIL = (" (", ", ", " - ", " | ")  # begins what else a line says of the thing that it names
_CODE_NAME = re.compile(r"[A-Za-z]+[-/#]\d+")  # of a thing, not of a field
_Record = dict[str, str]


def text_records(text: str) -> list[Any] | None:
    """Return what a text lists, in order: objects with the fields that it names, or `id` and `name`; or
    strings. None if it is not a list. Fields of which each value is written as JSON writes numbers are
    numbers."""
    if len(text) > _LONGEST:
        return None
    if "\n" not in text.strip():
        return _enumerated(text.strip()) or _joined(text.strip())
    records = _parsed(text)
    return None if records is None else [dict(r) if isinstance(r, dict) else r for r in records]


def text_fields(text: str) -> dict[str, Any] | None:
    """Return the fields of the one thing that a text is about, of which each row of a table or each line
    names one, from the first such line to where they end; a title may stand above, and nothing below names
    one of them again. None for other texts."""
    lines = [line.rstrip() for line in text[:_LONGEST].strip().splitlines()]
    if (of_table := _one_thing(_table(lines) or ())) is not None:
        return _typed([of_table])[0]
    pairs = [_PAIR.fullmatch(line) for line in lines]
    start = next((number for number, pair in enumerate(pairs) if pair), len(pairs))
    above = [line for line in lines[:start] if line and not _HEADING.match(line)]
    fields = [(pair[1], pair[2]) for pair in itertools.takewhile(bool, pairs[start:]) if pair]
    names = _fields([name for name, _ in fields])
    below = {pair[1] for pair in pairs[start + len(fields) :] if pair}
    is_repeated = not below.isdisjoint(name for name, _ in fields)
    are_things = any(_CODE_NAME.fullmatch(name) for name, _ in fields)
    if len(above) >= _AROUND or not fields or names is None or is_repeated or are_things:
        return None
    return _typed([_record(names, [value for _, value in fields])])[0]


def _enumerated(text: str) -> list[Any] | None:
    """Names in one line: `Rooms: A1, B2 and C3`; if it does not say what they are, four words or more."""
    label, names = match.groups() if (match := _LABEL.fullmatch(text)) else ("", text)
    items = [_bare(item) for item in re.split(r",\s+(?:and\s+|or\s+)?|\s+and\s+", names)]
    least = 3 if label else 4
    if len(items) < least or "," not in names or len(set(items)) < len(items):
        return None
    form = _NAME if label else _ONE_WORD
    is_of_names = all(form.fullmatch(item) and len(item) <= _LONGEST_NAME for item in items)
    return [record["item"] for record in _typed([{"item": item} for item in items])] if is_of_names else None


def _joined(line: str) -> list[Any] | None:
    """Return the names that a line joins by commas alone, as JavaScript prints a list."""
    parts = line.split(",")
    least = 2 if all(map(_FILE.fullmatch, parts)) else _LEAST_JOINED
    is_list = len(parts) >= least and len(set(parts)) == len(parts)
    return list(parts) if is_list and all(map(_JOINED.fullmatch, parts)) else None


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[dict[str, Any] | str | int | float, ...] | None:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    whole = _listed(lines)
    if names := [item for item in whole if isinstance(item, str)]:
        return tuple(record["item"] for record in _typed([{"item": name} for name in names]))
    records = [item for item in whole or _listed(_body(lines)) if isinstance(item, dict)]
    return None if _one_thing(records) is not None else tuple(_typed(records)) or None


def _listed(lines: Sequence[str]) -> Sequence[_Record | str]:
    """Return the records that a table, rows, blocks or items list; nothing if the lines are no list."""
    return next(filter(None, (reader(lines) for reader in (_table, _rows, _blocks, _items))), ())


def _body(lines: Sequence[str]) -> list[str]:
    """The lines between empty ones that are all of a text but a few; none if there are no such."""
    parts = [list(group) for is_told, group in itertools.groupby(lines, lambda line: line != "") if is_told]
    body = max(parts, key=len, default=list[str]())
    return body if 0 < sum(map(len, parts)) - len(body) <= _AROUND else []


def _one_thing(records: Sequence[_Record]) -> _Record | None:
    """Return the one thing of which each row of a table gives a field and its value; None for other
    tables."""
    if not records or len(records[0]) != 2 or [*records[0]][1] != "value":
        return None
    cells = [[*record.values()] for record in records]
    names = _fields([name for name, _ in cells])
    return None if names is None else _record(names, [value for _, value in cells])


def _typed(records: Sequence[_Record]) -> list[dict[str, Any]]:
    """Return the records with numbers in the fields that hold nothing else, but for a dash."""
    values: dict[str, list[str]] = {}
    for record in records:
        for name, value in record.items():
            values.setdefault(name, []).append(value)
    told = {name: [value for value in column if value not in _ABSENT] for name, column in values.items()}
    numbers = {(n, v) for n, column in told.items() if all(map(_is_number, column)) for v in column}
    return [{n: json.loads(v) if (n, v) in numbers else v for n, v in r.items()} for r in records]


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and json.dumps(json.loads(text)) == text


def _table(lines: Sequence[str]) -> list[_Record] | None:
    """Return a table of Markdown, or one that is drawn with + and |."""
    rules = [number for number, line in enumerate(lines) if "-" * 2 in line or "==" in line]
    for number in rules:
        if number == 0 or not _TABLE_RULE.fullmatch(lines[number]) or "|" not in lines[number - 1]:
            continue
        names = _fields(_cells(lines[number - 1]))
        if names is None:
            return None
        rows: list[list[str]] = []
        for line in lines[number + 1 :]:
            if _TABLE_RULE.fullmatch(line) and line.strip():
                continue
            if "|" not in line:
                break
            rows.append(_cells(line))
        if rows and all(len(row) == len(names) for row in rows):
            return [_record(names, row) for row in rows]
    return None


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _rows(lines: Sequence[str]) -> list[_Record] | None:
    """Rows of the same number of cells under a line of names; two spaces or more part them too."""
    ruled = _ruled(lines)
    lines = [_GAP.sub("\t", line.strip()) for line in ruled or lines if line.strip()]
    least = 2 if ruled else 3
    for delimiter in _DELIMITERS:
        if len(lines) < least or any(delimiter not in line for line in lines):
            continue
        try:
            head, *rows = csv.reader(lines, delimiter=delimiter, strict=True)
        except csv.Error:
            continue
        names = None if any(":" in cell for cell in head) else _fields(head)
        if names is None or any(len(row) != len(names) for row in rows):
            continue
        # A sentence has no names, nor has a line of which a cell stands again below.
        is_again = any(cell == below for row in rows for cell, below in zip(head, row, strict=True))
        if not (is_again or head[-1].endswith(".")):
            return [_record(names, row) for row in rows]
    return None


def _ruled(lines: Sequence[str]) -> list[str]:
    """The names over a rule, and the rows below it; a title may stand above, and a count below."""
    rules = [number for number, line in enumerate(lines) if number and _COLUMN_RULE.fullmatch(line)]
    if not rules or rules[0] > _AROUND + 1:
        return []
    below = lines[rules[0] + 1 :]
    ends = (number for number, line in enumerate(below) if not line.strip() or _COLUMN_RULE.fullmatch(line))
    return [lines[rules[0] - 1], *below[: next(ends, len(below))]]


def _blocks(lines: Sequence[str]) -> list[_Record] | None:
    """Things with a line for each field, between which an empty line, a rule, a heading or a mark is."""
    for starts in (_after_gap, _at_heading, _at_mark):
        blocks: list[list[str]] = []
        for number, line in enumerate(lines):
            if starts(lines, number):
                blocks.append([])
            elif starts is _at_mark and blocks and line[:1].strip():
                break  # what follows the list
            if blocks and line.strip() and not _RULE.fullmatch(line):
                blocks[-1].append(line)
        records = [_of_block(block) for block in blocks]
        # A title or a count may stand before the things, and after them if a gap sets it apart.
        if starts is not _at_mark and records and records[0] is None:
            del records[0]
        if starts is _after_gap and records and records[-1] is None:
            del records[-1]
        whole = [record for record in records if record is not None]
        if len(whole) < max(2, len(records)) or all(len(block) == 1 for block in blocks):
            continue
        shared = set(whole[0]).intersection(*whole)
        if len(shared) >= 2 and any(shared == set(record) for record in whole):
            return whole
    return None


def _after_gap(lines: Sequence[str], number: int) -> bool:
    is_gap = not lines[number - 1].strip() or _RULE.fullmatch(lines[number - 1]) is not None
    return bool(lines[number].strip()) and not _RULE.fullmatch(lines[number]) and (number == 0 or is_gap)


def _at_heading(lines: Sequence[str], number: int) -> bool:
    return _HEADING.match(lines[number]) is not None


def _at_mark(lines: Sequence[str], number: int) -> bool:
    mark = _MARK.match(lines[number])
    return mark is not None and not mark[1]


def _of_block(block: Sequence[str]) -> _Record | None:
    """Return the fields that the lines of a block name; its first line may be the name of the thing alone."""
    record: _Record = {}
    for number, line in enumerate(block):
        text = _HEADING.sub("", _MARK.sub("", line, count=1), count=1) if number == 0 else line
        parts = [_PAIR.fullmatch(part) for part in text.split(" | ")]
        pairs = [pair for pair in (parts if all(parts) else [_PAIR.fullmatch(text)]) if pair]
        names = _fields([pair[1] for pair in pairs]) if pairs else None
        if names is not None and record.keys().isdisjoint(names):
            record |= _record(names, [pair[2] for pair in pairs])
        elif number == 0 and not pairs and len(text) <= _LONGEST_NAME:
            record |= (_two_parts([text]) or [{"name": _bare(text)}])[0]
        else:
            return None
    return record if len(record) >= 2 else None


def _items(lines: Sequence[str]) -> Sequence[_Record | str] | None:
    """Lines that are an item each, marked as such or not."""
    marked = [number for number, line in enumerate(lines) if _MARK.match(line)]
    if marked:
        first, last = marked[0], marked[-1]
        inside = [line for line in lines[first : last + 1] if line.strip()]
        indents = {match[1] for line in inside if (match := _MARK.match(line))}
        if max(first, len(lines) - 1 - last) > _AROUND or len(inside) != len(marked) or len(indents) > 1:
            return None
        texts, longest = [_MARK.sub("", line, count=1).strip() for line in inside], _LONGEST_ITEM
    else:
        texts = [line.strip() for line in lines if line.strip()]
        longest = _LONGEST_ITEM if texts and all(map(_CODED.match, texts)) else _LONGEST_NAME
        if texts and (texts[0].endswith(":") or _HEADING.match(texts[0])):
            del texts[0]
        if len(texts) < 3 or any(text[-1] in ".!?:,;{}" for text in texts):
            return None
    if len(texts) < 2 or max(map(len, texts)) > longest:
        return None
    are_rows = not marked and any(all(delimiter in text for text in texts) for delimiter in _DELIMITERS)
    return _inline(texts) or _two_parts(texts) or (None if are_rows else _plain(texts))


def _plain(texts: Sequence[str]) -> list[str] | None:
    """Items that are a name each; not the fields of one thing, nor names after what sort each is of."""
    if any(_PAIR.fullmatch(text) or text[0] in "[(<" for text in texts) or len(set(texts)) < len(texts):
        return None
    return [_bare(text) for text in texts]


def _inline(texts: Sequence[str]) -> list[_Record] | None:
    """Items that name their fields themselves: `id: ws-1, name: North Bay`."""
    for between in (r"\s*\|\s*", r";\s+", r",\s+"):
        rows = [[_PAIR.fullmatch(part) for part in re.split(between, text)] for text in texts]
        pairs = [[(pair[1], pair[2]) for pair in row if pair] for row in rows]
        if any(len(row) < 2 or None in row for row in rows):
            continue
        names = _fields([name for name, _ in pairs[0]])
        if names and all([n for n, _ in row] == [n for n, _ in pairs[0]] for row in pairs):
            return [_record(names, [value for _, value in row]) for row in pairs]
    return None


def _two_parts(texts: Sequence[str]) -> list[_Record] | None:
    """Items that are a code and a name; each code stands once, and at the same place of every item."""
    for between, is_last in _BETWEEN:
        matches = [between.fullmatch(text) for text in texts]
        parts = [(_bare(m["a"]), _bare(m["b"])) for m in matches if m]
        if len(parts) < len(texts):
            continue
        for code in (0, 1):
            codes = [row[code] for row in parts]
            if not all(map(_CODE.fullmatch, codes)) or len(set(codes)) < len(codes):
                continue
            if code == 1 and all(map(_YEAR.fullmatch if is_last else _NUMBER.fullmatch, codes)):
                continue
            field = "date" if all(map(_DATE.fullmatch, codes)) else "id"
            names = [row[1 - code] for row in parts]
            for mark in _DETAIL:
                if all(mark in name for name in names):
                    names = [name.partition(mark)[0] for name in names]
            return [{field: row[code], "name": name} for row, name in zip(parts, names, strict=True)]
    return None


def _record(names: Sequence[str], values: Sequence[str]) -> _Record:
    return {name: _bare(value) for name, value in zip(names, values, strict=True)}


def _fields(names: Sequence[str]) -> list[str] | None:
    """Names as fields of a record; None if one cannot be a name, or two are the same."""
    told = ["number" if name == "#" else _bare(name).lower() for name in names]
    fields = [re.sub(r"\W+", "_", name).strip("_") for name in told]
    is_named = all(map(_FIELD.fullmatch, fields)) and len(set(fields)) == len(fields)
    return fields if is_named else None


def _bare(text: str) -> str:
    """Without the marks of emphasis, and of a number: #3."""
    return re.sub(r"^#(?=\d+$)", "", text.strip().strip(_EMPHASIS).strip())
