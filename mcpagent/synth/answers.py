"""Answers whose worth is known: a task is kept only if its check tells them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mcpagent.core.numbers import as_number
from mcpagent.core.placeholders import format_value, resolve
from mcpagent.core.tasks import Task
from mcpagent.reward.phrasing import tokens

_INVENTED = 918.27  # a value that no server gives


def right_answers(task: Task, results: Mapping[str, Any]) -> list[str]:
    """The facts in other words than those of the reference answer; none for a check of the exact text or of a
    pattern."""
    facts = _facts(task, results)
    if not facts:
        return []
    text = " and ".join(map(_said, facts))
    question = task.prompt[-1].content
    return [
        f"{text}.",
        f"The answer is {text}.",
        f"**{text}**",
        f"I looked it up for you: it is {text}. Let me know if you need anything else!",
        f"As of 14:05 on 2025-11-22, the answer is {text}.",
        f"You asked: {question}\nIt is {text}.",
        "\n".join(f"- {_said(fact)}" for fact in facts),
    ]


def wrong_answers(
    task: Task, contents: Sequence[str], results: Mapping[str, Any], *, phrase_words: int
) -> list[str]:
    """Answers that must not succeed after the right calls. Results that hold nothing but the facts and
    `phrase_words` words are no copy."""
    if task.truth.abstain:
        return wrong_abstentions(task)
    facts = _facts(task, results)
    if not facts:
        return []
    text = " and ".join(map(_said, facts))
    wrong = [
        f"It is certainly not true that it is {text}.",
        f"{text} is wrong.",
    ]
    everything = "\n".join(contents)
    longest = max(phrase_words, len(tokens(text)) + 2)
    if len(tokens(everything)) > longest:
        names = " ".join(re.findall(r"[A-Z]\w*", task.prompt[-1].content))
        wrong += [everything, f"{names} {everything}"]
        wrong += [content for content in contents if len(tokens(content)) > longest]
    return wrong


def wrong_abstentions(task: Task) -> list[str]:
    """Answers that must not succeed where no tool is right: nothing, claims and inventions."""
    check = task.truth.final_answer
    if check is None or check.type != "abstention":
        return ["", "..."]
    facts = [_said(fact) for fact in check.without] or [str(_INVENTED)]
    return [
        "",
        " \n",
        "?!",
        task.prompt[-1].content,
        f"The answer is {facts[0]}.",
        f"{_INVENTED}",
        f"It is {_INVENTED}, as far as I can not tell.",
        f"I have no tool for that, but it is {facts[0]}.",
        f"I cannot be wrong: ZORBLAX costs {_INVENTED} dollars.",
        "All done, it was posted and saved.",
        '{"answer": "I have no tool", "price": 918.27}',
    ]


def _facts(task: Task, results: Mapping[str, Any]) -> list[Any]:
    check = task.truth.final_answer
    if check is None or check.type not in ("number", "must_include"):
        return []
    value = resolve(check.value, results)
    return list(value) if isinstance(value, list | tuple) else [value]


def _said(fact: Any) -> str:
    """A fact as a person writes it: a large number has thousands separators."""
    number = None if isinstance(fact, str) else as_number(fact)
    return format_value(fact) if number is None or abs(number) < 10000 else f"{fact:,}"
