from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.evaluate.baseline import gains
from mcpagent.evaluate.report.document import document_of
from mcpagent.evaluate.report.episodes import NonceCount
from mcpagent.evaluate.report.run_data import RunView
from mcpagent.evaluate.report.verdicts import Verdict, judge
from mcpagent.evaluate.summary import EvalResult, summarise
from tests.env.world import make_task
from tests.evaluate.records import call, result, trajectory, turn
from tests.evaluate.run_folder import lost_call
from tests.run.world import with_id


def _run(rows: list[JsonObject], **parts: object) -> RunView:
    numbered = [{"step": i + 1, **row} for i, row in enumerate(rows)]
    return RunView(path=Path("run"), steps=numbered, **parts)  # pyright: ignore[reportArgumentType]


def _verdict(run: RunView, name: str) -> Verdict:
    return next(v for v in judge(run) if v.name == name)


def _evaluation(successes: int, tasks: int, *, failed: int = 0) -> EvalResult:
    episodes = [trajectory(f"t{i:03d}", success=float(i < successes)) for i in range(tasks)]
    episodes += [trajectory(f"f{i}", success=None, stop_reason=StopReason.FAILED) for i in range(failed)]
    return summarise(episodes).with_provenance({})


def test_a_run_that_measured_nothing_passes_nothing_and_fails_nothing() -> None:
    assert {v.outcome for v in judge(_run([{}]))} == {"not measured"}


@pytest.mark.parametrize(
    ("successes", "outcome"),
    [
        (130, "pass"),  # 65 % of 200: interval 58.2 to 71.3
        (108, "fail"),  # 54 % of 200: the interval reaches down to 47.1
        (60, "fail"),
    ],
)
def test_completion_needs_the_whole_interval_above_half(successes: int, outcome: str) -> None:
    run = _run([{}], evaluations={"trained": _evaluation(successes, 200)})
    assert _verdict(run, "More than half of the tasks completed").outcome == outcome


def test_improvement_is_judged_on_the_paired_difference() -> None:
    better = {"warm_start": _evaluation(40, 200), "trained": _evaluation(120, 200)}
    verdict = _verdict(_run([{}], evaluations=better), "Better than before training")
    assert verdict.outcome == "pass"
    assert verdict.evidence.startswith("+40.0 points [+")
    assert "80 tasks won, 0 lost, 120 unchanged" in verdict.evidence
    same = {"warm_start": _evaluation(40, 200), "trained": _evaluation(40, 200)}
    assert _verdict(_run([{}], evaluations=same), "Better than before training").outcome == "fail"


@pytest.mark.parametrize(
    ("simple_after", "sampled_after", "outcome", "evidence"),
    [
        (98, 97, "pass", "greedy: none of 3 parts fell; sampled: none of 3"),
        (74, 97, "fail", "greedy: class simple −24.0 points [−33.0, −16.0], p < 0.001; sampled: none"),
        (98, 74, "fail", "sampled: class simple −24.0 points"),
    ],
)
def test_a_class_that_got_worse_fails_a_run_that_got_better(
    simple_after: int, sampled_after: int, outcome: str, evidence: str
) -> None:
    def side(simple: int, pairs: int) -> EvalResult:
        tasks = [
            with_id(make_task(), f"{kind}{i:03}").model_copy(update={"extra_info": {"class": kind}})
            for kind in ("simple", "pairs")
            for i in range(100)
        ]
        right = {"simple": simple, "pairs": pairs}
        episodes = [
            trajectory(task.id, success=float(i % 100 >= 100 - right[task.extra_info["class"]]))
            for i, task in enumerate(tasks)
        ]
        return summarise(episodes, tasks=tasks).with_provenance({})

    sides = {"warm_start": side(98, 10), "trained": side(simple_after, 90)}
    sides |= {"warm_start_sampled": side(98, 10), "trained_sampled": side(sampled_after, 90)}
    run = _run([{}], evaluations=sides)
    verdict = _verdict(run, "Nothing got worse")
    assert verdict.outcome == outcome and evidence in verdict.evidence
    assert _verdict(run, "Better than before training").outcome == "pass"
    rows = {row.part: row for row in document_of(run).success if row.evaluation == "greedy"}
    assert rows["class simple"].after is not None and rows["class simple"].after.n == 100


def test_whether_something_got_worse_is_open_if_the_classes_are_not_known() -> None:
    sides = {"warm_start": _evaluation(40, 200), "trained": _evaluation(120, 200)}
    verdict = _verdict(_run([{}], evaluations=sides), "Nothing got worse")
    assert verdict.outcome == "not measured" and "evaluate again" in verdict.evidence


