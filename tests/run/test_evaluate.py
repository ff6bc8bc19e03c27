"""Evaluating checkpoints of every kind, and comparing evaluations."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcpagent.config.loader import dump_config
from mcpagent.console import Console
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Completion
from mcpagent.errors import UserError
from mcpagent.evaluate.summary import EvalResult
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import open_episodes
from mcpagent.run.evaluate import (
    EvalOutcome,
    compare_files,
    evaluate_model,
    read_evaluation,
    regrade,
)
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.checkpoints import choose_checkpoint, run_of, weights_sha256
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.setup import open_tools
from mcpagent.train.actor import ActorRecords, ActorSettings, LocalActor
from mcpagent.train.weight_sync import RolloutEngine
from tests.env.world import make_task
from tests.run.world import SHORT, TRAIN, config, dataset, fresh_adapters, samples, with_id


def evaluated(model: Path, *overrides: str, **options: object) -> EvalOutcome:
    arguments = {"data": TRAIN, **options}
    settings = (SHORT, "rollout.temperature=0", "data.max_tasks=3", *overrides)
    return evaluate_model(config(*settings), model=str(model), **arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def adapters(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_adapters(tiny_checkpoint, tmp_path_factory.mktemp("adapters") / "step-000001")


def tokens(outcome: EvalOutcome) -> list[tuple[int, ...]]:
    assert outcome.trajectories is not None
    return [
        turn.completion.token_ids
        for trajectory in read_trajectories(outcome.trajectories)
        for turn in trajectory.turns
    ]


def test_the_result_says_what_was_evaluated_and_how(tiny_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "eval" / "tiny.json"
    outcome = evaluated(tiny_checkpoint, "seed=7", out=out, samples=2)
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "tiny.json",
        "tiny.jsonl.zst",
        "tiny.safetensors",
    ]
    assert EvalResult.model_validate_json(out.read_text()) == outcome.result
    document = outcome.result.model_dump(mode="json")
    assert (document["n_tasks"], document["n_episodes"], document["unscored"]) == (3, 6, 0)
    assert set(document["tasks"]) == {task.id for task in samples(count=3)}
    made = document["provenance"]
    weights = hashlib.sha256((tiny_checkpoint / "model.safetensors").read_bytes()).hexdigest()
    listed = hashlib.sha256(f"{weights}  model.safetensors\n".encode()).hexdigest()
    template = (tiny_checkpoint / "chat_template.jinja").read_bytes()
    assert made["policy"]["weights_sha256"] == listed
    assert made["policy"]["chat_template_sha256"] == hashlib.sha256(template).hexdigest()
    assert made["dataset"]["sha256"] == hashlib.sha256(TRAIN.read_bytes()).hexdigest()
    assert made["catalog_hash"] == samples(count=1)[0].extra_info["catalog_hash"]
    assert (made["seed"], made["samples"], made["temperature"], made["max_new_tokens"]) == (7, 2, 0.0, 4)
    assert made["versions"]["mcpagent"]


def test_greedy_attempts_at_one_task_are_the_same(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = evaluated(tiny_checkpoint, out=tmp_path / "a.json", samples=2)
    greedy = tokens(outcome)
    assert greedy[0::2] == greedy[1::2]
    assert "all 2 attempts at a task are the same" in capsys.readouterr().err
    sampled = tokens(evaluated(tiny_checkpoint, "rollout.temperature=1", out=tmp_path / "b.json", samples=2))
    assert sampled[0::2] != sampled[1::2]


def test_adapters_are_evaluated_on_their_base(tiny_checkpoint: Path, adapters: Path, tmp_path: Path) -> None:
    outcome = evaluated(adapters, out=tmp_path / "adapters.json")
    assert tokens(outcome) == tokens(evaluated(tiny_checkpoint, out=tmp_path / "base.json"))
    policy = outcome.result.provenance["policy"]
    assert policy["weights_sha256"] == weights_sha256(adapters) != weights_sha256(tiny_checkpoint)
    assert policy["base"]["weights_sha256"] == weights_sha256(tiny_checkpoint)


def test_a_run_folder_means_its_latest_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", config_yaml=dump_config(config()), manifest={})
    with pytest.raises(UserError, match="nor a run folder with one") as refused:
        choose_checkpoint(run.path)
    assert refused.value.where == str(run.path)
    for step in (2, 10):
        shutil.copytree(tiny_checkpoint, run.checkpoint_dir(step))
    assert choose_checkpoint(run.path).path == run.checkpoint_dir(10)
    found = run_of(run.checkpoint_dir(2))
    assert found is not None and found.path == run.path.resolve()
    assert run_of(tiny_checkpoint) is None
    outcome = evaluated(run.path)
    assert outcome.result.provenance["policy"]["path"] == str(run.checkpoint_dir(10))


def test_an_evaluation_that_could_score_nothing_says_why(tiny_checkpoint: Path, tmp_path: Path) -> None:
    broken = make_task(
        success={"must_call_tool": "fmp"},
        setup={"fmp": [{"tool": "fmp_get_quote", "arguments": {"symbol": "NO-SUCH"}}]},
    )
    outcome = evaluated(tiny_checkpoint, data=dataset(tmp_path / "t.jsonl", [broken]))
    assert (outcome.result.unscored, outcome.result.n_episodes) == (1, 1)
    assert outcome.result.metrics["task_success"].value == 0.0
    assert outcome.result.metrics["task_success_scored"].value is None
    assert outcome.failure is not None and "set-up call fmp.fmp_get_quote failed" in outcome.failure


def played(policy: str, tasks: list[Task], folder: Path) -> Path:
    data = dataset(folder / f"{policy}-tasks.jsonl", tasks)
    return collect_rollouts(config(), policy=policy, data=data, out=folder / policy).path


def test_gold_is_better_than_silence_on_every_task(tmp_path: Path) -> None:
    tasks = samples(count=12)
    assert sum(task.truth.is_refusal for task in tasks) == 1  # there too: none is to be said
    silence, gold = played("empty", tasks, tmp_path), played("gold", tasks, tmp_path)
    result = compare_files(silence, gold)
    assert (result.wins, result.losses, result.ties, result.unpaired) == (12, 0, 0, 0)
    assert result.difference.value == 1.0
    # Two-sided sign flip over 12 equal differences: the two extremes of 2^12 patterns, each as far as what
    # was seen, so that the mid-p counts half of both.
    assert (result.exact_p, result.p_value) == (pytest.approx(2 / 2**12), pytest.approx(1 / 2**12))
    assert result.verdict == "b is better"
    assert compare_files(gold, silence).verdict == "a is better"


def test_a_comparison_says_what_else_differs(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    greedy, sampled = tmp_path / "greedy.json", tmp_path / "sampled.json"
    evaluated(tiny_checkpoint, out=greedy)
    evaluated(tiny_checkpoint, "rollout.temperature=1", "seed=3", out=sampled)
    capsys.readouterr()
    assert compare_files(greedy, greedy, console=Console()).ties == 3
    assert capsys.readouterr().err == ""
    compare_files(greedy, sampled, console=Console())
    err = " ".join(capsys.readouterr().err.split())
    assert "differ in the temperature too" in err


def test_a_limit_counts_as_a_difference_only_if_it_ended_an_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, turns in (("gold", 8), ("gold", 7), ("over_eager", 1)):
        settings = config(SHORT, f"rollout.max_steps_per_episode={turns}")
        evaluate_model(
            settings, model=name.replace("_", "-"), data=TRAIN, out=tmp_path / f"{name}{turns}.json"
        )
    capsys.readouterr()
    compare_files(tmp_path / "gold8.json", tmp_path / "gold7.json", console=Console())
    assert capsys.readouterr().err == ""
    compare_files(tmp_path / "gold8.json", tmp_path / "over_eager1.json", console=Console())
    assert "the limit of turns" in " ".join(capsys.readouterr().err.split())


def test_tasks_of_one_name_are_told_apart_by_the_dataset_not_the_order(tmp_path: Path) -> None:
    one, two = samples(count=2)
    forwards = played("gold", [one, two], tmp_path)
    data = dataset(tmp_path / "backwards.jsonl", [two, one])
    backwards = collect_rollouts(config(), policy="gold", data=data, out=tmp_path / "backwards").path
    assert read_evaluation(forwards) == read_evaluation(backwards)
    renamed = collect_rollouts(
        config(),
        policy="gold",
        data=dataset(tmp_path / "renamed.jsonl", [with_id(one, "other"), two]),
        out=tmp_path / "renamed",
    ).path
    assert compare_files(forwards, renamed).unpaired == 2


class Watched:
    """A policy that remembers how many turns it was asked for at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.sizes = policy, list[int]()
        self.version = 0

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        self.sizes.append(len(requests))
        return await self._policy.complete(requests)

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)


