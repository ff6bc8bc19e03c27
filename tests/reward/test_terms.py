"""The configured reward: weights, the property that they keep or break, and terms of one's own."""

from __future__ import annotations

import hashlib
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.config.schema import RewardConfig
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason, total_reward
from mcpagent.errors import UserError
from mcpagent.reward.record import EpisodeRecord, grade
from mcpagent.reward.terms import DEFAULT_REWARD, ConfiguredReward, TermFunction, load_reward
from tests.reward.records import CLOSE, QUOTE, episode, made, make_task, turn

GOOD = """
from mcpagent.core.tasks import Task
from mcpagent.reward.record import EpisodeRecord


def brief(task: Task, episode: EpisodeRecord) -> float:
    return 1.0 if len(episode.final_answer or "") < 20 else 0.25


def fails(task: Task, episode: EpisodeRecord) -> float:
    return 1 / len(episode.turns[0].parse_failures)


def too_much(task: Task, episode: EpisodeRecord) -> float:
    return 1.5


def not_a_number(task: Task, episode: EpisodeRecord) -> float:
    return float("nan")


def nothing(task: Task, episode: EpisodeRecord) -> float | None:
    return None


def leaves(task: Task, episode: EpisodeRecord) -> float:
    raise SystemExit(3)


def meddles(task: Task, episode: EpisodeRecord) -> float:
    task.truth.tool_sequence[0].params.clear()
    episode.turns[0].calls[0].arguments["ticker"] = "MINE"
    return 1.0


def untyped(task, episode):
    return 1.0


def of_one(task: Task) -> float:
    return 1.0


def of_text(task: Task, episode: EpisodeRecord) -> str:
    return "1.0"


def swapped(episode: EpisodeRecord, task: Task) -> float:
    return 1.0


async def later(task: Task, episode: EpisodeRecord) -> float:
    return 1.0


def success(task: Task, episode: EpisodeRecord) -> float:
    return 1.0


number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, which no other test has imported."""
    name = f"terms_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    (tmp_path / f"{name}.py").write_text(GOOD)
    (tmp_path / f"{name}_broken.py").write_text("def brief(:\n")
    monkeypatch.chdir(tmp_path)
    return name


TASK = make_task(
    tool_sequence=[QUOTE],
    final_answer={"type": "number", "value": "${step1.close}", "tolerance": 0.01},
    success={"must_call_tool": "stocks.quote"},
)
RIGHT = episode(turn(made(ticker="AAPL")), turn(), answer=f"It closed at {CLOSE}.")
LONG = episode(turn(made(ticker="AAPL")), turn(), answer=f"After some thought, it closed at {CLOSE}.")
WRONG = episode(turn(made(ticker="AAPL")), turn(), answer="I do not know.")


def chosen(*places: str, **weights: float) -> RewardConfig:
    return RewardConfig(terms=places, weights=weights)


def reward_of(config: RewardConfig, record: EpisodeRecord, task: Task = TASK) -> float | None:
    return total_reward(load_reward(config).grade(task, record).terms)


def test_without_choices_the_grade_is_that_of_the_method() -> None:
    for record in (RIGHT, LONG, WRONG):
        assert load_reward(RewardConfig()).grade(TASK, record).terms == grade(TASK, record)
    bounds = DEFAULT_REWARD.bounds  # 0.6 - 0.15 and 0.4
    assert (bounds.lowest_success, bounds.highest_failure) == pytest.approx((0.45, 0.4))
    assert RewardConfig().penalty_weight == DEFAULT_REWARD.effective_weights["penalty"]
    assert DEFAULT_REWARD.bounds.separates and DEFAULT_REWARD.notes() == []


def test_weights_weigh_the_terms_of_the_rule() -> None:
    # A right answer: success 1, partial 1, penalty 0. A wrong one after the right call: S fails with the
    # answer's gate aside, so partial = (0.5 S + 0.25 coverage + 0.25 answer) = 0.5 + 0.25 + 0.
    assert reward_of(chosen(success=2.0, partial=0.5), RIGHT) == pytest.approx(2.5)
    assert reward_of(chosen(success=2.0, partial=0.5), WRONG) == pytest.approx(0.5 * 0.75)
    assert reward_of(chosen(partial=0.0), WRONG) == 0.0


def test_a_term_of_ones_own_enters_by_its_weight_and_is_measured_without_one(module: str) -> None:
    place = f"{module}:brief"
    assert reward_of(chosen(place, brief=0.04), RIGHT) == pytest.approx(1.04)
    assert reward_of(chosen(place, brief=0.04), LONG) == pytest.approx(1.0 + 0.04 * 0.25)
    graded = load_reward(chosen(place)).grade(TASK, LONG)
    assert (graded.terms[-1].name, graded.terms[-1].value, graded.terms[-1].weight) == ("brief", 0.25, 0.0)
    assert graded.terms[:-1] == grade(TASK, LONG)


