"""What every training run measures of itself: before the first step, and its best weights at the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.core.records import JsonObject
from mcpagent.evaluate.report.figures import charts
from mcpagent.evaluate.report.page import write_report
from mcpagent.evaluate.report.run_data import AFTER, BEFORE, read_run
from mcpagent.evaluate.report.verdicts import judge
from mcpagent.run.episodes import measured_file
from mcpagent.run.evaluate import evaluate_model
from mcpagent.run.export import export
from mcpagent.run.lifecycle import TrainOutcome, Watch
from mcpagent.run.self_evaluation import open_measured
from mcpagent.run.train import run_training
from mcpagent.storage.datasets import dataset_file
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from tests.run.world import dataset, samples, short_run, three_splits, with_id

pytestmark = pytest.mark.system


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return three_splits(tmp_path / "data")


def trained(model: Path | str, data: Path, folder: Path, *overrides: str, **options: Any) -> TrainOutcome:
    settings = ("training.batch_size=1", "training.eval_every=1", "training.eval_samples=1", *overrides)
    return run_training(short_run(model, data / "train.jsonl", *settings), run_dir=folder, **options)


def stored(run: Path, name: str) -> JsonObject:
    return json.loads((run / "eval" / f"{name}.json").read_text())


@pytest.mark.parametrize("method", ["grpo", "ppo", "sft"])
def test_every_run_measures_the_untrained_model_and_its_best_on_the_held_out_tasks(
    tiny_checkpoint: Path, data: Path, tmp_path: Path, method: str
) -> None:
    extra = {"grpo": [], "ppo": ["grpo.advantage=gae"], "sft": ["algorithm=sft"]}[method]
    notes: list[str] = []
    outcome = trained(tiny_checkpoint, data, tmp_path / "run", *extra, watch=Watch(note=notes.append))
    wanted = {task.id for task in samples(count=6)[4:6]}
    best = int(outcome.best_checkpoint.name.removeprefix("step-"))
    for name, step in (("untrained", 0), ("best", best)):
        found = stored(outcome.run_dir, name)
        assert set(found["tasks"]) == wanted and found["n_episodes"] == 2
        made = found["provenance"]
        assert (made["step"], made["split"], made["temperature"]) == (step, "held-out", 0.0)
        episodes = list(read_trajectories(outcome.run_dir / "trajectories" / f"eval_{name}.jsonl.zst"))
        assert {episode.task_id for episode in episodes} == wanted
    # The same episodes as when the two are evaluated from their folders.
    settings = ["seed=0", "rollout.temperature=0"]
    config = load_train_config([outcome.run_dir / "config.yaml"], settings, for_training=False).config
    for model, name in ((tiny_checkpoint, "untrained"), (outcome.best_checkpoint, "best")):
        out = tmp_path / f"{name}.json"
        again = evaluate_model(config, model=str(model), data=data / "heldout.jsonl", out=out)
        assert again.trajectories is not None
        ours = list(read_trajectories(outcome.run_dir / "trajectories" / f"eval_{name}.jsonl.zst"))
        theirs = list(read_trajectories(again.trajectories))
        assert [t.turns[0].completion.token_ids for t in ours] == [
            t.turns[0].completion.token_ids for t in theirs
        ]
    view = read_run(outcome.run_dir)
    # What `mcpagent eval` just kept of the best checkpoint is a row of its own.
    assert set(view.evaluations) == {BEFORE, AFTER, f"step-{best:06d}-heldout"}
    assert view.split == "held-out"
    verdicts = {verdict.name: verdict for verdict in judge(view)}
    for name in ("More than half of the tasks completed", "Better than before training"):
        assert verdicts[name].outcome != "not measured", verdicts[name].evidence
    assert {pair.after.task_id for pair in view.pairs} == wanted
    assert {"loss" if method == "sft" else "reward"} <= {chart.id for chart in charts(view)}
    page = write_report(outcome.run_dir).read_text(encoding="utf-8")
    assert "Before training" in page and "Held-out task success, greedy" in page
    assert any("evaluating the untrained model on 2 held-out tasks" in note for note in notes)


def test_without_held_out_tasks_it_is_the_validation_set_and_zero_turns_it_off(
    tiny_checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    (data / "heldout.jsonl").unlink()
    run = trained(tiny_checkpoint, data, tmp_path / "run", "training.eval_samples=2", "training.max_steps=1")
    made = stored(run.run_dir, "untrained")
    assert (made["provenance"]["split"], made["provenance"]["temperature"]) == ("validation", 1.0)
    assert made["n_episodes"] == 4
    off = trained(tiny_checkpoint, data, tmp_path / "off", "training.eval_samples=0", "training.max_steps=1")
    kept = sorted(path.name for path in (off.run_dir / "eval").iterdir())
    assert kept == ["step-000000.json", "step-000001.json"]
    (data / "validation.jsonl").unlink()
    notes: list[str] = []
    options = ["algorithm=sft", "training.max_steps=1"]
    trained(tiny_checkpoint, data, tmp_path / "sft", *options, watch=Watch(note=notes.append))
    assert any("no before and after" in note for note in notes)


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        # 40 steps of 4 x 8 are 1,280 episodes; two evaluations on 160 tasks are 320 of then 1,600: a fifth.
        (["training.max_steps=40", "training.batch_size=4", "rollout.group_size=8"], 160),
        (["training.max_steps=40", "training.batch_size=4", "training.eval_samples=4"], 40),
        (["algorithm=sft", "training.max_steps=20", "training.batch_size=8"], 20),
        (["training.max_steps=1", "training.batch_size=1"], 16),
        (["training.max_steps=40", "training.eval_tasks=5"], 5),
    ],
)
def test_evaluations_are_a_fifth_of_the_episodes_unless_it_is_said_how_many(
    tmp_path: Path, settings: list[str], tasks: int
) -> None:
    heldout = dataset(tmp_path / "heldout.jsonl", [with_id(samples(count=1)[0], str(i)) for i in range(400)])
    train = dataset(tmp_path / "train.jsonl", samples(count=1))
    config = load_train_config([], [f"data.train={train}", *settings]).config
    with open_measured(config, n_tasks=1, on_note=lambda _: None) as measured:
        assert measured is not None and measured.tasks.path == heldout
        assert measured.count == tasks


def test_of_two_files_of_held_out_tasks_a_run_takes_that_of_the_folder(
    tmp_path: Path,
) -> None:
    train = dataset(tmp_path / "train.jsonl", samples(count=1))
    for name in ("heldout.jsonl", "heldout.json"):
        dataset(tmp_path / name, samples(count=2))
    measured = measured_file(load_train_config([], [f"data.train={train}"]).config)
    assert measured == (dataset_file(tmp_path, "heldout"), "held-out")


def test_a_resumed_run_is_measured_on_the_tasks_that_it_began_with(
    tiny_checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    parts: list[tuple[str, int, int]] = []
    watch = Watch(on_part=lambda *part: parts.append(part))
    first = ["training.eval_tasks=1", "training.max_steps=1", "training.eval_every=0"]
    run = trained(tiny_checkpoint, data, tmp_path / "run", *first, watch=watch)
    # An evaluation of one task, two attempts, the update of their group, an evaluation.
    evaluation = [("evaluating", 0, 1), ("evaluating", 1, 1)]
    episodes = [("episodes", done, 2) for done in range(3)]
    assert parts == [*evaluation, *episodes, ("updating", 2, 2), *evaluation]
    config = load_train_config(
        [run.run_dir / "config.yaml"], ["training.max_steps=2", "training.eval_tasks=2"]
    ).config
    run_training(config, run_dir=run.run_dir, resume=True)
    assert stored(run.run_dir, "best")["tasks"].keys() == stored(run.run_dir, "untrained")["tasks"].keys()


def test_measuring_changes_no_weight_and_a_resumed_run_measures_what_is_missing(
    tiny_checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    plain = trained(tiny_checkpoint, data, tmp_path / "plain", "training.eval_samples=0")
    run = trained(tiny_checkpoint, data, tmp_path / "run", "training.max_steps=1")
    before = (run.run_dir / "eval" / "untrained.json").read_bytes()
    config = load_train_config([run.run_dir / "config.yaml"], ["training.max_steps=2"]).config
    resumed = run_training(config, run_dir=run.run_dir, resume=True)
    assert (run.run_dir / "eval" / "untrained.json").read_bytes() == before
    last = int(resumed.best_checkpoint.name.removeprefix("step-"))
    assert stored(run.run_dir, "best")["provenance"]["step"] == last
    for name in ("adapter_model.safetensors", "trainer_state/optimizer.safetensors"):
        ours, theirs = (RunFolder(o.run_dir).checkpoint_dir(2) / name for o in (resumed, plain))
        assert ours.read_bytes() == theirs.read_bytes()
    shutil.rmtree(run.run_dir / "eval")
    again = run_training(config, run_dir=run.run_dir, resume=True)
    assert stored(again.run_dir, "best")["provenance"]["step"] == last


def test_an_evaluation_is_kept_in_the_run_and_its_report_and_card_know_it(
    tiny_checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    run = trained(tiny_checkpoint, data, tmp_path / "run", "training.eval_samples=0", "training.max_steps=1")
    assert [v.outcome for v in judge(read_run(run.run_dir))[:2]] == ["not measured"] * 2
    config = load_train_config([run.run_dir / "config.yaml"], ["rollout.temperature=0"], for_training=False)
    for name in (f"{run.run_dir}@0", str(run.run_dir), f"{run.run_dir}@latest"):
        kept = evaluate_model(config.config, model=name, data=data / "heldout.jsonl").in_run
        assert kept is not None and kept.parent == (run.run_dir / "eval").resolve()
    names = {path.name for path in (run.run_dir / "eval").iterdir()}
    at_steps = {"step-000000.json", "step-000001.json"}
    assert names == at_steps | {"step-000000-heldout.json", "step-000001-heldout.json"}
    view = read_run(run.run_dir)
    assert set(view.evaluations) == {BEFORE, AFTER} and len(view.pairs) == 2
    assert all(v.outcome != "not measured" for v in judge(view)[:2])
    card = (export(run.run_dir, tmp_path / "model").out / "README.md").read_text()
    assert "No evaluation of these weights" not in card and "step-000001-heldout" in card
    # Other data of the same name does not take its place, and a resumed run forgets what later steps had.
    other = dataset(tmp_path / "other" / "heldout.jsonl", samples(count=1))
    beside = evaluate_model(config.config, model=str(run.run_dir), data=other).in_run
    assert beside is not None and beside.stem.startswith("step-000001-heldout-")
    RunFolder(run.run_dir).truncate_after(0)
    names = {path.name for path in (run.run_dir / "eval").iterdir()}
    assert names == {"step-000000.json", "step-000000-heldout.json"}
    assert not list((run.run_dir / "trajectories").glob("eval_step-000001*"))
