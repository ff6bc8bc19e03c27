"""What a free text says against a value: words around it are no evidence, rivals and denials are.

A value that is said stands unless it is denied, doubted or bounded where it is said, or another of its kind
is offered: joined to it ("A and B", "5 or 6"), grown onto it ("Folk rock"), or said after it without being
known as something else of what was shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, takewhile
from math import isclose
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.values import as_number
from mcpagent.reward.text.amounts import Amount, amounts, are_comparable, clocks, is_conversion, is_rounded
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.grammar import (
    BRACKETS,
    DATE,
    FIELDS,
    KIN,
    NUMBER,
    ORDINAL,
    blanked,
    is_amount,
    is_any_qualified,
    is_bare,
    is_converted,
    is_in_code,
    kind_of,
    record_texts,
    tags_of,
    without_annotations,
)
from mcpagent.reward.text.moments import Span, agree, moment_is, moments, whole_moment
from mcpagent.reward.text.names import words
from mcpagent.reward.text.phrasing import HEDGE, NO_DENIAL, AnswerContext, is_asked_modal, is_qualified
from mcpagent.reward.text.reading import says, spans_of
from mcpagent.reward.text.shown import shown_leaves, shown_records
from mcpagent.reward.text.vocabulary import (
    BLANK,
    FUNCTION_WORDS,
    NEGATED,
    SAFE,
    field_labels,
    stem,
    stems,
    without_asked,
)

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_CLAUSE_END = re.compile(
    r"[();]|\s-\s|:\s|,(?! (?:or|and)\b)|\b(?:but|and|so|while|whereas|though|although)\b", re.IGNORECASE
)
_LARGE = 100  # smaller numbers differ by one that is shown by chance
_SHORT_LINE = 200  # characters
_LEAST_TOLD = 2  # values of another record make a clause one about that
_CHOICE = ("or", "nor", "either", "neither")
_PRONOUNS = frozenset(("it", "that", "this", "they", "or", "and"))
_JOINT = re.compile(r"(?=.*\S)[\s,;/&|-]*(?:\b(?:and|or|to|vs|versus|bis|und|oder)\b[\s,]*)?", re.DOTALL)
_REMARK = re.compile(r"\([^()]*[^\W\d_][^()]*\)")
_OTHERWISE = re.compile(
    r"\b(?:but|while|whereas|though|although)\b[^.]*\0[^.]* (?:is|are|was|were|has|have|had|do|does|did)\b"
)
_NOT = re.compile(r"(?:(?<=\w)n't|\bnot)\b(?: been\b)?")
_IF = re.compile(r"(?<=\d )if\b")  # "(279 if you book online)"
_ALL_OF = re.compile(r"\b(?:the|all|these) $")
_CLAUSE = re.compile(r"[^;.\n(),]+(?:[.,](?=\d)[^;.\n(),]+)*")
_ITEM_JOINT = re.compile(r"([,;&|/\n](?:\s*and\b)?|\band\b|(?<=\w)[.:](?=\s|$))")
_PART_END = re.compile(r"(?<=[.!?])\s+|[\n;,(]|\b(?:and|but|while|whereas)\b")
_SUBJECT = re.compile(r"([^:]*[^\W\d_][^:]*?)(?::| (?:is|are|was|were|has|have|had)\b)")
_OF_THING = re.compile(r"(?:\W+\w+){0,3}?\s(?:of|in|for)\s(.+)")
_LACKS = re.compile(r"\0 (?:has|have|had|with) no(?:body)?\b")  # "which is free?" - "B has no assignee"
_ASKS_LACK = re.compile(r"\b(?:lack(?:s|ing)?|miss(?:es|ing)|without)\b", re.IGNORECASE)
# "Which are unpaid?" - "A and B haven't been paid."
_LACKED = re.compile(
    r"\b(?:without|lack(?:s|ing)?|(?:has|have|had) no)\b(?! (?:doubt|question))", re.IGNORECASE
)
_FAILED, _UN = re.compile(r"\bfail(?:s|ed)?\b", re.IGNORECASE), re.compile(r"\bun([a-z]{4,})", re.IGNORECASE)
_IDENTIFIER = re.compile(r"\s*(?=\w*[\d_])\w*[a-z]\w*[.\s]*")  # ppc64le, due_on
_NAMED = frozenset(("named", "called"))
_YEAR = re.compile(r"\b(?:in|during|for) (?:19|20)\d\d\b(?![-/.,]\d)", re.IGNORECASE)
_OF_YEAR = re.compile(r"\b(?:in|during|for|of) (?:Q[1-4] )?$")
_PER_THING = re.compile(r" per (?!hour|day|night|week|month|quarter|year)[a-z]+")
_DAY = re.compile(r"\bthe (\d\d?)(?:st|nd|rd|th)\b")
_THEN_CAME = re.compile(r"\W*it (?:is|was) (?:followed|preceded) by ", re.IGNORECASE)
_CLEFT = re.compile(r"\W*it(?:'s| is| was) the (?=[^.;]* (?:that|which|who)\b)", re.IGNORECASE)
_DIFFERS = re.compile(
    r"[^.,;\n\d]{0,30}?\b(?:more|less|fewer|left|missing|remain\w*|over|above|below|under|off|up|down|ahead|behind|(?!oth|aft|ev|nev)\w+er)\b"
)
_BY = re.compile(r"\b(?:up|down|by|another)(?: about| roughly)? [$€£]?$")
_NUMBERED = re.compile(r"[A-Z][^\W\d_]{3,}(?: [^\W\d_]+)* \d+")  # Trailhead 30
_LABEL = re.compile(
    r"\b(week|round|page|room|gate|track|row|floor|lane|line|run|stage|chapter|build|season) $"
)
_PERIOD = re.compile(r"\b(?:last|past|next|previous|coming) $")
_ANOTHER = re.compile(r"\banother $")
_PART = re.compile(r" of (?:them|these|which|whom)\b")
_NOUN = re.compile(r" [^\W\d_]{3,}")


def _joined(joint: str, closed: str) -> str:
    """V next to a rival behind "and", "or", a slash, or a comma, that `closed` ones are too."""
    behind = f"V[ks]*&[,&]*[ak]*{joint}|V[ks]*,[,&]*[ak]*{closed}"
    return f"{behind}|{joint}[ks]*&[,&]*[ak]*V|{closed}[ks]*,[,&]*[ak]*V"


# Letters as in `tags_of`; M is a date, # a number. A name of the same record may be in apposition.
_GROWN = "[XN#]V|V[XN#]"
_SECOND = "^[ak]*[xz]&[ak]*V|V[ks]*&[ak]*[xzs]+(?=[.,&)]|$)"
_AGAINST = {
    kind: re.compile("|".join(forms))
    for kind, forms in {
        "name": (_joined("[SXN#]", "[XN#]"), _GROWN, r"V[ks]*\([^)]*X", "(?:^|[,&:c(])a?s+[,&]+V", _SECOND),
        "code": (_joined("[SXN#]", "[XN#]"), _GROWN, r"V[ks]*\([^)]*X", _SECOND),
        "amount": (_joined("[M#]", "[M#]"), r"#p?a?V|Vp?a?#|V[ks]*\([M#]\)|[M#]\(V\)"),
        "items": ("(?:^|[.:,c(])[akx]*[XNS#]+[ks]*[,&]+[ak]*V|#[,&]+[ak]*V", f"{_GROWN}|Vx(?=[&,]+[ak]*V)"),
        "names": (_joined("[X#]", "[X#]"),),
        "amounts": (_joined("[M#]", "#"),),
    }.items()
}


def stands(
    text: str,
    spans: Sequence[Span],
    targets: Sequence[Any],
    context: AnswerContext,
    *,
    kind: str = "",
    is_quoted: bool | None = None,
) -> bool:
    """Return whether a text that says a value says it: an answer line says nothing else, a free text nothing
    against it."""
    if (
        len(targets) == 1
        and kind != "choice"
        and all(is_of_another(text, s, targets[0], context) for s in spans)
    ):
        return False
    if context.on_line and not context.is_lenient:
        return is_bare(text, spans, targets, context, kind=kind, is_quoted=is_quoted)
    kind = kind or kind_of(targets)
    if is_any_qualified(text, spans, context, kind):
        return False
    rest = blanked(text, spans)
    if kind != "choice":
        rest = without_annotations(text, spans, targets, context, is_list=kind == "items")
    if _is_denied(rest, context):
        return False
    if kind == "choice":
        return True  # its rivals are the other options
    said = canonical(context.said)
    if is_quoted is None:
        is_quoted = any(says(target, said) for target in targets)
    right = [a for a in amounts(text) if any(start <= a.start < end for start, end in spans)]
    marked = _marked(rest, right, targets, context, kind)
    if marked is None:
        return False
    tags = tags_of(marked, targets, context, is_quoted=is_quoted, kind=kind)
    if kind in ("names", "amounts") and FIELDS.search(tags.replace("&", ",")):
        return False  # pasted records
    if kind == "items":
        of_items = _words_of_own_records(
            tuple(map(format_value, targets)), tuple(r.content for r in context.results)
        )
        tags = tags.replace("S", "k").replace("s", "k") if of_items else tags
        if _has_other_items(marked, of_items):
            return False
    if kind == "name" and "who" in words(said) and KIN.search(tags):
        return False
    return _AGAINST[kind].search(tags) is None


def _marked(
    rest: str, right: Sequence[Amount], targets: Sequence[Any], context: AnswerContext, kind: str
) -> str | None:
    """A text with marks in place of its dates, and of its numbers that nothing accounts for. What agrees with
    a target, or stands in the question, goes. None if it names another year than a date has."""
    said = canonical(context.said)
    dates = [date for target in targets if (date := whole_moment(format_value(target)))]
    shown = [m for text in record_texts(targets, context) for m in moments(text)] if dates else []
    for moment in moments(rest):
        is_same = any(agree(moment, date) for date in dates)
        is_same |= any(moment_is(moment, other, precision=None) for other in moments(said))
        is_known = not dates or (kind != "items" and any(agree(moment, other) for other in shown))
        rest = blanked(rest, [(moment.start, moment.end)], " " if is_same else DATE if is_known else NUMBER)
    heard = {amount.number for amount in amounts(said)}
    if not dates and not any(_YEAR.fullmatch(f"in {format_value(target)}") for target in targets):
        rest = _YEAR.sub(lambda m: " " * len(m[0]), rest)
    if kind == "items":
        heard.add(len(targets))
    for date in dates:
        heard.update((date.readings[0].year, date.readings[0].year % 100))
    are_years = all(re.fullmatch(r"1[0-9]\d\d|20\d\d", format_value(target)) for target in targets)
    is_apart = kind in ("name", "code") or not any(map(is_amount, targets))
    for amount in amounts(rest):
        if DATE in rest[slice(*amount.span)] or is_in_code(rest, amount) or ORDINAL.match(rest, amount.start):
            continue
        is_same = amount.number in heard or any(is_conversion(amount, one) for one in right)
        if not is_same and (is_apart or dates):
            is_same = is_shown_beside(amount, targets, context)
        is_same |= amount.unit is not None and are_years  # "in 1897, two years after that"
        if dates and not is_same and amount.unit is None and 1000 < amount.number < 2200:
            return None
        rest = blanked(rest, [amount.span], " " if is_same or dates else NUMBER)
    return rest


@lru_cache(maxsize=512)
def _words_of_own_records(items: tuple[str, ...], contents: tuple[str, ...]) -> frozenset[str]:
    """The words of the records that show one of the items, if none shows all of them."""
    told: list[str] = []
    for text in (" \n ".join(r.texts) for content in contents for r in shown_records(content)):
        shown = [bool(spans_of(item, text)) for item in items]
        if all(shown):
            return frozenset()
        told += words(text) if any(shown) else []
    return frozenset(told)


def _has_other_items(rest: str, of_items: Set[str]) -> bool:
    """Whether an enumeration of blanked values has another item: a part between two of them, or joined to the
    last one, that is no clause. `of_items` are words of the records of the items."""
    parts = _ITEM_JOINT.split(BRACKETS.sub(lambda m: m[0] if BLANK in m[0] else " ", rest))
    items = [at for at in range(0, len(parts), 2) if BLANK in parts[at]]
    first, last = items[0], items[-1]
    is_closed = any("and" in parts[at] or "&" in parts[at] for at in range(first + 1, last, 2))
    for at in range(first, len(parts), 2):
        if at > last and (
            at > last + 2
            or not _is_joint(parts[at - 1], is_closed=is_closed)
            or set(words(parts[last].rpartition(BLANK)[2])) - SAFE  # something is said of them
        ):
            break
        told = words(parts[at])
        is_code = _IDENTIFIER.fullmatch(parts[at]) is not None
        is_clause = not is_code and any(FUNCTION_WORDS.get(word, "") in ("c", "p") for word in told)
        if at > last and len(items) > 1 and not is_closed and "and" in parts[at - 1]:
            told = list(takewhile(lambda word: FUNCTION_WORDS.get(word) != "c", told))  # "A, B and C are"
            is_clause = len(told) == len(words(parts[at])) and is_clause
        if (
            at not in items
            and not is_clause
            and (NUMBER in parts[at] or is_code or set(told) - SAFE - of_items - _NAMED)
        ):
            return True
    return False


def _is_joint(mark: str, *, is_closed: bool) -> bool:
    """Whether an enumeration goes on behind its last value: behind a comma if no "and" has closed it."""
    return "\n" in mark or "and" in mark or "&" in mark or (mark.strip() in (",", "|", "/") and not is_closed)


def _is_denied(rest: str, context: AnswerContext) -> bool:
    """Whether a sentence with a blanked value doubts it, or a clause of it denies it. What a clause denies of
    something else that it names is no denial of the value, nor are words of the question or of a result, such
    as "a false alarm"."""
    said = _NOT.sub(" not", canonical(context.said))
    lacked = _UN.sub(r"not \1", _FAILED.sub("not pass", _LACKED.sub("not have", said)))
    quoted = (f" {' '.join(words(said))} ", f" {' '.join(words(lacked))} ", *context.token_lines)
    is_denial_asked = NEGATED.search(said) is not None or _ASKS_LACK.search(said) is not None
    for sentence in _SENTENCE_END.split(NO_DENIAL.sub(" ", _NOT.sub(" not", without_asked(rest, said)))):
        if BLANK not in sentence:
            continue
        edges = _edges(sentence)
        for hedge in HEDGE.finditer(sentence):
            phrase = words(sentence[hedge.start() :])[:2]
            if is_asked_modal(phrase, words(said)):
                continue  # "Until when may it stay?"
            is_lack = any(m.start() <= hedge.start() < m.end() for m in _LACKED.finditer(sentence))
            phrases = [phrase, ["not", "have"]] if is_lack else [phrase]
            if len(phrase) > 1 and any(f" {' '.join(two)} " in text for two in phrases for text in quoted):
                if _OTHERWISE.search(sentence, hedge.end()):
                    return True
                continue
            if is_denial_asked and any(
                m.start() < hedge.start() < m.end() for m in _LACKS.finditer(sentence)
            ):
                continue
            at = sum(edge <= hedge.start() for edge in edges)
            clause = sentence[edges[at - 1] : edges[at]]
            if BLANK in clause or not (NEGATED.fullmatch(hedge[0]) or hedge[0].lower() in _CHOICE):
                return True
            told = words(HEDGE.sub(" ", clause))
            if hedge[0].lower() not in _CHOICE and all(
                word in SAFE or word in FUNCTION_WORDS for word in told
            ):
                return True
    return False


def _edges(text: str) -> list[int]:
    """Where its clauses end, and where it begins."""
    return [0, *(match.end() for match in _CLAUSE_END.finditer(text)), len(text)]


def is_denied_apart(text: str, span: Span, spans: Sequence[Span]) -> bool:
    """Whether a clause denies what it says at `span`, and says no value of `spans`."""
    edges = _edges(text)
    start, end = max(e for e in edges if e <= span[0]), min(e for e in edges if e > span[0])
    is_of_value = any(a < end and start < b for a, b in spans)
    return not is_of_value and NEGATED.search(text[start : span[0]]) is not None


def is_of_another(text: str, span: Span, value: Any, context: AnswerContext) -> bool:
    """Whether what a text says at `span` is said of another shown record than those that show the value:
    "B has 5", "B: 5", "5 in B", and 5 is of A."""
    edges = [0, *(m.end() for m in _PART_END.finditer(text)), len(text)]
    start, end = max(e for e in edges if e <= span[0]), min(e for e in edges if e >= span[1])
    before, after = _SUBJECT.match(text[start : span[0]]), _OF_THING.match(text[span[1] : end])
    if not (before or after) or not (of_value := [words(t) for t in record_texts([value], context)]):
        return False
    labels = {*map(stem, field_labels(context))}
    heard = stems(canonical(context.said)) | labels
    for match in filter(None, (before, after)):
        named = re.findall(r"[^\W_]+", match[1])
        while named and (named[-1].casefold() in SAFE or stem(named[-1].casefold()) in heard):
            named.pop()
        while named and (named[0].casefold() in SAFE or stem(named[0].casefold()) in heard):
            named.pop(0)
        told, is_name = words(" ".join(named)), any(not word.islower() for word in named)
        if told and not any({*told} & {*record} for record in of_value):
            return any(_has_named(r.content, tuple(told), is_name=is_name) for r in context.results)
    return False


@lru_cache(maxsize=1024)
def _has_named(content: str, named: tuple[str, ...], *, is_name: bool) -> bool:
    """Whether a value of a record is what is named, or begins with a name."""
    leaves = [words(leaf) for record in shown_records(content) for leaf in record.leaves]
    return any(tuple(leaf[: len(named)] if is_name else leaf) == named for leaf in leaves)


def is_about_another(clause: str, facts: Sequence[str], context: AnswerContext) -> bool:
    """Whether a clause says something of a shown record that has none of the facts: it has a verb, and
    several values of that record; or it is of another line."""
    if cleft := _CLEFT.match(clause):  # "it's the battery that is out of warranty"
        clause = clause[cleft.end() :]
    told, text = words(clause), canonical(clause)
    if told[:1] and told[0] in _PRONOUNS and not _THEN_CAME.match(clause):
        return False
    has_verb = any(FUNCTION_WORDS.get(word) == "c" for word in told) or _ends_as_verb(told, context)
    if _is_of_other_line(text, tuple(facts), context, has_verb=has_verb):
        return True
    if not has_verb and ": " not in text:
        return False
    dates, has_fact = moments(text), any(says(fact, text) for fact in facts)
    least, heard = _LEAST_TOLD + has_fact, _stems(text)
    for result in context.results:
        for leaves in _leaves_of_others(result.content, tuple(facts)):
            # Most of a long list has no word of the clause, which is quicker to see than whether it is said.
            likely = [leaf for leaf in leaves if whole_moment(leaf) or not heard.isdisjoint(_stems(leaf))]
            if len(likely) < least:
                continue
            said = [
                leaf
                for leaf in likely
                if says(leaf.rpartition("/")[2], text)
                or ((day := whole_moment(leaf)) and any(agree(d, day) for d in dates))
            ]
            if len(said) >= least and sum(len(leaf) > 1 for leaf in said) > has_fact:
                return True
    return False


def _ends_as_verb(told: Sequence[str], context: AnswerContext) -> bool:
    """Whether the last word ends as a verb that tells what was done, or a word behind the first one ends as a
    verb and neither the question nor a result has it: "Bo Lind declined", "the barn uses gas"."""
    heard = stems(canonical(context.said)).union(*(_stems(result.content) for result in context.results))
    return "".join(told[-1:]).endswith("ed") or any(
        word.endswith("s") and len(word) > 3 and word.isalpha() and stem(word) not in heard
        for word in told[1:]
    )


def _is_of_other_line(text: str, facts: tuple[str, ...], context: AnswerContext, *, has_verb: bool) -> bool:
    """Whether a clause has a value of a line that none of the facts is on, and a word or a day of that line
    that neither the question nor a line with a fact has: "the mean is 184.37", of the line below the median,
    "it took 47 minutes on the 13th"."""
    is_pasted = ": " in text and not has_verb
    if is_pasted or any(says(fact, text) for fact in facts) or HEDGE.search(text):
        return False
    heard = stems(canonical(context.said)) | {stem(word) for word in SAFE}
    told = _stems(text) - heard
    numbers = {abs(amount.number) for amount in amounts(text)}
    apart = numbers - {abs(amount.number) for m in moments(text) for amount in amounts(text[m.start : m.end])}
    for result in context.results:
        of_facts, others = _lines_of(result.content, facts)
        words_of_facts = frozenset[str]().union(*map(_stems, of_facts))
        days = _days(text) - frozenset[int]().union(*map(_days, of_facts))
        for line in others:
            shared = {word for word in told & _stems(line) - words_of_facts if word[:1].isalpha()}
            same = {abs(amount.number) for amount in amounts(line)} & numbers
            if (shared and (same if numbers else has_verb)) or (days & _days(line) and same & apart):
                return True
    return False


@lru_cache(maxsize=1024)
def _days(text: str) -> frozenset[int]:
    """The days of a month that a text names."""
    days = (moment.readings[0].day for moment in moments(text) if "day" in moment.said)
    return frozenset((*days, *(int(match[1]) for match in _DAY.finditer(text))))


@lru_cache(maxsize=512)
def _lines_of(content: str, facts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of a result that say one of the facts, and those that do not, in a few words each; a block of
    lines of fields is one."""
    lines = content.splitlines()
    if "\n\n" in content and all(": " in line for line in lines if line):
        lines = [block.replace("\n", "; ") for block in content.split("\n\n")]
    lines = [canonical(line.replace("_", " ")) for line in lines if len(line) < _SHORT_LINE]
    of_facts = [line for line in lines if any(says(fact, line) for fact in facts)]
    return tuple(of_facts), tuple(line for line in lines if line not in of_facts)