def test_the_record_names_the_function_and_the_hash_of_its_file(module: str) -> None:
    facts = load_reward(chosen(f"{module}:brief", brief=0.04)).as_json()
    expected = hashlib.sha256(GOOD.encode()).hexdigest()
    assert facts["terms"] == {"brief": {"function": f"{module}:brief", "source_sha256": expected}}
    assert facts["weights"] == {"success": 0.6, "partial": 0.4, "penalty": -1.0, "brief": 0.04}
    # 0.6 - 0.15 = 0.45 for the least success; 0.4 + 0.04 = 0.44 for the best failure.
    assert (facts["lowest_success"], facts["highest_failure"]) == (0.45, 0.44)
    assert facts["every_success_above_every_failure"] is True


@pytest.mark.parametrize("name", ["fails", "too_much", "not_a_number", "nothing", "leaves"])
def test_a_term_that_does_not_run_leaves_the_episode_unscored_and_says_why(module: str, name: str) -> None:
    reward = load_reward(chosen(f"{module}:{name}", **{name: 0.01}))
    graded = reward.grade(TASK, RIGHT)
    assert graded.terms[-1].value is None and total_reward(graded.terms) is None
    assert len(graded.errors) == 1 and name in graded.errors[0]
    # Without weight it is a hole in the record alone.
    measured = load_reward(chosen(f"{module}:{name}")).grade(TASK, RIGHT)
    assert total_reward(measured.terms) == 1.0 and measured.terms[-1].value is None


def test_a_term_is_not_asked_about_an_episode_that_the_machinery_broke(module: str) -> None:
    broken = EpisodeRecord(turns=RIGHT.turns, final_answer=None, stop_reason=StopReason.FAILED)
    graded = load_reward(chosen(f"{module}:fails", fails=0.1)).grade(TASK, broken)
    assert graded.terms[-1].value is None and graded.errors == ()


def test_a_term_cannot_change_the_task_or_the_episode(module: str) -> None:
    before = (TASK.model_dump_json(), repr(RIGHT))
    load_reward(chosen(f"{module}:meddles")).grade(TASK, RIGHT)
    assert (TASK.model_dump_json(), repr(RIGHT)) == before


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("{module}:missing", "has no attribute"),
        ("no_such_module_here:brief", "No module named"),
        ("{module}_broken:brief", "SyntaxError"),
        ("{module}:untyped", "does not say what it returns"),
        ("{module}:of_one", "does not take a task and an episode"),
        ("{module}:of_text", "returns str, and a term is a float"),
        ("{module}:swapped", "takes EpisodeRecord as episode, where Task comes"),
        ("{module}:later", "coroutine"),
        ("{module}:success", "as a term of the rule is"),
        ("{module}:number", "is not a function but int"),
        ("math:sqrt", "is not a function"),
    ],
)
def test_what_is_no_term_is_refused_with_one_error(module: str, place: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        load_reward(chosen(place.format(module=module)))
    assert words in refused.value.message
    assert refused.value.where == "reward.terms" and refused.value.remedy and refused.value.exit_code == 2


@given(
    success=st.floats(-1, 2),
    partial=st.floats(-1, 1),
    penalty=st.floats(-2, 1),
    extra=st.floats(-1, 1),
)
def test_the_stated_property_is_that_of_every_corner_of_the_terms(
    success: float, partial: float, penalty: float, extra: float
) -> None:
    term = TermFunction(name="x", place="m:x", function=lambda _t, _e: 0.0, source_sha256="")
    reward = ConfiguredReward(
        weights={"success": success, "partial": partial, "penalty": penalty, "x": extra}, functions=(term,)
    )
    # By hand: the penalty is 0 to 0.15, the others 0 to 1, and extremes of a sum of products are at corners.
    rest = [partial * p + penalty * q + extra * x for p, q, x in itertools.product((0, 1), (0, 0.15), (0, 1))]
    assert math.isclose(reward.bounds.lowest_success, success + min(rest), abs_tol=1e-12)
    assert math.isclose(reward.bounds.highest_failure, max(rest), abs_tol=1e-12)


def test_a_choice_that_breaks_the_property_is_noted_and_one_that_keeps_it_is_stated() -> None:
    (kept,) = load_reward(chosen(success=1.0)).notes()
    assert "at least 0.85" in kept and "every success is above every failure" in kept
    (broken,) = load_reward(chosen(partial=0.5)).notes()
    assert "at least 0.45" in broken and "at most 0.5" in broken and "may reward failing" in broken