def test_an_evaluation_of_a_scripted_policy_is_played_in_barriers() -> None:
    settings = config("data.max_tasks=6")
    with open_episodes(
        settings, policy="gold", samples=1, console=Console(is_json=True), data=TRAIN
    ) as setup:
        watched = Watched(setup.ready.policy)
        replace(setup, ready=replace(setup.ready, policy=watched)).play(samples=1, on_done=lambda _: None)
    assert watched.sizes[0] == 6


@pytest.mark.parametrize("has_barriers", [True, False])
def test_the_validation_of_a_training_run_follows_it_as_the_training_does(
    has_barriers: bool, tmp_path: Path
) -> None:
    settings, tasks = config(), samples(count=6)
    watched = Watched(GoldPolicy(tasks))
    with open_tools(settings.tools) as tools:
        actor = LocalActor(
            RolloutEngine(policy=watched, push=lambda: None, close=lambda: None),
            canary=cast(Any, None),  # asked only when weights change
            renderer=cast(Any, None),  # a scripted policy reads text
            tools=tools,
            settings=ActorSettings(
                agent=agent_settings(settings, max_context=None),
                group_size=2,
                concurrency=6,
                deterministic=has_barriers,
                seed=0,
            ),
            records=ActorRecords(),
        )
        assert actor.evaluate(tasks, step=1).success == 1.0
        validation, watched.sizes = watched.sizes, []
        actor.collect(tasks[:3], step=1, on_episode=lambda _: None)
    assert validation[0] == watched.sizes[0] == (6 if has_barriers else 1)


