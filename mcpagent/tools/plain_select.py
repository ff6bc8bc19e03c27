"""Whether an SQL text is one plain SELECT: nothing in it, as any dialect reads it, can change something.

It is cut into the same tokens by every dialect that is asked, so that what one takes for a text another does
not take for code; in each it is one query of nodes that only read; and each function that it calls is known
to read. What stands behind a name of the database itself (a view, a trigger, a function without brackets) is
out of sight.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # what it does not know is refused here, in words
# BigQuery and Spark have no '' for a quote in a text, and would refuse the name O''Brien; what they read
# otherwise (three quotes, backslashes) is refused for all.
_DIALECTS = ("sqlite", "postgres", "mysql", "tsql", "duckdb", "snowflake", "clickhouse", "oracle")
_MOST_CHARS = 20_000
_MOST_DEPTH = 50  # of brackets: deeper ones take a parser longer than a call may take

_READING_NODES = (
    exp.Query,
    exp.With,
    exp.CTE,
    exp.From,
    exp.Join,
    exp.Where,
    exp.Group,
    exp.Having,
    exp.Order,
    exp.Ordered,
    exp.Limit,
    exp.LimitOptions,
    exp.Offset,
    exp.Fetch,
    exp.Distinct,
    exp.Table,
    exp.TableAlias,
    exp.Column,
    exp.Identifier,
    exp.Alias,
    exp.Star,
    exp.Condition,
    exp.Func,  # by name: `_READING_FUNCTIONS`
    exp.Tuple,
    exp.Window,
    exp.WindowSpec,
    exp.Filter,
    exp.WithinGroup,
    exp.Interval,
    exp.IntervalSpan,
    exp.Var,
    exp.DataType,
    exp.DataTypeParam,
    exp.JSONPath,
    exp.JSONPathPart,
)
_CHANGING_NODES = (exp.PropertyEQ, exp.NextValueFor, exp.Operator)  # conditions and functions all the same


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_MANY_ROWS = _words(
    "count sum total avg min max median mode stddev stddev_pop stddev_samp variance var_pop var_samp corr "
    "group_concat string_agg listagg array_agg json_group_array json_group_object json_agg row_number rank "
    "dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value percentile_cont "
    "percentile_disc bool_and bool_or"
)
_OF_NUMBERS_AND_TEXTS = _words(
    "abs round ceil ceiling floor trunc truncate sqrt power pow exp ln log log10 log2 mod sign pi sin cos "
    "tan asin acos atan atan2 degrees radians greatest least lower upper length len char_length "
    "character_length octet_length trim ltrim rtrim btrim substr substring replace instr charindex position "
    "strpos left right concat concat_ws lpad rpad reverse initcap ascii char chr unicode hex printf format "
    "split_part regexp_replace regexp_like regexp_matches regexp_substr starts_with"
)
_OF_DATES = _words(
    "date time datetime timestamp julianday strftime unixepoch date_trunc date_part datepart extract "
    "datediff date_diff dateadd date_add date_sub age year quarter month week day hour minute second "
    "dayofweek dayofmonth dayofyear weekday to_char to_date to_timestamp date_format str_to_date now "
    "current_date current_time current_timestamp getdate"
)
_OF_TYPES = _words(
    "coalesce nullif ifnull isnull nvl iif if cast try_cast convert typeof json_extract json_value "
    "json_query json_array_length json_type json_extract_path_text json_unquote "
    "decimal numeric varchar nvarchar nchar float interval"
)
_READING_FUNCTIONS = _OF_MANY_ROWS | _OF_NUMBERS_AND_TEXTS | _OF_DATES | _OF_TYPES
# What a bracket may follow in a query without calling anything.
_SYNTAX = _words(
    "select from where and or not in exists any all some as by on using join union except intersect over "
    "filter group when then else case between like having limit offset distinct values is"
)
# Begin a statement of T-SQL, which needs no semicolon before it: as an alias it would be one. The first ones
# are statements of one word elsewhere.
_STATEMENTS = _words(
    "abort analyze cluster end reindex start vacuum "
    "alter backup begin break bulk checkpoint commit continue create dbcc deallocate declare delete deny "
    "drop dump exec execute fetch goto grant insert kill load merge raiserror reconfigure restore return "
    "revert revoke rollback save setuser shutdown throw truncate update updatetext use waitfor while "
    "writetext"
)


@lru_cache(maxsize=4096)
def why_not_plain(text: str) -> str | None:
    """Return why a text is not one plain SELECT; None if it is."""
    if len(text) > _MOST_CHARS:
        return f"it has more than {_MOST_CHARS:,} characters"
    if not all(sign.isprintable() or sign in " \t\r\n" for sign in text):
        return "it holds a control character"
    for sign, name in (("\\", "a backslash"), ("--", "a comment"), ("/*", "a comment")):
        if sign in text:
            return f"it holds {name} ({sign})"
    if "'''" in text or '"""' in text:
        return "it holds three quotes in a row"
    text = text.strip().removesuffix(";")
    try:
        first = Dialect.get_or_raise(_DIALECTS[0]).tokenize(text)
        return _of_tokens(text, first) or next(filter(None, (_in_dialect(text, d) for d in _DIALECTS)), None)
    except (SqlglotError, RecursionError):
        return "it cannot be read as SQL"


