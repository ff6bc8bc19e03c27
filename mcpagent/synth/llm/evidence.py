"""What an episode must have seen before its answer counts: the leaves of results that it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.placeholders import (
    PlaceholderError,
    Read,
    format_value,
    leaves_read,
    reference_texts,
    references,
    resolve_references,
)
from mcpagent.core.tasks import AnswerCheck, EvidenceFact, PlanStep, RewardSpec, Success, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import is_json_object, scalars
from mcpagent.reward.evidence import shows
from mcpagent.synth.tasks.inspect import stands_in, user_text
from mcpagent.synth.tasks.run import CallCache, GoldRun, gold_record

_MOST_FACTS = 12
_QUOTED = re.compile(r"(['\"])(.+?)\1")
_LONGEST = 80  # characters of a leaf; of a longer text the answer counts that stands in it


def with_evidence(draft: Task, task: Task, run: GoldRun, cache: CallCache) -> Task:
    """Return a settled task, `draft` before it was settled, with the facts that its answer is made of; as it
    is if there are none. If its plan only reads, any calls that show them are a way to the answer."""
    before, check = draft.truth.final_answer, task.truth.final_answer
    if before is None or check is None or check.type == "none":
        return task
    facts = _facts(draft, before, check, run, {spec.dotted: spec for spec in cache.specs})
    if not facts:
        return task
    changes: dict[str, Any] = {"evidence": tuple(facts)}
    if cache.only_reads(task):
        changes["success"] = Success()
    truth = task.truth.model_copy(update=changes)
    return task.model_copy(update={"reward_spec": RewardSpec(ground_truth=truth)})


def _facts(
    draft: Task, before: AnswerCheck, check: AnswerCheck, run: GoldRun, specs: Mapping[str, ToolSpec]
) -> list[EvidenceFact]:
    answer = list(scalars(check.value))
    if is_json_object(check.value):
        answer += check.value
    taken = [
        Read(value, read.steps)
        for read in leaves_read(before.value, run.results)
        for value in ([read.value] if _is_short(read.value) else _parts_in(answer, read.value))
    ]
    if check.type == "choice":  # the question names its options, so only what they are compared by counts
        options = set(map(format_value, check.options))
        taken = [read for read in taken if format_value(read.value) not in options]
    written = set(map(format_value, answer))
    given = [read for read in taken if format_value(read.value) in written]
    # What was only compared within the result that has the answer need not be seen: a query may sort.
    there = frozenset[int]().union(*(read.steps for read in given))
    reads = given + [read for read in taken if not (given and read.steps & there)]
    is_computed = not given and check.type in ("number", "date")
    calls = gold_record(draft, run, answer=None, read_only=frozenset()).calls
    facts = list[EvidenceFact]()
    for read in {format_value(read.value): read for read in reads}.values():
        for about in (_about(draft, read.steps, run, specs), ()):
            if any(shows(read.value, about, made) for made in calls):
                said_of_it = {"about": about, "instead": tuple(answer) if is_computed else ()}
                stated = {name: value for name, value in said_of_it.items() if value}
                facts.append(EvidenceFact.model_validate({"value": read.value, **stated}))
                break
    return facts[:_MOST_FACTS]


def _is_short(value: Any) -> bool:
    return not isinstance(value, str) or (len(value) <= _LONGEST and "\n" not in value)


def _parts_in(answer: Sequence[Any], text: str) -> list[Any]:
    return [part for part in answer if stands_in(part, text)]


def _about(
    draft: Task, steps: Iterable[int], run: GoldRun, specs: Mapping[str, ToolSpec]
) -> tuple[str | tuple[str, ...], ...]:
    """Return what identifies the thing that a step is asked about: what the question names, or behind other
    calls any name of it."""
    plan = {step.step: step for step in draft.truth.tool_sequence}
    if len(numbers := list(steps)) != 1:
        return ()
    step = plan[numbers[0]]
    asked, named = user_text(draft), _literals(step, specs)
    here = [format_value(value) for value in named if _is_asked(value, asked)]
    if not (ancestors := references(step.params)):
        return tuple(here)
    group = [*here, *(format_value(value) for value in _given(step, run))]
    pending = list(ancestors)
    while pending:
        earlier = plan[pending.pop()]
        group += [format_value(value) for value in _literals(earlier, specs) if _is_asked(value, asked)]
        pending += references(earlier.params)
    return (tuple(dict.fromkeys(group)),) if group else ()


def _literals(step: PlanStep, specs: Mapping[str, ToolSpec]) -> list[Any]:
    """Return what the arguments of a step say, but for constants of the tool; of a text with quotes, such as
    SQL, also what is quoted."""
    spec = specs[f"{step.server}.{step.tool}"]
    said = [v for name, v in step.params.items() if not is_constant(spec, name, v)]
    values = [v for v in scalars(said) if v not in (None, "") and not reference_texts(v)]
    return [*values, *(part for v in values if isinstance(v, str) for _, part in _QUOTED.findall(v))]


def is_constant(spec: ToolSpec, name: str, value: Any) -> bool:
    """Return True if the schema of a tool itself names the value of an argument: it says how to look, and not
    at what."""
    schema = spec.input_schema.get("properties", {}).get(name, {})
    return value in schema.get("enum", ()) or value == schema.get("default")


def _given(step: PlanStep, run: GoldRun) -> list[Any]:
    """Return the short values that the references of a step have given it."""
    try:
        values = [resolve_references(text, run.results) for text in reference_texts(step.params)]
    except PlaceholderError:
        return []
    return [value for value in scalars(values) if value not in (None, "") and _is_short(value)]


def _is_asked(value: Any, asked: str) -> bool:
    """Return True if the question names the value: a text in some form of the word, a number as it is."""
    if isinstance(value, str):
        return _is_short(value) and folded(value) in folded(asked)
    return not isinstance(value, bool) and stands_in(value, asked)
