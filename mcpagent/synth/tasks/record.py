"""A candidate as a dataset record; its references are settled once its plan has run."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from random import Random
from typing import Any

from mcpagent.core.answer_line import ASKS_FOR_LINE, STATED_TYPES, stated
from mcpagent.core.hidden_text import without_marks
from mcpagent.core.placeholders import format_value, references, resolve_references
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.core.values import is_json_array
from mcpagent.errors import UserError
from mcpagent.synth.templates.template import Template, fill


@dataclass(frozen=True)
class Candidate:
    """A task that is not yet executed. `variant` indexes the template's prompts."""

    template: Template
    slots: Mapping[str, Any]
    variant: int

    @property
    def key(self) -> str:
        """Equal for tasks that ask for the same calls; the wording does not make a task distinct. That a
        template states a class does: the same calls after a failure, or withheld, are another task."""
        calls = fill(self.template.plan_json, self.slots)
        subject: JsonObject = (
            {"calls": calls} if calls else {"template": self.template.name, "slots": self.slots}
        )
        if self.template.kind in ("missing_function", "error_recovery"):
            subject["class"] = self.template.kind
        return json.dumps(subject, sort_keys=True, ensure_ascii=False, default=str)


_READ = re.compile(r"step(\d+)(?:\.\w+|\[\d+\])+")  # a value of a result, as it stands there
_PICKED = re.compile(r"\$\{(?:word|number)\(step(\d+)[^(){}]*\)\}")  # a part of one, as it stands there
_COMPUTED = re.compile(r"\$\{(?:[\s()+*/,-]|\b(?:abs|round|min|max|sum)\(|\b\d+(?:\.\d+)?\b)*\}")
_SPARE_TURNS = 3  # room for an exploratory call, a mistake and its repair


@dataclass(frozen=True, kw_only=True)
class ToolSelection:
    """The tools that a task offers, distractors included: the gold tools alone would give the answer away.

    `distractors` None offers the whole catalog, which keeps the system message the same for every task.
    Tasks that offer tools of the `unseen_servers`, which training does not see, say so. `whole_hash` is that
    of every tool that the servers list, if `catalog` is a part of them.
    """

    catalog: Mapping[str, ToolSpec]
    distractors: int | None = None
    unseen_servers: Sequence[str] = ()
    whole_hash: str = ""

    @cached_property
    def catalog_hash(self) -> str:
        """The hash of every tool that the servers list."""
        return self.whole_hash or catalog_hash(self.catalog.values())

    @cached_property
    def seen(self) -> ToolSelection:
        """The selection for tasks of training. Raises UserError for an unseen server that there is not, and
        if no other is left."""
        names = sorted({tool.server for tool in self.catalog.values()})
        if unknown := sorted(set(self.unseen_servers) - set(names)):
            raise UserError(
                f"there is no server {unknown[0]!r}",
                where="--heldout-server",
                remedy=f"the servers are: {', '.join(names)}",
            )
        if set(self.unseen_servers) == set(names):
            raise UserError(
                f"nothing is left to train on: there is no server but {', '.join(names)}",
                where="--heldout-server",
                remedy="hold out fewer, or add a server to the mcp.json",
            )
        catalog = {name: t for name, t in self.catalog.items() if t.server not in self.unseen_servers}
        return replace(self, catalog=catalog, unseen_servers=(), whole_hash=self.catalog_hash)

    def tools_for(
        self, plan_tools: set[str], *, seed: int, withheld: Collection[str] = ()
    ) -> dict[str, ToolSpec]:
        """Return the tools by the name that the model sees, in catalog order. `plan_tools` and `withheld`,
        which are never offered, are `server.tool` names."""
        catalog = {name: tool for name, tool in self.catalog.items() if tool.dotted not in withheld}
        if self.distractors is None:
            return catalog
        others = [name for name, tool in catalog.items() if tool.dotted not in plan_tools]
        distractors = set(Random(seed).sample(others, min(self.distractors, len(others))))
        return {n: t for n, t in catalog.items() if n in distractors or t.dotted in plan_tools}


def system_message(tools: Mapping[str, ToolSpec], *, answer_line: bool = True) -> str:
    """Return the message that names the offered tools, one line each; their schemas come from the live
    catalog at run time. With `answer_line` it asks for the line that is graded."""
    lines = [f"{name}: {tool.description.strip().partition(chr(10))[0]}" for name, tool in tools.items()]
    # A dataset may be rendered by others, whose tokenizer would read a mark in a description as one.
    last = [ASKS_FOR_LINE] if answer_line else []
    return "\n".join(["Answer with the help of these tools.", *map(without_marks, lines), *last])


def draft_task(candidate: Candidate, *, offer: ToolSelection, split: str, seed: int) -> Task:
    """Return the record of a candidate, its checks still holding references to the results of the plan."""
    template, slots = candidate.template, candidate.slots
    # Only what the template sets goes into the record: defaults are the reader's business.
    said = fill(template.stated, slots)
    plan = [{"step": n, **step} for n, step in enumerate(said.get("plan", ()), start=1)]
    prompt = str(fill(template.prompts[candidate.variant], slots))
    tools = offer.tools_for(_tools_of(plan), seed=derive_seed(seed, "offer", candidate.key))
    truth: JsonObject = {
        "task_id": task_id(template.name, candidate.key),
        "complexity": template.complexity,
        "max_turns": template.max_turns or len(plan) + len(template.user_turns) + _SPARE_TURNS,
        "success": said.get("success") or last_tool(plan),
        "tool_sequence": plan,
    }
    kept = ("limits", "state", "setup", "user_turns", "quiet_turns", "reference_answer")
    truth |= {name: said[name] for name in kept if name in said}
    if template.answer is not None:
        truth["final_answer"] = said["answer"]
    truth |= _evidence(plan, said, offer)
    return build_task(
        offer,
        tools,
        truth,
        prompt,
        data_source="synthetic/rules",
        generator="rules",
        template=template.name,
        slots=dict(slots),
        split=split,
        seed=seed,
        catalog_hash=offer.catalog_hash,
        **_class_info(template, slots),
    )