def test_stored_episodes_are_graded_anew_by_changed_checks_and_by_another_reward(tmp_path: Path) -> None:
    task = with_id(next(read_tasks(TRAIN)), "the-task")
    data = dataset(tmp_path / "tasks.jsonl", [task])
    out = tmp_path / "first.json"
    first = evaluate_model(config(), model="gold", data=data, samples=2, out=out)
    assert first.result.metrics["task_success"].value == 1.0
    same = regrade(out, config())
    assert same.changed == [] and same.result.metrics == first.result.metrics
    assert regrade(out, config()).as_json() == same.as_json()
    # Successes without a penalty are worth 0.9 + 0.4 with another weight.
    dearer = regrade(out, config("reward.weights.success=0.9"))
    assert dearer.result.metrics["mean_reward"].value == pytest.approx(1.3)
    # The check asks for another answer now.
    document = task.model_dump(mode="json")
    document["reward_spec"]["ground_truth"]["final_answer"] = {"type": "string", "value": "no"}
    dataset(data, [Task.model_validate(document)])
    again = regrade(out, config(), out=tmp_path / "again.json")
    assert again.result.metrics["task_success"].value == 0.0
    assert sorted(again.changed) == ["the-task#0", "the-task#1"]
    assert read_evaluation(tmp_path / "again.json").metrics == again.result.metrics


def test_episodes_are_not_graded_by_the_tasks_of_others_or_without_any(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    data = dataset(tmp_path / "tasks.jsonl", samples(count=1))
    out = tmp_path / "first.json"
    evaluate_model(config(SHORT), model=str(tiny_checkpoint), data=data, out=out)
    other = dataset(tmp_path / "other.jsonl", [with_id(samples(count=1)[0], "other")])
    with pytest.raises(UserError, match="has no task"):
        regrade(out, config(), data=other)
    data.unlink()
    with pytest.raises(UserError, match="are gone"):
        regrade(out, config())
    records = out.with_suffix(".jsonl.zst")
    with pytest.raises(UserError, match="are not known"):
        regrade(records, config())
    records.write_bytes(records.read_bytes()[:-9])
    with pytest.raises(UserError):
        regrade(out, config(), data=other)
    records.unlink()
    with pytest.raises(UserError, match="its episodes are missing"):
        regrade(out, config(), data=other)
