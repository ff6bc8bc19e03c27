"""Episodes played on real servers by a script: what an honest one sees, and what any one is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpagent.core.answer_line import right_message
from mcpagent.core.placeholders import resolve_references
from mcpagent.core.shown_values import result_value
from mcpagent.core.tasks import PlanStep, Task
from mcpagent.core.tools import ToolResult
from mcpagent.core.trajectory import FinishReason
from mcpagent.env.episode import Episode, EpisodeLimits
from mcpagent.policy.scripted import call_text
from mcpagent.tools.pool import ToolPool

ASK = "Which one do you mean?"
Script = Sequence[Sequence[str]]  # what the model writes in each step, by user turn


@dataclass
class Seen:
    """What an honest episode of `task` saw: `results` by step, and the texts of all in order."""

    task: Task
    results: dict[str, Any] = field(default_factory=dict)
    raw: list[ToolResult] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [result.content for result in self.raw]

    @property
    def right(self) -> str:
        """The last message of the gold policy."""
        return right_message(self.task, self.results) or "Done."


async def play(
    pool: ToolPool, task: Task, script: Script, *, finish: FinishReason = FinishReason.STOP
) -> tuple[dict[str, float | None], float]:
    """The terms and the reward of an episode in which each user turn is played by its list of moves. With
    another `finish` the last move of all is cut off."""
    episode = Episode(task, pool, limits=EpisodeLimits(max_turns=200, max_tool_calls=200), episode_id="t#0")
    try:
        await episode.start()
        moves = [move for turn in script for move in turn]
        for index, move in enumerate(moves):
            last = index == len(moves) - 1
            output = await episode.step(move, finish=finish if last else FinishReason.STOP)
            if output.done:
                break
        assert episode.done, (task.id, moves)
        terms = await episode.grade()
        return {t.name: t.value for t in terms}, sum(t.weight * (t.value or 0.0) for t in terms)
    finally:
        await episode.close()


async def honest(pool: ToolPool, task: Task) -> Seen:
    """Carry the plan out, in a session of its own, and keep what it saw."""
    seen = Seen(task)
    episode = Episode(task, pool, limits=EpisodeLimits(max_turns=200), episode_id="t#honest")
    try:
        await episode.start()
        for user_turn in range(len(task.truth.user_turns) + 1):
            for step in task.truth.tool_sequence:
                if step.user_turn == user_turn:
                    call = call_text(step.tool, resolve_references(step.params, seen.results))
                    output = await episode.step(call)
                    seen.raw += output.tool_results
                    seen.results[f"step{step.step}"] = result_value(output.tool_results[0])
            await episode.step(ASK)
    finally:
        await episode.close()
    return seen


def plan(seen: Seen, keep: Callable[[PlanStep], bool] = lambda _: True) -> list[list[str]]:
    """The gold calls, one a move, in their user turns, with the values that the honest episode found."""
    turns: list[list[str]] = [[] for _ in range(len(seen.task.truth.user_turns) + 1)]
    for step in seen.task.truth.tool_sequence:
        if keep(step):
            turns[step.user_turn].append(call_text(step.tool, resolve_references(step.params, seen.results)))
    return turns


def spoken(turns: Sequence[Sequence[str]], answer: str) -> Script:
    """`turns` with words at the end of each; `answer` at the last."""
    return [[*moves, ASK if index < len(turns) - 1 else answer] for index, moves in enumerate(turns)]
