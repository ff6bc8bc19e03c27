"""Ways to be paid for nothing, as scripts made from the gold episode of a task.

An attack is a list of texts, one a model step. What it is worth is what the episode's own grade says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.policy.contract import Policy
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy, call_text
from mcpagent.rollout.collector import AgentSettings, Attempt, run_attempt
from mcpagent.storage.datasets import DiskList
from mcpagent.tools.contract import ToolProvider

GOLD = "gold"
_MOST_TURNS = 500
_IGNORANCE = "I do not know."
_CLOSING = "Done."


def attack_scripts(task: Task, gold: Trajectory) -> dict[str, list[str]]:
    """Return the attacks that make sense on the task, by name. `gold` is its plan, played on the real
    tools."""
    ends = [turn.completion.text for turn in gold.turns if not turn.tool_calls]  # one each user turn
    answer = ends[-1] if ends else ""
    if task.truth.abstain:
        return {} if task.truth.user_turns else _on_abstention(task, answer)
    calls = [call for turn in gold.turns for call in turn.tool_calls]
    told = " ".join(f"I called {call.tool} with {call.arguments}." for call in calls)
    scripts = {
        "silence": [_CLOSING] * len(ends),
        "the answer from memory": ends,
        "calls that are only told": [*ends[:-1], f"{told} {answer}"],
    }
    plan = task.truth.tool_sequence
    if plan and all(step.params for step in plan):
        scripts["right tools with junk arguments"] = [
            "\n".join(call_text(call.tool, {"x": "?"}) for call in turn.tool_calls) or turn.completion.text
            for turn in gold.turns
        ]
    if task.truth.final_answer is not None:
        before = [turn.completion.text for turn in gold.turns[:-1]]
        scripts["every call, then no answer"] = [*before, _IGNORANCE]
        scripts["every call, then the answer denied"] = [*before, f"It is not true that {answer}"]
        # What a tool says of a thing that does not exist is the answer.
        if task.truth.final_answer.type != "abstention":
            results = [result.content for result in gold.tool_results]
            scripts["every call, then all results at once"] = [*before, "\n".join([*results, *results])]
    return scripts


def _on_abstention(task: Task, answer: str) -> dict[str, list[str]]:
    scripts = {
        "an invented answer": ["The answer is 4711."],
        "nothing but a dot": ["."],
    }
    if offered := task.offered_in(0):
        scripts["a call, then the refusal"] = [call_text(offered[0].partition(".")[2], {}), answer]
    return scripts


async def play_attacks(
    tasks: Sequence[Task], *, tools: ToolProvider, settings: AgentSettings
) -> DiskList[Trajectory]:
    """Play the gold plan of each task and the attacks made from it, without a limit of turns but the task's
    own. The id of an episode is the task's with the name of the attack."""
    limits = replace(settings.limits, max_turns=None)
    settings = replace(settings, limits=limits, max_context_tokens=None)
    played: DiskList[Trajectory] = DiskList()

    async def play(task: Task, kind: str, policy: Policy) -> Trajectory:
        attempt = Attempt(task=task, attempt=0, group_id=task.id, seed=0)
        trajectory = await run_attempt(attempt, policy=policy, tools=tools, settings=settings, renderer=None)
        # Only now: the gold policy knows its task by the episode's id, which ends in a number there.
        played.append(named := trajectory.model_copy(update={"id": f"{task.id}#{kind}"}))
        return named

    gold_policy = GoldPolicy(tasks)
    for task in tasks:
        gold = await play(task, GOLD, gold_policy)
        for kind, texts in attack_scripts(task, gold).items():
            await play(task, kind, ScriptedPolicy([*texts, *["."] * _MOST_TURNS]))
    return played