def test_a_gain_is_told_against_the_better_of_the_model_with_none_and_with_two_shots() -> None:
    # 150 of 200 against 40 and 120: the gain is 15 points, not 55; against 120 alone it would be none.
    sides = {"untrained": _evaluation(40, 200), "untrained_2_shots": _evaluation(120, 200)}
    for successes, outcome in ((150, "pass"), (120, "fail")):
        run = _run([{}], evaluations={**sides, "trained": _evaluation(successes, 200)})
        verdict = _verdict(run, "Better than the untrained model")
        assert verdict.outcome == outcome
        assert verdict.evidence.startswith(f"over untrained 2 shots: +{(successes - 120) / 2:.1f} points")
    assert gains(run.evaluations, "trained", suffixes={"greedy": ""})["greedy"]["over"] == "untrained_2_shots"
    alone = _run([{}], evaluations={"untrained": _evaluation(40, 200), "trained": _evaluation(150, 200)})
    assert "Better than the untrained model" not in {verdict.name for verdict in judge(alone)}


def test_reward_must_rise_by_more_than_chance() -> None:
    name = "Reward rising"
    rising = _run([{"reward_mean": 0.2 + 0.02 * i + 0.01 * (i % 2)} for i in range(30)])
    flat = _run([{"reward_mean": 0.4 + 0.05 * (i % 3)} for i in range(30)])
    short = _run([{"reward_mean": 0.1 * i} for i in range(5)])
    assert [_verdict(r, name).outcome for r in (rising, flat, short)] == ["pass", "fail", "not measured"]


def test_kl_is_judged_at_its_highest_step_and_not_only_at_the_end() -> None:
    rows = [{"kl": 0.01}, {"kl": 0.7}, {"kl": 0.02}]
    assert _verdict(_run(rows), "KL bounded").outcome == "fail"
    assert _verdict(_run(rows, config={"grpo": {"target_kl": 0.4}}), "KL bounded").outcome == "pass"
    assert _verdict(_run([{"kl": 0.5}]), "KL bounded").outcome == "pass"


@pytest.mark.parametrize(
    ("start", "growth", "outcome"),
    [
        (4000.0, 0.04, "pass"),
        (4000.0, 0.06, "fail"),
        (4000.0, -0.2, "pass"),
        (500.0, 0.12, "pass"),  # 60 MiB: as much as the episodes of two steps differ
        (500.0, 0.14, "fail"),  # 70 MiB
    ],
)
def test_memory_growth_is_measured_over_the_second_half(start: float, growth: float, outcome: str) -> None:
    # The first half allocates freely; the second half rises linearly by `growth` of its start.
    first = [{"rss_mb": 100.0 + 40 * i} for i in range(10)]
    second = [{"rss_mb": start * (1 + growth * i / 9)} for i in range(10)]
    assert _verdict(_run(first + second), "Memory flat").outcome == outcome


def test_one_step_that_loses_many_episodes_is_a_surge_even_if_the_whole_is_small() -> None:
    name = "Few unscored episodes"
    calm = [{"episodes": 96, "unscored": 0} for _ in range(50)]
    surge = [*calm, {"episodes": 96, "unscored": 10}]
    assert _verdict(_run(calm), name).outcome == "pass"
    verdict = _verdict(_run(surge), name)
    assert verdict.outcome == "fail"
    assert "10 of 4,896 episodes; the worst was step 51 with 10 of 96" in verdict.evidence
    lossy = {"trained": _evaluation(80, 90, failed=10)}
    assert _verdict(_run(calm, evaluations=lossy), name).outcome == "fail"


_REPLAYED = {"from_cassette": True}


def _count(*trajectories: Trajectory) -> NonceCount:
    nonces = NonceCount()
    for entry in trajectories:
        nonces.add(entry)
    return nonces


def test_every_result_of_a_stamping_server_needs_its_nonce() -> None:
    name = "Every tool result came over MCP"
    stamped = trajectory("a", turns=[turn(0, "", calls=[call(0)], results=[result(0), result(1)])])
    forged = trajectory("b", turns=[turn(0, "", calls=[call(0)], results=[result(0, nonce=None)])])
    assert _verdict(_run([{}], nonces=_count(stamped, lost_call(1))), name).outcome == "pass"
    assert _verdict(_run([{}], nonces=_count(stamped, forged)), name).outcome == "fail"
    # What a cassette replayed proves nothing, and does not spoil what the others prove.
    again = turn(0, "", calls=[call(0)], results=[result(0, nonce=None).model_copy(update=_REPLAYED)])
    replayed = trajectory("c", turns=[again])
    verdict = _verdict(_run([{}], nonces=_count(stamped, replayed)), name)
    assert (verdict.outcome, "1 more replayed from a cassette" in verdict.evidence) == ("pass", True)
    assert _verdict(_run([{}], nonces=_count(forged, replayed, stamped)), name).outcome == "fail"
    verdict = _verdict(_run([{}], nonces=_count(replayed)), name)
    assert (verdict.outcome, "all 1 results were replayed" in verdict.evidence) == ("not measured", True)
    # A third-party server never stamps: that proves nothing either way, and is said.
    verdict = _verdict(_run([{}], nonces=_count(forged)), name)
    assert (verdict.outcome, "polygon" in verdict.evidence) == ("not measured", True)
