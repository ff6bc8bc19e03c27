"""A reward of one's own in a whole run: what is refused before it, recorded in it, and regraded after it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.run.lifecycle import TrainOutcome, Watch
from mcpagent.run.train import plan_run, run_training
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from tests.run.world import dataset, samples, short_run

TERMS = '''
from mcpagent.core.tasks import Task
from mcpagent.reward.record import EpisodeRecord


def odd(task: Task, episode: EpisodeRecord) -> float:
    """A stand-in for judgement: whether the text has an odd number of characters."""
    return len(episode.final_answer or "") % 2 / 1.0


def of_broken(task: Task, episode: EpisodeRecord) -> float:
    raise LookupError("the dictionary is not here")
'''


@pytest.fixture
def terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder."""
    name = f"own_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    (tmp_path / f"{name}.py").write_text(TERMS)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)


def run(model: Path, folder: Path, *overrides: str, **options: Any) -> TrainOutcome:
    data = dataset(folder / "data" / "train.jsonl", samples(count=2))
    settings = ("rollout.group_size=4", "reward.control=none", *overrides)
    return run_training(short_run(model, data, *settings), run_dir=folder / "run", **options)


def test_a_run_trains_on_a_term_of_ones_own_and_its_records_name_it(
    tiny_checkpoint: Path, terms: str, tmp_path: Path
) -> None:
    chosen = [f"reward.terms=[{terms}:odd]", "reward.weights.odd=0.05", "health.enabled=false"]
    notes: list[str] = []
    outcome = run(tiny_checkpoint, tmp_path, *chosen, watch=Watch(note=notes.append))
    folder = RunFolder.open(outcome.run_dir)
    facts = folder.manifest["reward"]
    assert facts["terms"]["odd"] == {
        "function": f"{terms}:odd",
        "source_sha256": hashlib.sha256(TERMS.encode()).hexdigest(),
    }
    # 0.6 - 0.15 and 0.4 + 0.05: a success without the term is no better than the best failure with it.
    assert facts["every_success_above_every_failure"] is False
    assert any("may reward failing" in note for note in notes)
    for record in folder.metrics():
        played = list(read_trajectories(folder.trajectory_stem(record["step"]), with_tokens=False))
        values = [len(t.final_answer or "") % 2 for t in played]
        assert record["reward_odd"] == pytest.approx(sum(values) / len(values))
        for trajectory, value in zip(played, values, strict=True):
            plain = sum(t.weight * (t.value or 0.0) for t in trajectory.reward_terms if t.name != "odd")
            assert trajectory.reward == pytest.approx(plain + 0.05 * value)

    (tmp_path / f"{terms}.py").write_text(TERMS + "\n# changed\n")
    with pytest.raises(UserError, match="the file of the reward term odd is not what it was"):
        run(tiny_checkpoint, tmp_path, *chosen, "training.max_steps=3", resume=True)


def test_a_term_that_raises_leaves_episodes_unscored_and_the_run_says_so(
    tiny_checkpoint: Path, terms: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    watch = Watch(note=notes.append)
    chosen = [f"reward.terms=[{terms}:of_broken]", "reward.weights.of_broken=0.05"]
    outcome = run(tiny_checkpoint, tmp_path, *chosen, "training.max_steps=1", watch=watch)
    (record,) = RunFolder.open(outcome.run_dir).metrics()
    assert record["unscored"] == record["episodes"] == 8 and "reward_mean" not in record
    (note,) = [note for note in notes if "did not run" in note]
    assert "8 times in 8 episodes" in note and "LookupError: the dictionary is not here" in note


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reward.terms=[no_such_module:f]"], "No module named 'no_such_module'"),
        (["reward.terms=[{terms}:even]"], "has no attribute 'even'"),
        (["reward.terms=[os.path:join]"], "does not say what it returns"),
    ],
)
def test_an_unknown_term_is_refused_by_the_run_and_its_plan_before_anything_starts(
    overrides: list[str], words: str, tiny_checkpoint: Path, terms: str, tmp_path: Path
) -> None:
    chosen = [override.format(terms=terms) for override in overrides]
    with pytest.raises(UserError, match=words) as refused:
        run(tiny_checkpoint, tmp_path, *chosen)
    assert refused.value.exit_code == 2 and not (tmp_path / "run").exists()
    data = tmp_path / "data" / "train.jsonl"
    config = load_train_config(
        [], [f"model.name={tiny_checkpoint}", f"data.train={data}", "training.eval_every=0", *chosen]
    ).config
    with pytest.raises(UserError, match=words):
        plan_run(config)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("reward.weights.succes=1", "reward.weights names succes, but the terms that have a weight are"),
        ("reward.terms=[a:f,b:f]", "two functions of the name f"),
        ("reward.terms=[a.b]", "reward.terms"),
        ("reward.weights.success=nan", "reward.weights"),
    ],
)
def test_a_choice_that_names_nothing_is_an_error_of_the_configuration(override: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        load_train_config([], [override])
    assert words in str(refused.value)
