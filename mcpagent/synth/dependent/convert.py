"""From a dependent spec to dataset records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from mcpagent.core.hidden_text import without_marks
from mcpagent.core.placeholders import format_value
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.storage.datasets import DiskList
from mcpagent.synth.dependent.spec import (
    ReadTask,
    Scenario,
    SpecFault,
    SpecTask,
    read_spec,
)
from mcpagent.synth.tasks.inspect import written_faults
from mcpagent.synth.tasks.record import ToolSelection, build_task, last_tool
from mcpagent.synth.tasks.run import GoldRun, ToolShelf
from mcpagent.synth.tasks.stages import RejectCode, Rejection

# Of a solution: the fields of a ground truth that may stand next to the plan.
_TAKEN_OVER = ("success", "final_answer", "answer_facts", "state", "setup", "abstain", "reference_answer")


class Conversion:
    """The whole spec, in its order: the `tasks` without a fault, and what the file of `rejects` says of each
    other one. `faults` is everything that is wrong, `notes` are decisions that the user should know of."""

    def __init__(self) -> None:
        self.tasks: DiskList[Task] = DiskList()
        self.rejects: DiskList[JsonObject] = DiskList()
        self.faults: list[SpecFault] = []
        self.notes: list[str] = []


def convert_spec(
    path: Path,
    *,
    catalog: Mapping[str, ToolSpec] | None,
    execute: Callable[[Task], tuple[Task, GoldRun] | Rejection] | None = None,
) -> Conversion:
    """Check and convert every task. `catalog` (by the name that the model sees) is what the tasks may use and
    offer; without one, a task offers every tool that the spec names. `execute` runs the plan of a task that
    has no fault: what it answers is settled in the record, and a plan that fails, or whose gold episode would
    not score 1.0, is a fault. Raises UserError for a file that is no spec."""
    conversion = Conversion()
    # What was read of a task is not kept, so without a catalog the file is read once more.
    offer = _named_tools(read_spec(path)) if catalog is None else dict(catalog)
    shelf = None if catalog is None else ToolShelf(catalog.values())
    pinned = None if catalog is None else catalog_hash(catalog.values())
    ids: dict[str, str] = {}
    for source in read_spec(path):
        faults = list(source.faults)
        task: Task | None = None
        if source.task is not None and source.scenario is not None:
            task = _record(source.task, source.scenario, offer)
            if pinned is not None:
                task = task.model_copy(update={"extra_info": {**task.extra_info, "catalog_hash": pinned}})
            faults += _faults(task, source.pointer, shelf, ids)
            if not faults:
                _note(conversion, source.task, source.scenario, task)
            if not faults and execute is not None:
                outcome = execute(task)
                if isinstance(outcome, Rejection):
                    faults.append(_failed_plan(outcome, source.pointer))
                else:
                    task, _ = outcome
        if faults:
            told = [asdict(fault) for fault in faults]
            conversion.rejects.append({"pointer": source.pointer, "faults": told, "raw": source.raw})
            conversion.faults += faults
        elif task is not None:
            conversion.tasks.append(task)
    if catalog is None:
        conversion.notes.append(
            "without servers (--servers) neither tools nor arguments were checked, and each task offers the "
            f"{len(offer)} tools that the spec names"
        )
    return conversion


def _failed_plan(rejection: Rejection, pointer: str) -> SpecFault:
    return SpecFault(
        code=rejection.code,
        pointer=f"{pointer}/solution/tool_sequence",
        message=rejection.detail,
        remedy="correct the plan, or convert without --execute",
    )


def _record(task: SpecTask, scenario: Scenario, offer: Mapping[str, ToolSpec]) -> Task:
    steps = task.solution.tool_sequence
    said = [
        message.model_copy(update={"content": without_marks(message.content)})
        for message in task.conversation
    ]
    users = [message.content for message in said if message.role == "user"]
    plan = [
        {**step.model_dump(exclude_unset=True), "step": step.step or index + 1}
        for index, step in enumerate(steps)
    ]
    given = task.solution.model_dump(exclude_unset=True)
    truth: JsonObject = {
        "task_id": task.task_id,
        "complexity": task.complexity,
        "max_turns": max(scenario.turns, _turns_needed(task)),
        "success": last_tool(plan),
        "tool_sequence": plan,
        "limits": scenario.limits.model_dump(exclude_unset=True),
        **({"user_turns": users[1:]} if users[1:] else {}),
        **({"abstain": True} if not _is_judged(given) else {}),
        **_said(given),
        **{name: given[name] for name in _TAKEN_OVER if name in given},
    }
    must_call = truth["success"].get("must_call_tool")
    if must_call:
        is_list = isinstance(must_call, list | tuple)
        names = [_qualified(name, plan) for name in must_call] if is_list else _qualified(must_call, plan)
        truth["success"] = {**truth["success"], "must_call_tool": names}
    return build_task(
        ToolSelection(catalog=offer),
        offer,
        truth,
        users[0],
        introduction=[message.content for message in said if message.role == "system"],
        data_source="synthetic/dependent",
        generator="dependent-spec",
        scenario=scenario.model_dump(mode="json", exclude={"tasks"}, exclude_unset=True),
        task_metadata={
            "all_messages": [{"role": m.role, "content": m.content} for m in said],
            **(task.model_extra or {}),
        },
    )


def _said(solution: JsonObject) -> JsonObject:
    """A right final message for an answer check that comes without one: the value itself. What a regular
    expression accepts cannot be told from it."""
    check = solution.get("final_answer") or {}
    value = check.get("value")
    if value is None or check.get("type") == "regex":
        return {}
    return {"reference_answer": " ".join(map(format_value, value if isinstance(value, list) else [value]))}


def _is_judged(solution: JsonObject) -> bool:
    """An empty plan with nothing else to judge by says that no call is right."""
    return bool(solution["tool_sequence"]) or any(name in solution for name in ("final_answer", "state"))


def _qualified(name: str, plan: Iterable[JsonObject]) -> str:
    """`server.tool` for a bare tool name that the plan settles."""
    places = {f"{step['server']}.{step['tool']}" for step in plan if step["tool"] == name}
    return places.pop() if len(places) == 1 else name


def _turns_needed(task: SpecTask) -> int:
    """Model turns of an agent that makes one call a turn and answers every user message."""
    return len(task.solution.tool_sequence) + [m.role for m in task.conversation].count("user")


def _named_tools(read: Iterable[ReadTask]) -> dict[str, ToolSpec]:
    """Every tool that a plan of the spec names; nothing but the name is known of it."""
    places = {
        (step.server, step.tool)
        for source in read
        if source.task is not None
        for step in source.task.solution.tool_sequence
    }
    names = [tool for _, tool in places]
    return {
        tool if names.count(tool) == 1 else f"{server}__{tool}": ToolSpec(
            server=server, name=tool, input_schema={}
        )
        for server, tool in sorted(places)
    }


def _faults(task: Task, pointer: str, shelf: ToolShelf | None, ids: dict[str, str]) -> Iterator[SpecFault]:
    """Yield what is wrong with a task as it is written, and an id that an earlier one has."""
    first = ids.setdefault(task.id, pointer)
    if first != pointer:
        yield SpecFault(
            code=RejectCode.DUPLICATE_ID,
            pointer=f"{pointer}/task_id",
            message=f"is {task.id!r}, which {first} has already",
            remedy="give each task an id of its own: attempts are kept apart by it",
        )
    for fault in written_faults(task, shelf):
        yield SpecFault(code=fault.code, pointer=f"{pointer}/solution", message=fault.detail)


def _note(conversion: Conversion, task: SpecTask, scenario: Scenario, record: Task) -> None:
    if record.truth.max_turns > scenario.turns:
        conversion.notes.append(
            f"{task.task_id}: turns is {scenario.turns}, but the plan needs {record.truth.max_turns}; "
            f"max_turns is {record.truth.max_turns}"
        )
    says = any("user_turn" in step.model_fields_set for step in task.solution.tool_sequence)
    if record.truth.user_turns and task.solution.tool_sequence and not says:
        conversion.notes.append(
            f"{task.task_id}: has {1 + len(record.truth.user_turns)} user messages, but no step says its "
            "user_turn; all calls are expected after the first one"
        )