@lru_cache(maxsize=512)
def _leaves_of_others(content: str, facts: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """The values of each shown record that has none of the facts."""
    return tuple(
        frozenset(record.leaves)
        for record in shown_records(content)
        if not any(says(fact, leaf) for fact in facts for leaf in record.leaves)
    )


@lru_cache(maxsize=8192)
def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word.lstrip("0")) for word in words(text))


def rival_amounts(
    text: str, right: Sequence[Amount], value: Any, context: AnswerContext, *, is_count: bool
) -> list[Amount]:
    """Return the amounts of a text that could be meant instead of the `right` ones: none of the question, of
    another kind of unit, of other things, in remarks or in clauses about others."""
    said = canonical(context.said)
    asked = {amount.number for amount in amounts(said)} - {as_number(value)}
    units = [one.unit for one in right if one.unit]
    labels = {match[1] for one in right if (match := _LABEL.search(text[: one.start]))}
    remarks = [m.span() for m in _REMARK.finditer(text) if not HEDGE.search(_IF.sub("", m[0]))]
    named = [s for leaf in shown_leaves(context) if _NUMBERED.fullmatch(leaf) for s in spans_of(leaf, text)]
    rivals = [
        amount
        for amount in amounts(text)
        if amount not in right
        and amount.number not in asked
        and not (
            _ALL_OF.search(text[max(0, amount.start - 6) : amount.start])
            or ORDINAL.match(text, amount.start)
            or is_in_code(text, amount)
            or any(start < amount.start < end for start, end in named)
            or ((label := _LABEL.search(text[: amount.start])) and label[1] not in labels)
            or (amount.unit and _PERIOD.search(text[: amount.start]))
            or is_qualified(text, *amount.span)
        )
        and not is_converted(amount, right, said)
        and not any(is_rounded(amount, one) for one in right)
        and not (
            (_DIFFERS.match(text, amount.end) or _BY.search(text[: amount.start]))
            and _is_difference(amount, right, context)
        )
        and not (_ANOTHER.search(text[: amount.start]) and is_shown_beside(amount, [], context))
        and not (_PART.match(text, amount.end) and any(amount.number < one.number for one in right))
        and not (amount.unit and any(not are_comparable(amount.unit, unit) for unit in units))
        and not (amount.unit not in (None, "pieces", "%") and is_count)
        and not (amount.unit is None and units and _NOUN.match(text, amount.end))
        and not (right and _PER_THING.match(text, amount.end))
        and not _is_the_rest(text, amount, right, context)
        and not (1900 < amount.number < 2100 and _OF_YEAR.search(text[: amount.start]))
        and not (
            any(start <= amount.start < end for start, end in remarks)
            and (amount.unit is None or not units or is_shown_beside(amount, [], context))
        )
    ]
    edges = [0, *(m.end() for m in _SENTENCE_END.finditer(text)), len(text)]
    clauses = [m.span() for m in _CLAUSE.finditer(text)]
    clauses += [  # "Only B has more (21)."
        (a, b) for a, b in pairwise(edges) if not any(a <= one.start < b for one in right)
    ]
    clauses = [(a, b) for a, b in clauses if any(a <= rival.start < b for rival in rivals)]
    others = [
        span for span in clauses if is_about_another(text[slice(*span)], [format_value(value)], context)
    ]
    return [a for a in rivals if not any(start <= a.start < end for start, end in others)]


