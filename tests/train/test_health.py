"""Measures of health, and the limits that warn or end a run."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import HealthLimits
from mcpagent.core.tools import ToolCall
from mcpagent.core.trajectory import RewardTerm, Trajectory
from mcpagent.train.health import MEASURES, HealthMonitor, HealthSettings, StepReport, episode_measures
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
    "tokens_mean": 40.0,
}


def settings(**stop: float) -> HealthSettings:
    """The limits that ship, or those of `stop` alone."""
    health = TrainConfig().health
    return HealthSettings(
        warn=health.warn.model_dump(exclude_none=True),
        stop=stop or health.stop.model_dump(exclude_none=True),
        patience=health.patience,
    )


def after(*records: dict[str, Any], limits: HealthSettings | None = None) -> tuple[str | None, list[str]]:
    """Why a run with these steps stops, and what it was warned of."""
    notes: list[str] = []
    callback = HealthMonitor(limits or settings(), note=notes.append)
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
    assert set(HealthLimits.model_fields) == set(MEASURES)


def test_a_healthy_run_is_neither_warned_nor_stopped() -> None:
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
    assert len(notes) == 1, "a warning is given once"


def test_a_run_that_recovers_goes_on_and_is_warned_again_the_next_time() -> None:
    sick = {**HEALTHY, "calls_mean": 0.05}
    reason, notes = after(HEALTHY, sick, sick, HEALTHY, sick, sick)
    assert reason is None
    assert len(notes) == 2


def test_a_fall_is_measured_from_the_highest_level_and_not_from_one_lucky_step() -> None:
    rates = [0.2, 0.2, 0.9, 0.2, 0.2, 0.2]
    # The highest mean of three steps in a row is (0.2 + 0.9 + 0.2) / 3 = 0.433; 0.2 is 0.46 of it.
    limits = settings(success_fall=0.45)
    assert after(*[{**HEALTHY, "success_rate": r} for r in rates], limits=limits)[0] is None
    limits = settings(success_fall=0.47)
    assert after(*[{**HEALTHY, "success_rate": r} for r in [*rates, 0.2]], limits=limits)[0] is not None


def test_what_was_never_there_cannot_be_lost() -> None:
    silent = {**HEALTHY, "calls_mean": 0.01, "success_rate": 0.01}
    nothing = {**HEALTHY, "calls_mean": 0.0, "success_rate": 0.0}
    assert after(silent, *[nothing] * 6)[0] is None


def test_a_resumed_run_remembers_by_its_records() -> None:
    sick = {**HEALTHY, "calls_mean": 0.05}
    whole = HealthMonitor(settings())
    for step, record in enumerate([HEALTHY, sick, sick, sick], 1):
        whole.on_step(StepReport(step=step, metrics={"step": step, **record}, trajectories=()))
    notes: list[str] = []
    resumed = HealthMonitor(settings(), note=notes.append)
    resumed.replay([{"step": 1, **HEALTHY}, {"step": 2, **sick}, {"step": 3, **sick}])
    assert (resumed.should_stop(), resumed.is_well, notes) == (None, False, [])
    resumed.on_step(StepReport(step=4, metrics={"step": 4, **sick}, trajectories=()))
    assert resumed.should_stop() == whole.should_stop() is not None
    assert notes == [], "it was warned of before"


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


def test_a_loss_of_success_is_found_once_its_interval_lies_past_the_limit() -> None:
    def notes_after(n: int, *, good: int = 40) -> list[str]:
        before = [{**HEALTHY, "episodes": 8}] * good
        return after(*before, *[{**HEALTHY, "success_rate": 0.0, "episodes": 8}] * n)[1]

    # The last 64 episodes are 8 steps; a rate of 0.5 halves after four, and the interval needs a few more:
    # of 8 out of 64 Wilson's upper bound is 0.227, of 12 out of 64 it is 0.300, and the limit is 0.25.
    assert notes_after(5) == []
    assert "success is lost" in notes_after(6)[0]
    assert after(*[{**HEALTHY, "episodes": 8}] * 40, *[{**HEALTHY, "success_rate": 0.0, "episodes": 8}] * 20)[
        0
    ]


def test_a_run_whose_success_comes_back_is_well_again_although_its_past_was_not() -> None:
    good, bad = ({**HEALTHY, "success_rate": rate, "episodes": 96} for rate in (0.5, 0.0))
    assert after(good, *[bad] * 2, *[good] * 5)[0] is None
    callback = HealthMonitor(settings())
    callback.replay([{"step": i, **r} for i, r in enumerate([good, bad, bad, good], 1)])
    assert callback.is_well


def test_a_collapse_to_nothing_from_a_low_rate_ends_a_run_of_large_batches() -> None:
    low, lost = ({**HEALTHY, "success_rate": rate, "episodes": 96} for rate in (0.3, 0.0))
    reason, _ = after(*[low] * 4, *[lost] * 8)
    assert reason is not None and "success is lost" in reason


def term_step(success: float, partial: float, **more: float) -> dict[str, float]:
    """128 scored episodes; only what the terms are held against."""
    return {"episodes": 128, "unscored": 0, "success_rate": success, "reward_partial": partial, **more}


def test_a_term_that_rises_while_success_falls_is_warned_of_by_name_and_is_in_the_record() -> None:
    notes: list[str] = []
    monitor = HealthMonitor(settings(), note=notes.append)
    # At 128 episodes the 95% intervals of 0.6 and 0.3 are about [0.51, 0.68] and [0.23, 0.38].
    for step, values in enumerate([(0.6, 0.3), (0.6, 0.32), (0.3, 0.65)], 1):
        record = {"step": step, **term_step(*values)}
        monitor.on_step(StepReport(step=step, metrics=record, trajectories=()))
        assert record.get("term_against_success") == (pytest.approx(0.35) if step == 3 else None)
    (note,) = notes
    assert "a reward term rises while success falls" in note and "(partial)" in note


@pytest.mark.parametrize(
    "steps",
    [
        [term_step(0.6, 0.3), term_step(0.3, 0.2)],  # both fall
        [term_step(0.3, 0.3), term_step(0.6, 0.6)],  # both rise
        [term_step(0.6, 0.3), term_step(0.55, 0.65)],  # success fell by no more than chance
        [term_step(0.6, 0.3), term_step(0.3, 0.35)],  # the term rose by no more than chance
        [term_step(0.6, 0.3, reward_own=0.1), term_step(0.3, 0.3, reward_own=0.9)],  # without a weight
        # A penalty falls, so that it adds more, but it is not in force.
        [
            term_step(0.6, 0.3, reward_penalty=0.9, penalty_active=False),
            term_step(0.3, 0.3, reward_penalty=0.1, penalty_active=False),
        ],
    ],
)
def test_terms_that_go_with_success_or_move_by_chance_are_not_warned_of(
    steps: list[dict[str, float]],
) -> None:
    assert after(*steps) == (None, [])


def test_a_penalty_that_falls_with_success_is_warned_of_where_it_is_in_force() -> None:
    steps = [term_step(0.6, 0.3, reward_penalty=0.9), term_step(0.3, 0.3, reward_penalty=0.1)]
    _, (note,) = after(*steps)
    assert "(penalty)" in note


def test_few_episodes_a_step_are_taken_together_before_a_term_is_held_against_success() -> None:
    few = [{**term_step(*values), "episodes": 32} for values in [(0.6, 0.3)] * 4 + [(0.33, 0.8)] * 4]
    _, (note,) = after(*few)
    assert "health, step 6" in note  # two steps of 32 make 64


def test_chance_alone_rarely_warns_of_a_term() -> None:
    rng = random.Random(7)
    warned = 0
    for _ in range(200):  # runs of 40 steps of 64 episodes, in which nothing changes
        steps = [
            {
                "episodes": 64,
                "success_rate": sum(rng.random() < 0.4 for _ in range(64)) / 64,
                "reward_partial": sum(rng.random() for _ in range(64)) / 64,
            }
            for _ in range(40)
        ]
        warned += bool(after(*steps)[1])
    assert warned <= 2
