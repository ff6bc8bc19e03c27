"""A public task of arithmetic, played over MCP: write its tasks, or judge episodes as its author does."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from examples.calculator.tasks import TOLERANCE, write_dataset
from mcpagent import (
    EvalSummary,
    MCPAgentError,
    RewardTerm,
    Task,
    Trajectory,
    UserError,
    read_tasks,
    read_trajectories,
    summarise,
)

_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


def judged(played: Iterable[Trajectory], tasks: Iterable[Task]) -> EvalSummary:
    """Return the summary of episodes by the author's verdict in place of the reward: the last number of the
    last message is within 0.1 of the answer, whatever was called. Raises UserError if a task is missing."""
    by_id = {task.truth.task_id: task for task in tasks}
    played = list(played)
    if others := {each.task_id for each in played} - by_id.keys():
        raise UserError(
            f"has not the task {min(others)}", where="--data", remedy="name the file that was played"
        )
    return summarise([_judged(each, by_id[each.task_id]) for each in played], tasks=by_id.values())


def is_right(message: str, answer: float) -> bool:
    """Return whether the last number of a message is the answer, as the author reads and compares them."""
    numbers = _NUMBER.findall(message)
    return bool(numbers) and abs(float(numbers[-1].replace(",", "")) - answer) <= TOLERANCE


def _judged(played: Trajectory, task: Task) -> Trajectory:
    check = task.truth.final_answer
    assert check is not None
    value = float(is_right(played.final_answer or "", float(check.value)))
    return played.model_copy(update={"reward_terms": (RewardTerm(name="success", value=value, weight=1.0),)})


def main() -> int:
    """Do what the arguments ask for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.calculator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tasks = commands.add_parser("tasks", help="write the tasks and an mcp.json")
    tasks.add_argument("train", type=Path, help="the author's questions for training, a CSV file")
    tasks.add_argument("heldout", type=Path, help="those for evaluation")
    tasks.add_argument("--out", type=Path, required=True, help="a folder")
    judge = commands.add_parser("judge", help="judge episodes by the author's verdict")
    judge.add_argument("episodes", type=Path, help="the .jsonl.zst of an evaluation")
    judge.add_argument("--data", type=Path, required=True, help="the tasks that were played")
    given = parser.parse_args()
    try:
        if given.command == "tasks":
            for name, count in write_dataset(given.train, given.heldout, given.out).items():
                print(f"{name}: {count} tasks")
        else:
            episodes = read_trajectories(given.episodes, with_tokens=False)
            rate = judged(episodes, read_tasks(given.data)).metrics["task_success"]
            interval = f"[{rate.ci_low:.3f}, {rate.ci_high:.3f}]"
            print(f"right by the author's verdict: {rate.value:.3f} {interval} of {rate.n}")
    except MCPAgentError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
