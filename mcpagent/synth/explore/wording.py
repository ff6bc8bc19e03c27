"""How a walk is said: the first message of a task and the user's later ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import Edge, Fact, Walk

# What a walk's `wording` chooses from. {do} is "list all tables, then ..."; {Do} begins a sentence.
_QUESTIONS = (
    "{Do}. What is the {asked}?",
    "Please {do}, and tell me the {asked}.",
    "I need the {asked}. To find it, {do}.",
    "Could you {do}? I would like to know the {asked}.",
    "What is the {asked} if you {do}?",
    "For my notes: {do}, and give me the {asked}.",
)
_COMPARISONS = (
    "{Do}, once with {one} and once with {other}. What is the {asked} in each case?",
    "Please {do} with {one}, and also with {other}; tell me the {asked} of both.",
    "I am comparing two: {one}, and {other}. For each of them, {do} and give me the {asked}.",
)
_UNDERSPECIFIED = (
    ("Please {do} and tell me the {asked}.", "With {given}, please."),
    ("I need the {asked}. Could you {do}?", "Take {given}."),
    ("What is the {asked} if you {do}?", "I mean {given}."),
)
_THANKS = (
    "Thanks, that is all about {}.",
    "We are done with {}, thank you.",
    "{} is clear now, thanks.",
    "No more questions about {}. Have a nice day!",
)
WORDINGS = 60  # a multiple of the number of each

# With these a description says what the tool does ("Lists ..."), without one what it gives ("Price of ...").
_GIVING = ("demonstrate", "give", "provide", "return")  # to a person, what they give is got
_VERBS = (
    *("browse", "calculate", "check", "compare", "compute", "convert", "count", "describe", "determine"),
    *("display", "echo", "execute", "explain", "extract", "fetch", "find", "get", "inspect", "list", "load"),
    *("look", "open", "print", "query", "read", "report", "resolve", "retrieve", "run", "scan", "search"),
    *("show", "summarize", "translate", "validate", "verify", "view", *_GIVING),
)
_STANDS_ALONE = re.compile(
    r"(the|a|an|all|any|this|these|today's|whether|who|what|which|when|where|how)\b", re.I
)
_NOT_A_NOUN = re.compile(r"(what|which|who|whether|how|when|where|if|to|optional|required)\b", re.I)
_LONGEST_NAME = 4  # words of a parameter's description that can stand for its name
_LONGEST_TASK = 140  # characters
_PLAIN = re.compile(r"[\w-]+")


def words_of(walk: Walk) -> tuple[str, list[str]]:
    """The first message, and those that follow."""
    last, said = walk.facts[-1], walk.wording
    if walk.kind == "irrelevance":
        return _THANKS[said % len(_THANKS)].format(next(last.texts)[1]), []
    task, asked = _task(last.spec), walk.asked[0].label
    if walk.kind == "missing_parameter":
        question, reply = _UNDERSPECIFIED[said % len(_UNDERSPECIFIED)]
        return _worded(question, do=task, asked=asked), [reply.format(given=_given(last))]
    if walk.kind == "parallel":
        one, other = (_given(fact) for fact in walk.facts)
        comparison = _COMPARISONS[said % len(_COMPARISONS)]
        return _worded(comparison, do=task, asked=asked, one=one, other=other), []
    steps = [_step(fact, edge) for fact, edge in zip(walk.facts, walk.edges, strict=True)]
    return _worded(_QUESTIONS[said % len(_QUESTIONS)], do=", then ".join(steps), asked=asked), []


def _worded(frame: str, *, do: str, **parts: str) -> str:
    return frame.format(do=do, Do=do[:1].upper() + do[1:], **parts)


def _task(spec: ToolSpec) -> str:
    """What the tool is for as something to do: "list all tables", "look up the price of a stock"."""
    text = re.sub(r"\s*\([^)]*\)", "", spec.description).strip()
    sentence = re.split(r"\.\s|\.$|[\n:;]", text, maxsplit=1)[0][:_LONGEST_TASK].strip()
    words = sentence.replace(spec.name, _spaced(spec.name)).split()
    if not words:
        return f"look up the {_spaced(spec.name)}"
    if words[0].endswith("ly") and len(words) > 1:
        words = words[1:]
    verb = _base_form(words[0].lower())
    if verb is not None and words[1:2] != ["of"]:
        return " ".join([verb, *words[1:]])
    if not words[0].isupper():
        words[0] = words[0][:1].lower() + words[0][1:]
    phrase = " ".join(words)
    return f"look up {phrase}" if _STANDS_ALONE.match(phrase) else f"look up the {phrase}"


def _step(fact: Fact, edge: Edge | None) -> str:
    """The task with its arguments: where it says "a stock" or "a specific table", or else at the end."""
    task = _task(fact.spec)
    rest: list[str] = []
    for name, called, value in _arguments(fact, edge):
        is_given = edge is not None and name == edge.parameter
        placed = task if is_given else _placed(task, called, value)
        if placed == task:
            rest.append(f"{value} as the {called}" if is_given else f"{called} {value}")
        task = placed
    return f"{task}, with {' and '.join(rest)}" if rest else task


def _placed(task: str, called: str, value: str) -> str:
    """`look up the price of a stock` for the `stock ticker` AAPL is `look up the price of the stock AAPL`."""
    for noun in re.findall(r"\w{4,}", called):
        vague = rf"\ban? (?:(?:specific|specified|given|particular|single) )?((?:\w+ )?{re.escape(noun)})\b"
        if match := re.search(vague, task):
            return f"{task[: match.start()]}the {match[1]} {value}{task[match.end() :]}"
    return task


def _base_form(word: str) -> str | None:
    """`lists` and `list` are `list`; None for what is not a verb that a description begins with."""
    verb = next((base for base in (word, word[:-1], word[:-2]) if base in _VERBS), None)
    return "get" if verb in _GIVING else verb


def _given(fact: Fact) -> str:
    return " and ".join(f"{called} {value}" for _, called, value in _arguments(fact, None))


def _arguments(fact: Fact, edge: Edge | None) -> Iterator[tuple[str, str, str]]:
    """Each argument's name, what a person calls it, and its value, which an earlier step may give."""
    properties = fact.spec.input_schema.get("properties", {})
    for name, value in fact.arguments.items():
        text = _value(value)
        if edge is not None and name == edge.parameter:
            before = f"{_value(edge.prefix)} followed by " if edge.prefix else ""
            text = f"{before}the {edge.leaf.label}"
        yield name, _parameter(name, properties.get(name)), text


def _parameter(name: str, schema: Any) -> str:
    """A parameter for a person: its description where that is short and a noun, else its name in words."""
    described = str(schema.get("description") or "") if isinstance(schema, dict) else ""
    words = re.split(r"[.,:;(]", described, maxsplit=1)[0].split()
    if 0 < len(words) <= _LONGEST_NAME and not _NOT_A_NOUN.match(words[0]):
        first = words[0] if words[0].isupper() else words[0][:1].lower() + words[0][1:]
        return " ".join([first, *words[1:]])
    return _spaced(name)


def _spaced(name: str) -> str:
    """`repo_path` and `repoPath` are `repo path`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", " ", name).lower()


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(map(_value, value))
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
