"""Measures of health, and the limits that end a run."""

from __future__ import annotations

from typing import Any

import pytest

from mcpagent.config.sections import HealthConfig
from mcpagent.core.tools import ToolCall
from mcpagent.core.trajectory import RewardTerm, Trajectory
from mcpagent.train.health import MEASURES, HealthMonitor, StepReport, episode_measures
from tests.train.world import trajectory

HEALTHY = {
    "kl": 0.1,
    "approx_kl": 0.01,
    "clip_fraction": 0.05,
    "entropy": 0.5,
    "grad_norm": 0.2,
    "logprob_drift_max": 1e-4,
    "uniform_share": 0.2,
    "success_rate": 0.5,
    "calls_mean": 2.0,
    "loop_share": 0.05,
    "calls_begun": 0.8,
    "tokens_mean": 40.0,
}


LIMITS = HealthConfig().model_dump(exclude_none=True, exclude={"enabled"})  # those that ship


def after(*records: dict[str, Any], limits: dict[str, float] = LIMITS) -> tuple[str | None, list[str]]:
    """Why a run with these steps stops, and what was noted."""
    notes: list[str] = []
    callback = HealthMonitor(limits, note=notes.append)
    for step, record in enumerate(records, 1):
        callback.on_step(StepReport(step=step, metrics={"step": step, **record}, trajectories=()))
    return callback.should_stop(), notes


def calling(name: str, *calls: dict[str, Any], success: float | None = 1.0) -> Trajectory:
    """An episode that makes these calls (to one tool, with these arguments) in one turn."""
    made = trajectory(name, 0, success)
    tool_calls = tuple(
        ToolCall(id=str(i), server="fmp", tool="get_quote", arguments=arguments)
        for i, arguments in enumerate(calls)
    )
    terms = (*made.reward_terms, RewardTerm(name="penalty", value=0.1 * len(calls)))
    return made.model_copy(
        update={
            "turns": (made.turns[0].model_copy(update={"tool_calls": tool_calls}),),
            "reward_terms": terms,
        }
    )


def test_every_limit_of_the_configuration_is_measured_and_every_measure_has_one() -> None:
    assert set(LIMITS) == {measure.limit or name for name, measure in MEASURES.items()}


def test_nothing_is_said_of_a_healthy_run() -> None:
    assert after(*[HEALTHY] * 20) == (None, [])


def test_growth_as_in_a_run_that_learns_is_healthy() -> None:
    # Over 24 steps: entropy and length change by the factors that the quickstart's do, success doubles.
    steps = [
        {**HEALTHY, "success_rate": 0.3 + i / 40, "entropy": 0.12 - i / 400, "tokens_mean": 21 + i * 0.8}
        for i in range(24)
    ]
    assert after(*steps) == (None, [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"calls_mean": 0.05}, "tools are abandoned"),
        ({"success_rate": 0.0}, "success is lost"),
        ({"kl": 50.0}, "far from the reference"),
        ({"approx_kl": 4.0}, "far from what sampled"),
        ({"entropy": 30.0}, "dissolves into noise"),
        ({"loop_share": 0.95}, "the same call is repeated"),
        ({"calls_begun": 0.01}, "the calls of the demonstrations are unlearned"),
        ({"kl": float("nan")}, "far from the reference"),
    ],
)
def test_a_collapse_stops_the_run_with_its_reason_after_the_patience(
    change: dict[str, float], words: str
) -> None:
    sick = {**HEALTHY, **change}
    reason, notes = after(HEALTHY, sick, sick)
    assert reason is None
    assert len(notes) == 1
    assert words in notes[0]
    reason, notes = after(HEALTHY, sick, sick, sick)
    assert reason is not None
    assert words in reason and "3 steps in a row" in reason
    assert len(notes) == 1, "it is said once"


def test_a_run_that_recovers_goes_on_and_the_next_time_is_noted_again() -> None:
    sick = {**HEALTHY, "calls_mean": 0.05}
    reason, notes = after(HEALTHY, sick, sick, HEALTHY, sick, sick)
    assert reason is None
    assert len(notes) == 2


def test_a_fall_is_measured_from_the_highest_level_and_not_from_one_lucky_step() -> None:
    rates = [0.2, 0.2, 0.9, 0.2, 0.2, 0.2]
    # The highest mean of three steps in a row is (0.2 + 0.9 + 0.2) / 3 = 0.433; 0.2 is 0.46 of it.
    limits = {"success_fall": 0.45}
    assert after(*[{**HEALTHY, "success_rate": r} for r in rates], limits=limits)[0] is None
    limits = {"success_fall": 0.47}
    assert after(*[{**HEALTHY, "success_rate": r} for r in [*rates, 0.2]], limits=limits)[0] is not None


