"""`eval judge-check`: how far a judge agrees with the rule, and the kappa that training asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import RunError, UserError
from mcpagent.judge.check import JudgeCheck, cohen_kappa
from mcpagent.run.judge_check import measure_judge
from mcpagent.run.lifecycle import TrainOutcome
from mcpagent.run.train import run_training
from mcpagent.storage.trajectories import write_trajectories
from tests.evaluate import records
from tests.judge.judging import judged, judging, played, with_judge
from tests.llm.service import Service, error, service
from tests.reward.records import QUOTE, make_task
from tests.run.world import config, dataset, samples, short_run, with_id

pytestmark = pytest.mark.system


def check_of(folder: Path, running: Service, *, count: int) -> JudgeCheck:
    """The judge measured on an episode that is right and one that is wrong of each of `count` tasks."""
    step = {**QUOTE, "server": "polygon", "tool": "get_aggs"}
    tasks, episodes = list[Task](), list[Trajectory]()
    for number in range(count):
        close = {"type": "number", "value": 100 + number}
        tasks.append(
            make_task(task_id=f"t{number}", tool_sequence=[step], final_answer=close, answer_line=True)
        )
        call, shown = records.call(0, **QUOTE["params"]), records.result(0, f'{{"close": {100 + number}}}')
        for attempt, close in enumerate((100 + number, 50)):
            turns = [records.turn(0, "", calls=[call], results=[shown]), records.turn(1, f"Answer: {close}")]
            said = f"Answer: {close}"
            episodes.append(records.trajectory(f"t{number}", attempt=attempt, turns=turns, final_answer=said))
    return measure_judge(
        with_judge(running),
        data=dataset(folder / "tasks.jsonl", tasks),
        episodes=write_trajectories(folder / "episodes.jsonl", episodes),
        out=folder / "check.json",
    )


def test_a_judge_is_measured_by_what_it_gets_wrong(tmp_path: Path) -> None:
    """It approves what is right, and the wrong answers about three of twelve things."""
    gullible = {'{"close": 100}', '{"close": 101}', '{"close": 102}'}
    with judging(lambda d: "50" not in d["final_answer"] or d["calls"][0]["result"] in gullible) as running:
        check = check_of(tmp_path, running, count=12)
    assert (check.n_episodes, check.n_tasks, check.unscored) == (24, 12, 0)
    assert check.agreement.value == pytest.approx(21 / 24)
    assert (check.false_approvals.value, check.false_refusals.value) == (0.25, 0.0)
    # By chance it agrees with half: (0.875 - 0.5) / 0.5.
    assert check.kappa.value == pytest.approx(0.75) and check.kappa.n == 12
    assert check.is_good_enough(0.75) and not check.is_good_enough(0.76)
    assert JudgeCheck.model_validate_json((tmp_path / "check.json").read_text()) == check
    assert check.spend["requests"] == 24


def test_kappa_by_hand_with_an_interval_over_tasks() -> None:
    # 20 both yes, 5 yes/no, 10 no/yes, 15 both no: observed 0.7, by chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5.
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    kappa = cohen_kappa([(f"t{number}", *pair) for number, pair in enumerate(pairs)])
    assert kappa.value == pytest.approx(0.4) and kappa.n == 50
    assert kappa.ci_low is not None and kappa.ci_high is not None
    # Fleiss, Cohen and Everitt (1969) give a standard error of 0.126 for this table.
    assert kappa.ci_low == pytest.approx(0.4 - 1.96 * 0.126, abs=0.05)
    assert kappa.ci_high == pytest.approx(0.4 + 1.96 * 0.126, abs=0.05)
    assert cohen_kappa([("t", True, True)] * 5).value is None
    assert cohen_kappa([]).value is None


def test_a_judge_that_never_answers_is_an_error_and_not_a_record(tmp_path: Path) -> None:
    with service(lambda received: error(503, "down")) as running, pytest.raises(RunError, match="503"):
        check_of(tmp_path, running, count=2)
    assert not (tmp_path / "check.json").exists()


def test_a_check_without_a_judge_or_without_failures_is_refused(tmp_path: Path) -> None:
    data = dataset(tmp_path / "tasks.jsonl", [judged(task) for task in samples(count=1)])
    with pytest.raises(UserError, match="no judge is named"):
        measure_judge(config(), data=data)
    with judging() as running, pytest.raises(UserError, match="0 successes and 0 failures"):
        measure_judge(with_judge(running), data=data)
    assert running.log == []


def test_training_takes_a_judge_that_is_good_enough_on_its_tasks(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    labelled = samples(count=3)
    data = dataset(tmp_path / "train.jsonl", [*labelled, with_id(judged(labelled[0]), "open")])
    other = dataset(tmp_path / "other.jsonl", labelled)
    gold = {(t.prompt[-1]["content"], t.final_answer) for t in played(config(), other)}

    def run(running: Service, *overrides: str, resume: bool = False) -> TrainOutcome:
        judge = ("judge.model=scripted", f"judge.base_url={running.url}")
        settings = ("training.max_steps=1", "reward.control=none", "health.enabled=false", *judge, *overrides)
        return run_training(
            short_run(tiny_checkpoint, data, *settings), run_dir=tmp_path / "run", resume=resume
        )

    def refusal(running: Service, *overrides: str) -> UserError:
        with pytest.raises(UserError) as refused:
            run(running, *overrides)
        assert not (tmp_path / "run").exists()
        return refused.value

    with judging() as running:
        assert "judge-check" in (refusal(running).remedy or "")
        bad = measure_judge(with_judge(running), data=data, out=tmp_path / "bad.json")
        # It approves every gold plan, and the failure that is made of each.
        assert (bad.n_episodes, bad.agreement.value, bad.kappa.value) == (6, 0.5, 0.0)
        assert "judge.min_kappa is 0.6" in refusal(running, "judge.check=bad.json").message
    with judging(lambda d: (d["request"][0], d["final_answer"]) in gold and d["calls"] != []) as running:
        measure_judge(with_judge(running), data=other, out=tmp_path / "other.json")
        assert "of other tasks" in refusal(running, "judge.check=other.json").message
        good = measure_judge(with_judge(running), data=data, out=tmp_path / "good.json")
        assert good.kappa.value == 1.0
        use = "judge.check=good.json"
        assert "other model" in refusal(running, use, "judge.model=another").message
        path = run(running, use).run_dir / "manifest.json"
        manifest = path.read_text()
        assert json.loads(manifest)["judge_check"]["kappa"]["value"] == 1.0
        path.write_text(manifest.replace(good.judge["identity"], "0" * 64))
        with pytest.raises(UserError, match="asks a judge otherwise"):
            run(running, use, resume=True)
