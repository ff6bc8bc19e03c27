"""Missing functions: a task that was shown to be solvable, and then its tools taken out of the offer."""

from __future__ import annotations

from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import StopReason
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.synth.answers import wrong_abstentions
from mcpagent.synth.calls import CallCache
from mcpagent.synth.draw import Candidate
from mcpagent.synth.inspect_task import stands_in
from mcpagent.synth.record import Offer, system_message
from mcpagent.synth.run import score
from mcpagent.synth.stages import RejectCode, Rejection


async def without_tools(
    task: Task, candidate: Candidate, *, offer: Offer, cache: CallCache
) -> Task | Rejection:
    """The grounded `task` as one in which nothing should be called; or why that would be wrong: another
    read-only tool that is offered, asked about the same things, gives the answer."""
    withheld = set(candidate.template.withhold)
    tools = offer.tools_for(
        set(), seed=derive_seed(task.extra_info["seed"], "offer", candidate.key), withheld=withheld
    )
    telling = await _telling_tool(task, list(tools.values()), cache)
    if telling is not None:
        return Rejection(RejectCode.STILL_ANSWERABLE, telling)
    return abstaining(task, tools, withheld=sorted(withheld), refusal=candidate.template.refusal)


def abstaining(
    task: Task, tools: dict[str, ToolSpec], *, withheld: list[str], refusal: str
) -> Task | Rejection:
    """`task` with these tools and nothing to call, or why no check could judge it; what would have been
    called stands in `extra_info`. A right answer refuses, and says none of the facts that were asked for."""
    return _told_apart(_abstaining(task, tools, withheld=withheld, refusal=refusal))


def _told_apart(task: Task) -> Task | Rejection:
    """The task, if its check accepts the refusal and none of the wrong answers."""
    for answer, is_right in (
        (task.truth.reference_answer, True),
        *((a, False) for a in wrong_abstentions(task)),
    ):
        record = EpisodeRecord(
            turns=(RecordedTurn(user_turn=0),), final_answer=answer, stop_reason=StopReason.ANSWERED
        )
        if (score(task, record)["success"] == 1.0) is not is_right:
            code = RejectCode.GOLD_FAILS if is_right else RejectCode.WRONG_ANSWER_PASSES
            return Rejection(code, repr(answer))
    return task


def _abstaining(task: Task, tools: dict[str, ToolSpec], *, withheld: list[str], refusal: str) -> Task:
    truth = task.truth
    plan = [{"server": s.server, "tool": s.tool, "params": s.params} for s in truth.tool_sequence]
    ground_truth: JsonObject = {
        "task_id": truth.task_id,
        "complexity": truth.complexity,
        "max_turns": truth.max_turns,
        "success": {},
        "tool_sequence": [],
        "final_answer": {"type": "abstention", "value": "cannot", "without": _facts(task)},
        "reference_answer": refusal,
        "abstain": True,
    }
    info: dict[str, Any] = {**task.extra_info, "tools": [tool.dotted for tool in tools.values()]}
    info.pop("answer_from", None)
    verdicts = {**info["verdicts"], "no_op": "calling fails", "minimal": "no steps", "withheld_answers": True}
    info |= {"class": "missing_function", "withheld": withheld, "would_call": plan, "verdicts": verdicts}
    return task.model_copy(
        update={
            "prompt": (Message(role="system", content=system_message(tools)), task.prompt[-1]),
            "reward_spec": RewardSpec(ground_truth=GroundTruth.model_validate(ground_truth)),
            "extra_info": info,
        }
    )


async def _telling_tool(task: Task, offered: list[ToolSpec], cache: CallCache) -> str | None:
    """An offered tool with one required text parameter that gives the answer about one of the slots."""
    facts = _facts(task)
    if not facts:
        return None
    subjects = [value for value in task.extra_info.get("slots", {}).values() if isinstance(value, str)]
    async with cache.session() as session:
        for spec in offered:
            name = _only_text_parameter(spec)
            if name is None or not spec.annotations.read_only:
                continue
            for subject in subjects:
                result = await session.call(server=spec.server, tool=spec.name, arguments={name: subject})
                if not result.is_error and all(stands_in(fact, result.content) for fact in facts):
                    return f"{spec.dotted}({name}={subject!r}) has the answer {facts}"
    return None


def _facts(task: Task) -> list[Any]:
    """What the answer of a solvable task has to say."""
    check = task.truth.final_answer
    if check is None or check.type not in ("number", "must_include", "string"):
        return []
    return list(check.value) if isinstance(check.value, list | tuple) else [check.value]


def _only_text_parameter(spec: ToolSpec) -> str | None:
    required = spec.input_schema.get("required", ())
    if len(required) != 1:
        return None
    kind = spec.input_schema.get("properties", {}).get(required[0], {}).get("type")
    return required[0] if kind == "string" and required[0] != "code" else None
