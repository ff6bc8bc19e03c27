"""Small real runs and their certificates, for the tests of frauds and of honest runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpagent.config.loader import load_train_config
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.certificate import Certificate, figures, file_hashes, open_evidence, read_certificate
from mcpagent.run.certify import certify
from mcpagent.run.train import train
from mcpagent.storage.checkpoints import sha256_of
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from tests.run.world import dataset, short_run
from tests.run.world import samples as sample_tasks


@dataclass(frozen=True, kw_only=True)
class Honest:
    """A run, its certificate, and its three datasets."""

    run: Path
    folder: Path
    data: Path


def make_run(model: Path, folder: Path, *overrides: str, tasks: int = 3) -> Path:
    """Two steps that move the weights of `model` by chance; three held-out tasks."""
    chosen = sample_tasks(count=2 * tasks)
    data = folder / "data"
    dataset(data / "train.jsonl", chosen[:tasks])
    dataset(data / "validation.jsonl", chosen[:1])
    dataset(data / "heldout.jsonl", chosen[tasks:])
    settings = ("training.batch_size=1", "training.eval_samples=1", *overrides)
    return train(short_run(model, data / "train.jsonl", *settings), run_dir=folder / "run").run_dir


def make_certificate(run: Path, out: Path, *overrides: str, samples: int = 2, **options: Any) -> Certificate:
    config = load_train_config([run / "config.yaml"], ["seed=0", *overrides], for_training=False).config
    return certify(run, config, out=out, samples=samples, **options)


def reseal(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """What a forger does last: figures that follow from the changed evidence, `change`, and all hashes."""
    document = json.loads((folder / "certificate.json").read_text())
    document["figures"] = figures(open_evidence(folder, read_certificate(folder)))
    change(document)
    document["files"] = file_hashes(folder)
    (folder / "certificate.json").write_text(json.dumps(document))


def edit_episodes(folder: Path, side: str, edit: Callable[[list[Trajectory]], list[Trajectory]]) -> None:
    stem = folder / "episodes" / side
    write_trajectories(stem, edit(list(read_trajectories(stem))))


def terms_of(t: Trajectory, **values: float | None) -> Trajectory:
    terms = tuple(
        term.model_copy(update={"value": values.get(term.name, term.value)}) for term in t.reward_terms
    )
    return t.model_copy(update={"reward_terms": terms})


def edit_tasks(folder: Path, split: str, edit: Callable[[list[Task]], list[Task]]) -> None:
    """The tasks of a split, and the manifest that names their hash."""
    path = folder / "tasks" / f"{split}.jsonl"
    write_jsonl(path, edit(list(read_tasks(path))))
    name = {"train": "data", "heldout": "heldout"}[split]
    edit_json(
        folder / "run" / "manifest.json", lambda manifest: manifest[name].update(sha256=sha256_of(path))
    )


def edit_json(path: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def edit_lines(path: Path, edit: Callable[[list[Any]], list[Any]]) -> None:
    lines = edit([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
