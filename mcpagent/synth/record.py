"""A candidate as a dataset record; its references are settled once its plan has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from random import Random
from typing import Any

from mcpagent.core.placeholders import resolve
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.synth.draw import Candidate
from mcpagent.synth.templates import Template, fill

DATA_SOURCE = "synthetic/rules"
GENERATOR = "rules"
_SPARE_TURNS = 3  # room for an exploratory call, a mistake and its repair


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Which tools a task offers, distractors included: the gold tools alone would give the answer away.

    `distractors` None offers the whole catalog, which keeps the system message the same for every task.
    """

    catalog: Mapping[str, ToolSpec]
    distractors: int | None = None

    @cached_property
    def catalog_hash(self) -> str:
        return catalog_hash(self.catalog.values())

    def tools_for(self, plan_tools: set[str], *, seed: int) -> dict[str, ToolSpec]:
        """By the name that the model sees, in catalog order. `plan_tools` are `server.tool` names."""
        if self.distractors is None:
            return dict(self.catalog)
        others = [name for name, tool in self.catalog.items() if tool.dotted not in plan_tools]
        chosen = set(Random(seed).sample(others, min(self.distractors, len(others))))
        return {n: t for n, t in self.catalog.items() if n in chosen or t.dotted in plan_tools}


def system_message(tools: Mapping[str, ToolSpec]) -> str:
    """The offered tools, one line each; their schemas come from the live catalog at run time."""
    lines = [f"{name}: {tool.description.strip().partition(chr(10))[0]}" for name, tool in tools.items()]
    return "\n".join(["Answer with the help of these tools.", *lines])


def draft_task(candidate: Candidate, *, offer: Offer, split: str, seed: int) -> Task:
    """The record of a candidate, its checks still holding references to the results of the plan."""
    template, slots = candidate.template, candidate.slots
    digest = blake2b(candidate.key.encode(), digest_size=6).hexdigest()
    plan = [fill(step.model_dump(mode="json"), slots) for step in template.plan]
    tools = offer.tools_for(_tools_of(plan), seed=derive_seed(seed, "offer", candidate.key))
    state = {server: [c.model_dump() for c in checks] for server, checks in template.state.items()}
    setup = {server: [c.model_dump() for c in calls] for server, calls in template.setup.items()}
    truth = GroundTruth.model_validate(
        {
            "task_id": f"{template.name}-{digest}",
            "complexity": template.complexity,
            "max_turns": template.max_turns or len(plan) + len(template.user_turns) + _SPARE_TURNS,
            "success": _success(template),
            "tool_sequence": [{"step": n, **step} for n, step in enumerate(plan, start=1)],
            "limits": template.limits.model_dump(exclude_none=True),
            "final_answer": fill(template.answer.model_dump(), slots) if template.answer else None,
            "state": fill(state, slots),
            "setup": fill(setup, slots),
            "user_turns": fill(template.user_turns, slots),
            "abstain": template.abstain,
            "reference_answer": fill(template.reference_answer, slots),
        }
    )
    return Task(
        data_source=DATA_SOURCE,
        prompt=(
            Message(role="system", content=system_message(tools)),
            Message(role="user", content=str(fill(template.prompts[candidate.variant], slots))),
        ),
        reward_spec=RewardSpec(ground_truth=truth),
        extra_info={
            "tools": [tool.dotted for tool in tools.values()],
            "generator": GENERATOR,
            "template": template.name,
            "slots": dict(slots),
            "split": split,
            "seed": seed,
            "catalog_hash": offer.catalog_hash,
        },
    )


def settle(task: Task, results: Mapping[str, Any], *, verdicts: JsonObject) -> Task:
    """The record with every reference in its checks replaced by what the plan really found. The plan keeps
    its references: they are how one call depends on another. Raises PlaceholderError."""
    truth = task.truth
    data = truth.model_dump()
    settled = {
        name: resolve(data[name], results)
        for name in ("final_answer", "reference_answer", "state")
        if data[name]
    }
    settled["tool_sequence"] = [
        {**step, "match": resolve(step["match"], results)} for step in data["tool_sequence"]
    ]
    return task.model_copy(
        update={
            "reward_spec": RewardSpec(ground_truth=GroundTruth.model_validate({**data, **settled})),
            "extra_info": {**task.extra_info, "verdicts": verdicts},
        }
    )


def _success(template: Template) -> JsonObject:
    if template.success is not None:
        return template.success.model_dump(exclude_none=True)
    if not template.plan:
        return {}
    return {"must_call_tool": f"{template.plan[-1].server}.{template.plan[-1].tool}"}


def _tools_of(plan: list[JsonObject]) -> set[str]:
    calls = [call for step in plan for call in (step, *step["alternatives"])]
    return {f"{call['server']}.{call['tool']}" for call in calls}