def build_task(
    offer: ToolSelection,
    tools: Mapping[str, ToolSpec],
    truth: JsonObject,
    question: str,
    *,
    data_source: str,
    introduction: Sequence[str] = (),
    **info: Any,
) -> Task:
    """Return the record of a question that offers `tools`; what is known of it goes into `extra_info`. The
    system message begins with the texts of the `introduction`. It asks for an answer line, and the question
    states its form, unless `truth` says that it has no `answer_line`, or the answer is checked as only
    datasets of others do."""
    kind = (truth.get("final_answer") or {}).get("type", "none")
    answer_line = truth.get("answer_line", kind == "none" or kind in STATED_TYPES)
    truth = {**truth, "answer_line": True} if answer_line else truth
    if "user_turns" in truth:
        truth = {**truth, "user_turns": [without_marks(str(text)) for text in truth["user_turns"]]}
    offered = system_message(tools, answer_line=answer_line)
    task = Task(
        data_source=data_source,
        prompt=(
            Message(role="system", content="\n\n".join([*introduction, offered])),
            Message(role="user", content=without_marks(question)),
        ),
        reward_spec=RewardSpec(ground_truth=GroundTruth.model_validate(truth)),
        extra_info={
            "tools": [tool.dotted for tool in tools.values()],
            **info,
            **({"unseen_servers": [*offer.unseen_servers]} if offer.unseen_servers else {}),
        },
    )
    return stated(task)


def answer_sources(draft: Task) -> tuple[int, ...]:
    """Return the steps whose results the final answer of an unsettled record is made from."""
    check = draft.truth.final_answer
    return tuple(sorted(references(check.value))) if check is not None else ()


def settle(task: Task, results: Mapping[str, Any]) -> Task:
    """Return the record with every reference in its checks replaced by what the plan really found, and the
    form of the answer stated anew. The plan keeps its references: they are how one call depends on another.
    Raises PlaceholderError."""
    truth = task.truth.model_dump(exclude_unset=True)
    for name in {"final_answer", "reference_answer", "state", "evidence"} & truth.keys():
        truth[name] = resolve_references(truth[name], results)
    for fact in truth.get("evidence", ()):  # identifiers are texts; a reference keeps its type
        about = fact.get("about", ())
        fact["about"] = [list(map(format_value, a)) if is_json_array(a) else format_value(a) for a in about]
    if "reference_answer" in truth:
        truth["reference_answer"] = format_value(truth["reference_answer"])  # one reference keeps its type
    for step in truth.get("tool_sequence", ()):
        if "match" in step:
            step["match"] = resolve_references(step["match"], results)
    reward_spec = RewardSpec(ground_truth=GroundTruth.model_validate(truth))
    return stated(task.model_copy(update={"reward_spec": reward_spec}))


def with_verdicts(task: Task, verdicts: JsonObject, *, sources: Sequence[int]) -> Task:
    """Return the record with what was shown of it."""
    shown: JsonObject = {"answer_from": list(sources), "verdicts": verdicts}
    return task.model_copy(update={"extra_info": {**task.extra_info, **shown}})


def _class_info(template: Template, slots: Mapping[str, Any]) -> JsonObject:
    """Return the class of a task, if its template states one."""
    if template.kind is None:
        return {}
    info: JsonObject = {"class": template.kind}
    if template.fails is not None:
        info["fails"] = fill(template.fails.model_dump(mode="json"), slots)
    return info


def _evidence(plan: Sequence[JsonObject], said: Mapping[str, Any], offer: ToolSelection) -> JsonObject:
    """Return the facts that must be seen, if an answer is values of results or computed from such, in place
    of the last tool."""
    values = said.get("answer", {}).get("value")
    values = list(values.values()) if isinstance(values, dict) else values
    facts: list[JsonObject] = []
    for value in map(str, values if isinstance(values, list) else [values]):
        picked = _PICKED.fullmatch(value)
        sources = {value: picked[1]} if picked else {f"${{{m[0]}}}": m[1] for m in _READ.finditer(value)}
        if not sources or not (picked or _COMPUTED.fullmatch(_READ.sub(" ", value))):
            return {}
        for read, step in sources.items():
            given = [v for v in plan[int(step) - 1]["params"].values() if isinstance(v, str)]
            facts.append({"value": read, "about": [name for name in given if not references(name)]})
    reads = {tool.dotted for tool in offer.catalog.values() if tool.annotations.read_only}
    is_read = {f"{step['server']}.{step['tool']}" for step in plan} <= reads
    if not is_read or any("alternatives" in step for step in plan):
        return {"evidence": facts}
    return {"evidence": facts, **({} if said.get("success") else {"success": {}})}


def task_id(kind: str, key: str) -> str:
    """Return the id of a task of a kind: the same for the same key."""
    return f"{kind}-{blake2b(key.encode(), digest_size=6).hexdigest()}"


def last_tool(plan: Sequence[JsonObject]) -> JsonObject:
    """Return what success demands if nothing else is said: the call that completes the plan is the one that a
    right episode cannot do without."""
    return {"must_call_tool": f"{plan[-1]['server']}.{plan[-1]['tool']}"} if plan else {}


def _tools_of(plan: list[JsonObject]) -> set[str]:
    calls = [call for step in plan for call in (step, *step.get("alternatives", ()))]
    return {f"{call['server']}.{call['tool']}" for call in calls}