def _is_the_rest(text: str, amount: Amount, right: Sequence[Amount], context: AnswerContext) -> bool:
    """Whether a sentence denies of as many what another says of one of `right`, and both are all that was
    shown: "4 are ready. 2 are not"."""
    edges = [0, *(m.end() for m in _SENTENCE_END.finditer(text)), len(text)]
    start, end = max(e for e in edges if e <= amount.start), min(e for e in edges if e > amount.start)
    totals = [replace(amount, number=amount.number + one.number) for one in right if one.end <= start]
    is_denied = NEGATED.search(text[amount.end : end]) and not HEDGE.search(text[start : amount.start])
    return bool(is_denied) and any(is_shown_beside(total, [], context) for total in totals)


def _is_difference(amount: Amount, right: Sequence[Amount], context: AnswerContext) -> bool:
    """Whether an amount is what one of `right` differs by from one that was shown: "4.5 MB smaller"."""
    shown = {other.number for result in context.results for other in amounts(canonical(result.content))}
    near = 0.5 * 10.0**-amount.decimals * (1 + 1e-6)
    return any(abs(abs(one.number - other) - amount.number) <= near for one in right for other in shown)


def are_joined(text: str, first: Amount, last: Amount) -> bool:
    """Whether a text gives two amounts for one thing: only a comma, "and", "to" and the like between them."""
    return _JOINT.fullmatch(text[first.end : last.start]) is not None


def is_shown_beside(amount: Amount, values: Sequence[Any], context: AnswerContext) -> bool:
    """Whether an amount is another one of the records that show one of the values, in whatever unit, or
    differs from a value by one; of all records, if the value was worked out."""
    texts = record_texts(values, context) or [canonical(result.content) for result in context.results]
    shown = [other for text in texts for other in (*amounts(text), *clocks(text))]
    if any(amount.number == moment.readings[0].year for text in texts for moment in moments(text)):
        return True
    told = {abs(other.number) for other in shown}
    meant = [as_number(value) or 0.0 for value in values if amount.decimals or amount.number >= _LARGE]
    told |= {abs(number + sign * other) for number in meant for other in told for sign in (1, -1)}
    factors = (1000, 0.001, 0.01, *((60, 1 / 60) if amount.unit and are_comparable(amount.unit, "h") else ()))
    told |= {other * factor for other in told for factor in factors}  # of mass_g, of cents, of closes_min
    return any(isclose(abs(amount.number), number, rel_tol=1e-9) for number in told) or any(
        is_conversion(amount, other) for other in shown
    )
