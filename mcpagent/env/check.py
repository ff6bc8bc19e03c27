"""Does the environment tell right from wrong? Verdicts over episodes whose outcome is known."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

from mcpagent.core.metrics import CheckResult, CheckStatus
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.reward.validate import task_problems
from mcpagent.storage.packages import pip_install

_SHOWN = 5  # offenders named in one line


def check_environment(
    tasks: Sequence[Task],
    *,
    gold: Sequence[Trajectory],
    empty: Sequence[Trajectory],
    over_eager: Sequence[Trajectory],
) -> list[CheckResult]:
    """One verdict for each claim, from at least one trajectory a task: `gold` of `GoldPolicy`; `empty` of
    `EmptyPolicy`, but where the right answer is to abstain, of a policy that says so; `over_eager`, of those
    tasks only, of `OverEagerPolicy`."""
    abstaining = [task for task in tasks if task.truth.abstain]
    acting = [task for task in tasks if not task.truth.abstain]
    return [
        _judgeable(tasks),
        _verdict("the gold plan scores 1.0", tasks, gold, _is_perfect, policy="gold"),
        _verdict("an empty policy fails", acting, empty, _failed, policy="empty"),
        _verdict("an abstention succeeds", abstaining, empty, _succeeded, policy="gold"),
        _verdict(
            "an over-eager policy fails where no call is right",
            abstaining,
            over_eager,
            _failed,
            policy="over-eager",
        ),
    ]


def check_signatures() -> CheckResult:
    """Whether `MCPToolEnv` can be called as SkyRL calls a `BaseTextEnv`; skipped without skyrl_gym."""
    name = "MCPToolEnv has SkyRL's init and step"
    try:
        from skyrl_gym.envs.base_text_env import BaseTextEnv
    except ImportError:
        return CheckResult(
            name=name,
            status=CheckStatus.SKIP,
            detail="skyrl_gym is not installed",
            remedy=pip_install("mcpagent[gym]"),
        )
    from mcpagent.env.skyrl import MCPToolEnv

    differing = [
        method
        for method in ("init", "step", "close", "get_metrics")
        if _parameters(getattr(MCPToolEnv, method)) != _parameters(getattr(BaseTextEnv, method))
    ]
    if differing:
        detail = f"{', '.join(differing)} differ from BaseTextEnv's"
        return CheckResult(
            name=name, status=CheckStatus.FAIL, detail=detail, remedy="pip install 'skyrl-gym>=0.4,<0.5'"
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail="init, step, close, get_metrics agree")


def _judgeable(tasks: Sequence[Task]) -> CheckResult:
    name = "every task can be judged"
    problems = [f"{task.id}: {problem}" for task in tasks for problem in task_problems(task)]
    if problems or not tasks:
        detail = _some(problems) or "there are no tasks"
        return CheckResult(
            name=name, status=CheckStatus.FAIL, detail=detail, remedy="mcpagent data validate FILE"
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail=f"{len(tasks)} tasks")


def _verdict(
    name: str,
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    holds: Callable[[Trajectory], bool],
    *,
    policy: str,
) -> CheckResult:
    """Pass if `holds` for every trajectory of every one of `tasks`; an unscored one proves nothing."""
    if not tasks:
        return CheckResult(name=name, status=CheckStatus.SKIP, detail="no task of this kind")
    attempts = _by_task(trajectories)
    missing = [f"{task.id}: not run" for task in tasks if task.id not in attempts]
    mine = [trajectory for task in tasks for trajectory in attempts.get(task.id, ())]
    unscored = [_described(t) for t in mine if t.reward is None]
    wrong = [_described(t) for t in mine if t.reward is not None and not holds(t)]
    if wrong or unscored or missing:
        counts = f"{len(wrong)} of {len(mine)} do not, {len(unscored)} unscored, {len(missing)} not run"
        return CheckResult(
            name=name,
            status=CheckStatus.FAIL,
            detail=f"{counts}: {_some([*wrong, *unscored, *missing])}",
            remedy=f"mcpagent rollout --policy {policy} --data FILE --out FILE",
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail=f"{len(mine)} episodes")


def _by_task(trajectories: Sequence[Trajectory]) -> Mapping[str, list[Trajectory]]:
    grouped: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        grouped.setdefault(trajectory.task_id, []).append(trajectory)
    return grouped


def _is_perfect(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and math.isclose(trajectory.reward, 1.0, abs_tol=1e-9)


def _succeeded(trajectory: Trajectory) -> bool:
    return trajectory.is_success is True


def _failed(trajectory: Trajectory) -> bool:
    return trajectory.is_success is False


def _described(trajectory: Trajectory) -> str:
    terms = ", ".join(
        f"{term.name}={term.value:g}" for term in trajectory.reward_terms if term.value is not None
    )
    why = "; ".join(trajectory.errors) or terms
    return f"{trajectory.task_id} ({trajectory.stop_reason}: {why})"


def _some(lines: Sequence[str]) -> str:
    rest = len(lines) - _SHOWN
    return "; ".join(lines[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


def _parameters(method: Callable[..., object]) -> list[str]:
    return list(inspect.signature(method).parameters)
