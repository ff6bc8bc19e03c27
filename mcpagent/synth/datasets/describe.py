"""What a dataset holds, counted as its records stream by."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task

_BY = ("server", "tool", "template", "split", "data_source")


def count_tasks(tasks: Iterable[Task]) -> JsonObject:
    """Return the counts over all `tasks`, which are read once, in a fixed order: equal datasets give equal
    documents. A task counts once for each server and tool that its gold plan calls."""
    records = 0
    by: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for task in tasks:
        records += 1
        plan = task.truth.tool_sequence
        by["class"][task_class(task)] += 1
        by["complexity"][task.truth.complexity] += 1
        by["server"].update({step.server for step in plan})
        by["tool"].update({f"{step.server}.{step.tool}" for step in plan})
        by["data_source"][task.data_source] += 1
        for name in task.extra_info.keys() & {"template", "split"}:
            by[name][str(task.extra_info[name])] += 1
        by["plan_lengths"][len(plan)] += 1
        if task.offered_tools is not None:
            by["offered_tools"][len(task.offered_tools)] += 1

    def counted(name: str) -> dict[str, int]:
        return {str(key): count for key, count in sorted(by[name].items())}

    return {
        "records": records,
        "by_class": counted("class"),
        "by_complexity": {c: by["complexity"][c] for c in ("simple", "moderate", "complex")},
        **{f"by_{name}": counted(name) for name in _BY},
        **{name: counted(name) for name in ("plan_lengths", "offered_tools")},
    }


def task_class(task: Task) -> str:
    """Return what kind of behaviour the task asks for: as it says itself, else the first that applies."""
    truth = task.truth
    if "class" in task.extra_info:
        return str(task.extra_info["class"])
    if truth.is_refusal:
        return "abstain"
    if truth.user_turns:
        return "multi_turn"
    if any(step.parallel_group is not None for step in truth.tool_sequence):
        return "parallel"
    if not truth.tool_sequence:
        return "no_plan"
    return "single_call" if len(truth.tool_sequence) == 1 else "multi_step"


def render_task(task: Task) -> Iterator[str]:
    """Lines of text: what is asked, what is right, how it is judged, what was shown of it."""
    truth = task.truth
    yield f"{task.id}  ({task_class(task)}, {truth.complexity}, from {task.data_source})"
    yield f"  user       {task.prompt[-1].content}"
    for later in truth.user_turns:
        yield f"  then       {later}"
    tools = task.offered_tools
    yield f"  offered    {'the whole catalog' if tools is None else f'{len(tools)} tools'}"
    for user_turn, names in truth.tools_added.items():
        yield f"  added      {', '.join(names)}  [user turn {user_turn}]"
    for server, calls in truth.setup.items():
        for call in calls:
            yield f"  before     {server}.{call.tool}({_arguments(call.arguments)})"
    yield from _rendered_plan(task)
    yield from _rendered_checks(task)
    limits = {n: v for n, v in truth.limits.model_dump().items() if v is not None}
    yield f"  limits     {truth.max_turns} turns{', ' + _arguments(limits) if limits else ''}"
    for name in ("withheld", "fails", "verdicts"):
        if name in task.extra_info:
            yield f"  {name:10} {json.dumps(task.extra_info[name], ensure_ascii=False)}"


def _rendered_plan(task: Task) -> Iterator[str]:
    truth = task.truth
    for step in truth.tool_sequence:
        turn = f"  [user turn {step.user_turn}]" if truth.user_turns else ""
        together = f"  [together: {step.parallel_group}]" if step.parallel_group is not None else ""
        yield f"  step {step.step}     {step.server}.{step.tool}({_arguments(step.params)}){turn}{together}"
        for other in step.alternatives:
            yield f"     or      {other.server}.{other.tool}({_arguments(other.params)})"


def _rendered_checks(task: Task) -> Iterator[str]:
    truth = task.truth
    if truth.abstain:
        yield "  right is   no call at all"
    if truth.success.must_call:
        yield f"  must call  {', '.join(truth.success.must_call)}"
    if truth.final_answer is not None:
        check = truth.final_answer
        within = f" within {check.tolerance:g}" if check.tolerance else ""
        yield f"  answer     {check.type}: {json.dumps(check.value, ensure_ascii=False)}{within}"
    for server, checks in truth.state.items():
        for check in checks:
            expected = json.dumps(check.expect, ensure_ascii=False)
            call = f"{server}.{check.call.tool}({_arguments(check.call.arguments)})"
            turn = "" if check.user_turn is None else f"  [after user turn {check.user_turn}]"
            yield f"  state      {call} gives {expected}{turn}"
    if truth.reference_answer:
        yield f"  says       {truth.reference_answer}"


def _arguments(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