def is_name(text: str) -> bool:
    """Return whether a text is one name, with dots at most, and not a statement of one word."""
    parts = text.split(".")
    return all(part.isidentifier() for part in parts) and _STATEMENTS.isdisjoint({text.lower()})


def _of_tokens(text: str, read: list[Token]) -> str | None:
    if not read or read[0].text.lower() not in ("select", "with", "("):
        return "it does not begin with SELECT or WITH"
    spans = [(token.start, token.end) for token in read]
    for dialect in _DIALECTS:
        others = Dialect.get_or_raise(dialect).tokenize(text)
        if any(token.comments for token in others):
            return f"it holds a comment, as {dialect} reads it"
        if [(token.start, token.end) for token in others] != spans:
            return f"{dialect} reads it otherwise: write texts in '...', names bare or in \"...\""
    depth = deepest = 0
    for before, token, after in zip([None, *read], read, [*read[1:], None], strict=False):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        deepest = max(deepest, depth)
        if token.token_type is TokenType.SEMICOLON:
            return "it holds several statements"
        if after is None or after.text != "(" or _is_sign(token):
            continue
        name = token.text.lower()
        is_bare = before is None or before.text != "."
        if not is_bare or name not in _READING_FUNCTIONS | _SYNTAX:
            return f"{token.text}(...) is not known to read only"
    return f"its brackets are nested more than {_MOST_DEPTH} deep" if deepest > _MOST_DEPTH else None


def _is_sign(token: Token) -> bool:
    named = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING)
    return token.token_type not in named and not any(map(str.isalnum, token.text))


def _in_dialect(text: str, dialect: str) -> str | None:
    parsed = sqlglot.parse(text, read=dialect)
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
        return "it is not one SELECT"
    for node in parsed[0].walk():
        if isinstance(node, _CHANGING_NODES) or not isinstance(node, _READING_NODES):
            return f"{type(node).key.upper()} is not part of a plain SELECT"
        for name in _called(node):
            if name.lower() in _STATEMENTS:
                return f"{name} as an alias can be a statement of its own"
        if isinstance(node, exp.Column) and node.name.lower() == "nextval":
            return "NEXTVAL changes a sequence"
    return None


def _called(node: exp.Expr) -> Iterator[str]:
    """Yield the names that an alias gives without quotes."""
    if isinstance(node, exp.Alias | exp.TableAlias):
        for part in (node.args.get("alias"), node.args.get("this"), *(node.args.get("columns") or ())):
            if isinstance(part, exp.Identifier) and not part.args.get("quoted"):
                yield part.name
