"""A judge behind a real service in rollouts, evaluations and training."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.errors import UserError
from mcpagent.run.evaluate import evaluate_model, regrade
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.trajectories import read_trajectories
from tests.judge.judging import judged, judging, played, with_judge
from tests.llm.service import API_KEY, Answer, service
from tests.run.world import config, dataset, samples

pytestmark = pytest.mark.system


def asking(folder: Path, *, count: int) -> Path:
    return dataset(folder / "tasks.jsonl", [judged(task) for task in samples(count=count)])


def test_a_judge_is_named_and_asked_only_once_and_regrading_goes_by_what_it_said(tmp_path: Path) -> None:
    data = asking(tmp_path, count=4)
    with judging() as running:
        chosen = with_judge(running, "api.price_in=1", "api.price_out=10")
        first = collect_rollouts(chosen, policy="gold", out=tmp_path / "a.jsonl", data=data)
        again = collect_rollouts(chosen, policy="gold", out=tmp_path / "b.jsonl", data=data)
        regraded = regrade(tmp_path / "a.jsonl", config("reward.weights.success=1.6"), data=data)
        assert len(running.log) == 4
        assert {r.authorization for r in running.received} == {f"Bearer {API_KEY}"}
    for outcome in (first, again):
        trajectories = list(read_trajectories(outcome.path))
        assert [t.reward for t in trajectories] == pytest.approx([1.0] * 4)
        assert [t.term("judge") for t in trajectories] == [1.0] * 4
        facts = outcome.result.provenance["judge"]
        assert (facts["model"], facts["temperature"], len(facts["prompt_sha256"])) == ("scripted", 0.0, 64)
        assert {t.judgement.identity for t in trajectories if t.judgement} == {facts["identity"]}
        # 4 requests of 100 tokens in and 20 out, at 300 millionths of a dollar each.
        assert facts["spend"]["cost_usd"] == pytest.approx(0.0012)
    assert regraded.result.metrics["mean_reward"].value == pytest.approx(2.0)
    kept = [*tmp_path.glob("*.jsonl"), *(tmp_path / "outputs" / "api").glob("*")]
    assert kept and all(API_KEY not in file.read_text() for file in kept)


def test_tasks_with_a_type_of_answer_ask_no_judge_and_need_none(tmp_path: Path) -> None:
    typed = samples(count=1)[0]
    spec = typed.reward_spec.model_copy(update={"method": "rule+judge"})
    data = dataset(tmp_path / "tasks.jsonl", [typed.model_copy(update={"reward_spec": spec})])
    with judging(lambda _: False) as running:
        for number, chosen in enumerate((config(), with_judge(running))):
            assert [t.reward for t in played(chosen, data, f"{number}.jsonl")] == pytest.approx([1.0])
        assert running.log == []


def test_a_judge_that_hangs_leaves_the_episode_unscored_and_ends_no_run(tmp_path: Path) -> None:
    with service(lambda received: Answer(hangs=True)) as running:
        (unscored,) = played(with_judge(running, "api.timeout_s=0.5"), asking(tmp_path, count=1))
    assert (unscored.reward, unscored.is_success, unscored.term("judge")) == (None, None, None)
    assert unscored.judgement is not None and "0.5 s" in (unscored.judgement.fault or "")


def test_an_evaluation_does_not_go_on_under_another_judge(tmp_path: Path) -> None:
    data, out = asking(tmp_path, count=2), tmp_path / "eval.json"
    with judging() as running:
        evaluate_model(with_judge(running), model="gold", data=data, out=out)
        before = out.read_bytes()
        with pytest.raises(UserError, match="was started with different settings: the judge"):
            evaluate_model(
                with_judge(running, "judge.model=another"), model="gold", data=data, out=out, resume=True
            )
        assert out.read_bytes() == before
        again = evaluate_model(with_judge(running), model="gold", data=data, out=out, resume=True)
        assert len(running.log) == 2 and again.result.n_episodes == 2


@pytest.mark.parametrize("method", ["judge", "rule+judge"])
def test_tasks_that_are_left_to_a_judge_are_refused_without_one(method: str, tmp_path: Path) -> None:
    task = judged(samples(count=1)[0], method)
    data = dataset(tmp_path / "tasks.jsonl", [task])
    with pytest.raises(UserError, match=f"{task.id}, is left to a judge") as refused:
        played(config(), data)
    assert "judge.model" in (refused.value.remedy or "")
    with judging(lambda data: False) as running:
        (scored,) = played(with_judge(running), data)
    assert scored.is_success is False