def test_what_was_never_there_cannot_be_lost() -> None:
    silent = {**HEALTHY, "calls_mean": 0.01, "success_rate": 0.01}
    nothing = {**HEALTHY, "calls_mean": 0.0, "success_rate": 0.0}
    assert after(silent, *[nothing] * 6)[0] is None


def test_steps_that_train_nothing_are_told_once_and_end_no_run() -> None:
    solved = {**HEALTHY, "success_rate": 1.0, "trained_samples": 0}
    trains = {**HEALTHY, "trained_samples": 16}
    reason, notes = after(trains, *[solved] * 6)
    assert reason is None
    assert [note.partition(",")[0] for note in notes] == ["step 4: the last 3 steps trained nothing"]
    assert "success 100%" in notes[0]
    assert after(*[solved, solved, trains] * 3) == (None, [])


def test_a_resumed_run_remembers_by_its_records() -> None:
    sick = {**HEALTHY, "calls_mean": 0.05}
    whole = HealthMonitor(LIMITS)
    for step, record in enumerate([HEALTHY, sick, sick, sick], 1):
        whole.on_step(StepReport(step=step, metrics={"step": step, **record}, trajectories=()))
    notes: list[str] = []
    resumed = HealthMonitor(LIMITS, note=notes.append)
    resumed.replay([{"step": 1, **HEALTHY}, {"step": 2, **sick}, {"step": 3, **sick}])
    assert (resumed.should_stop(), resumed.is_well, notes) == (None, False, [])
    resumed.on_step(StepReport(step=4, metrics={"step": 4, **sick}, trajectories=()))
    assert resumed.should_stop() == whole.should_stop() is not None
    assert notes == [], "it was said before"


def test_calls_loops_lengths_and_reward_terms_are_counted() -> None:
    same, other = {"symbol": "A"}, {"symbol": "B"}
    episodes = [
        calling("a", same, same, same),
        calling("b", same, other, same),
        calling("c", success=0.0),
        trajectory("d", 0, None),  # unscored: in no measure
    ]
    measures = episode_measures(episodes)
    assert measures["calls_mean"] == 2.0
    assert measures["calls_max"] == 3
    assert measures["silent_share"] == pytest.approx(1 / 3)
    assert measures["loop_share"] == pytest.approx(1 / 3)
    assert measures["tokens_mean"] == 2.0
    assert measures["reward_success"] == pytest.approx(2 / 3)
    assert measures["reward_penalty"] == pytest.approx(0.2)
    # Penalties 0.3, 0.3, 0 with successes 1, 1, 0: exactly along each other.
    assert measures["corr_penalty"] == pytest.approx(1.0)


def test_a_constant_term_has_no_correlation_rather_than_zero() -> None:
    measures = episode_measures([calling("a", {}), calling("b", {})])
    assert measures["corr_penalty"] is None
    assert episode_measures([trajectory("d", 0, None)]) == {}


@pytest.mark.parametrize("rates", [[0.125, 0.0], [0.25, 0.0, 0.125, 0.0, 0.125, 0.0, 0.0, 0.25] * 3])
def test_a_few_unlucky_episodes_are_no_alarm(rates: list[float]) -> None:
    steps = [{**HEALTHY, "success_rate": rate, "episodes": 8} for rate in rates]
    assert after(*steps) == (None, [])


def test_a_loss_of_success_is_found_in_the_last_64_episodes() -> None:
    def notes_after(n: int) -> list[str]:
        before = [{**HEALTHY, "episodes": 8}] * 40
        lost = [{**HEALTHY, "success_rate": 0.0, "episodes": 8}] * n
        return after(*before, *lost, limits={"success_fall": 0.5})[1]

    # The last 64 episodes are 8 steps: after four without success their rate is 0.25, which is the limit.
    assert notes_after(4) == []
    assert "success is lost" in notes_after(5)[0]
    lost = [{**HEALTHY, "success_rate": 0.0, "episodes": 8}] * 20
    assert after(*[{**HEALTHY, "episodes": 8}] * 40, *lost)[0]


def test_a_run_whose_success_comes_back_is_well_again_although_its_past_was_not() -> None:
    good, bad = ({**HEALTHY, "success_rate": rate, "episodes": 96} for rate in (0.5, 0.0))
    assert after(good, *[bad] * 2, *[good] * 5)[0] is None
    callback = HealthMonitor(LIMITS)
    callback.replay([{"step": i, **r} for i, r in enumerate([good, bad, bad, good], 1)])
    assert callback.is_well


def test_a_collapse_to_nothing_from_a_low_rate_ends_a_run_of_large_batches() -> None:
    low, lost = ({**HEALTHY, "success_rate": rate, "episodes": 96} for rate in (0.3, 0.0))
    reason, _ = after(*[low] * 4, *[lost] * 8)
    assert reason is not None and "success is lost" in reason
