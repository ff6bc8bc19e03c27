"""Tables of Markdown in an answer, as lines that say the same."""

from __future__ import annotations

import re

from mcpagent.core.text_records import text_records
from mcpagent.core.values import is_json_object
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.phrasing import HEDGE
from mcpagent.reward.text.vocabulary import stems

_TABLE = re.compile(r"(?:^[ \t]*\|.*\|[ \t]*(?:\n|\Z)){3,}", re.MULTILINE)
_CODE_FIRST = re.compile(r"((?=\S*\d)[\w./#-]+) (\S.*)")


def read_tables(text: str, said: str) -> str:
    """Return a text in which a table of one row has a line for each field, and one of several rows a line for
    each row with its thing and what the question `said` asks for. A table that says it otherwise stays."""
    heard = stems(canonical(said))
    return _TABLE.sub(lambda match: _lines_of(match[0], heard) or match[0], text)


def _lines_of(table: str, heard: frozenset[str]) -> str:
    records = [record for record in text_records(table) or () if is_json_object(record)]
    if len(records) == 1:
        return "".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in records[0].items())
    names = [*records[0]] if records else []
    asked = [name for name in names if not stems(name.replace("_", " ")).isdisjoint(heard)]
    kept = asked if len(asked) > 1 else [*names[:1], *asked]
    if len({*kept}) != 2 or HEDGE.search(" ".join(names)):
        return ""
    told = {str(record[kept[1]]) for record in records}
    if any(str(record[name]) in told for record in records for name in names if name not in kept):
        return ""  # another column offers the values too
    rows = ((_apart(str(record[kept[0]])), record[kept[1]]) for record in records)
    return "".join(f"{thing}: {value}\n" for thing, value in rows)


def _apart(thing: str) -> str:
    """A thing with its name in brackets behind its code."""
    match = _CODE_FIRST.fullmatch(thing)
    return f"{match[1]} ({match[2]})" if match else thing
