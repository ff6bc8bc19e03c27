"""A task as a person wants to read it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcpagent.core.tasks import Task
from mcpagent.synth.describe import task_class
from mcpagent.synth.volatility import volatile_because


def portrait(task: Task) -> Iterator[str]:
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
    for step in truth.tool_sequence:
        turn = f"  [user turn {step.user_turn}]" if truth.user_turns else ""
        together = f"  [together: {step.parallel_group}]" if step.parallel_group is not None else ""
        yield f"  step {step.step}     {step.server}.{step.tool}({_arguments(step.params)}){turn}{together}"
        for other in step.alternatives:
            yield f"     or      {other.server}.{other.tool}({_arguments(other.params)})"
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
    limits = {n: v for n, v in truth.limits.model_dump().items() if v is not None}
    yield f"  limits     {truth.max_turns} turns{', ' + _arguments(limits) if limits else ''}"
    for name in ("withheld", "fails", "verdicts"):
        if name in task.extra_info:
            yield f"  {name:10} {json.dumps(task.extra_info[name], ensure_ascii=False)}"
    if reasons := volatile_because(task, None):
        yield f"  volatile   {'; '.join(reasons)}"


def _arguments(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
