"""Certificates of honest runs hold, whatever the run was like; and what cannot be certified is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcpagent.cli.main import load_app
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.certificate import figures, open_evidence, read_certificate
from mcpagent.evaluate.report.run_data import read_run
from mcpagent.evaluate.report.tables import certificate_table
from mcpagent.run.certify_check import check
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.judge.judging import judged
from tests.run.certified import Honest, edit_json, make_certificate, make_run, terms_of
from tests.run.world import dataset, with_id

pytestmark = pytest.mark.system

# The run's settings, those of its certificate, its tasks in each split, and attempts.
HONEST: dict[str, tuple[list[str], list[str], int, int]] = {
    "as it comes": ([], [], 3, 2),
    "weights in full": (["finetune.mode=full"], [], 3, 2),
    "one greedy attempt": ([], ["rollout.temperature=0"], 3, 1),
    "another seed": (["seed=1"], [], 3, 2),
    "a third seed": (["seed=2"], [], 3, 2),
    "a fourth seed, in full": (["seed=3", "finetune.mode=full"], [], 3, 2),
    "one task": ([], [], 1, 2),
    "six tasks": ([], [], 6, 1),
    "five attempts": ([], [], 2, 5),
    "longer turns": (["rollout.max_new_tokens=24"], [], 3, 2),
    "short turns": (["rollout.max_new_tokens=2"], [], 3, 2),
    "hot": ([], ["rollout.temperature=2.0"], 3, 2),
    "cold": ([], ["rollout.temperature=0.5"], 3, 2),
    "few model turns": (["rollout.max_steps_per_episode=2"], [], 3, 2),
    "PPO": (["grpo.advantage=gae"], [], 3, 2),
    "DAPO in larger groups": (["grpo.loss=dapo", "rollout.group_size=4"], [], 3, 2),
    "one step": (["training.max_steps=1"], [], 3, 2),
    "five steps": (["training.max_steps=5", "training.keep_checkpoints=2"], [], 3, 2),
    "a reward of its own": (["reward.weights.success=0.8", "health.enabled=false"], [], 3, 2),
    "it evaluates itself": (["training.eval_every=1"], ["rollout.num_envs=2"], 3, 2),
    "a short context": ([], ["rollout.max_context_tokens=700"], 3, 2),
    "another model plays the user": ([], ["rollout.user_model=nobody"], 3, 2),
    "tools are searched for": (["tools.discovery=search"], [], 3, 2),
}
FAST = ("as it comes", "weights in full", "one greedy attempt")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in FAST else pytest.mark.slow) for what in HONEST]
)
def test_the_certificate_of_an_honest_run_holds(what: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    of_run, of_certificate, tasks, attempts = HONEST[what]
    run = make_run(tiny_checkpoint, tmp_path, *of_run, tasks=tasks)
    folder = tmp_path / "certificate"
    made = make_certificate(run, folder, *of_certificate, samples=attempts)
    assert list(check(folder, replay=100)) == []
    assert sorted(each.name for each in (folder / "weights").iterdir()) == ["baseline", "trained"]
    played = list(read_trajectories(folder / "episodes" / "trained"))
    assert len(played) == tasks * attempts and made.figures["tasks"]["counted"] == tasks


def test_tasks_that_training_has_are_left_out_and_the_certificate_says_so(
    honest: Honest, tmp_path: Path
) -> None:
    known = next(read_tasks(honest.data / "train.jsonl"))
    tasks = [*read_tasks(honest.data / "heldout.jsonl"), with_id(known, "new-id")]
    mixed = dataset(tmp_path / "mixed.jsonl", tasks)
    made = make_certificate(honest.run, tmp_path / "certificate", data=mixed)
    assert made.figures["tasks"] == {"held_out": 4, "excluded": 1, "counted": 3}
    assert made.excluded == {"new-id": "a training task asks the same"}
    assert made.run["heldout_is_the_runs"] is False
    assert list(check(tmp_path / "certificate")) == []


def test_the_gain_is_the_mean_over_tasks_of_the_difference_of_means(honest: Honest) -> None:
    opened = open_evidence(honest.folder, read_certificate(honest.folder))
    first, second, third = (task.id for task in opened.heldout)
    # Successes of two attempts, before and after: 0 of 2 and 1 of 2; 1 and 2; 2 and 1.
    successes = {first: ((0, 0), (1, 0)), second: ((1, 0), (1, 1)), third: ((1, 1), (0, 1))}

    def succeeding(side: int, name: str) -> list[Trajectory]:
        return [
            terms_of(t, success=float(successes[t.task_id][side][t.attempt])) for t in opened.episodes[name]
        ]

    changed = {"baseline": succeeding(0, "baseline"), "trained": succeeding(1, "trained")}
    derived = figures(dataclasses.replace(opened, episodes={**opened.episodes, **changed}))
    # (0.5 + 0.5 - 0.5) / 3; the first task succeeds in one of two attempts after training and never before.
    assert derived["gain"]["difference"]["value"] == pytest.approx(0.5 / 3)
    assert (derived["gain"]["wins"], derived["gain"]["losses"]) == (2, 1)
    assert derived["budget"]["baseline"]["metrics"]["pass@2"]["value"] == pytest.approx(2 / 3)
    assert derived["budget"]["trained"]["metrics"]["pass@2"]["value"] == 1.0


def test_the_command_makes_and_checks_and_says_by_its_exit_code_whether_it_holds(
    honest: Honest, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(honest.run, tmp_path / "run"))
    out = tmp_path / "certificate"
    made = CliRunner().invoke(load_app("certify"), [str(run), "--samples", "2", "--out", str(out)])
    assert made.exit_code == 0, made.output
    assert "b - a" in made.stdout and f"certify --check {out}" in made.stdout.replace("\n", " ")
    good = CliRunner().invoke(load_app("certify"), ["--check", str(out), "--replay", "2", "--json"])
    assert good.exit_code == 0 and json.loads(good.stdout)["holds"] is True
    shown = CliRunner().invoke(load_app("certify"), ["--check", str(out)])
    assert shown.exit_code == 0 and "b - a" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "the certificate holds"
    shutil.copytree(out, run / "certificate")
    (table,) = certificate_table(read_run(run).certified)
    assert [row[0] for row in table.rows] == ["baseline", "trained"]
    edit_json(run / "certificate" / "certificate.json", lambda document: document.update(schema_version=1))
    assert read_run(run).certified == {}  # of a version that had other figures
    edit_json(out / "certificate.json", lambda document: document["figures"]["gain"].update(wins=3))
    bad = CliRunner().invoke(load_app("certify"), ["--check", str(out)])
    assert bad.exit_code == 1 and "statements: figures.gain.wins is 3" in bad.stdout.replace("\n", " ")
    assert "made by mcpagent" in bad.stdout


def refused(*words: str) -> UserError:
    done = CliRunner().invoke(load_app("certify"), list(words))
    assert isinstance(done.exception, UserError), done.output
    assert done.exception.exit_code == 2 and done.exception.remedy
    return done.exception


def test_what_cannot_be_certified_is_refused_with_what_to_do_and_nothing_is_left(
    honest: Honest, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(honest.run, tmp_path / "run"))
    out = tmp_path / "certificate"
    to = ("--out", str(out))
    assert "no such checkpoint or run" in refused(str(tmp_path / "nowhere"), *to).message
    assert "neither a checkpoint" in refused(str(honest.data), *to).message
    assert "needs the run's records" in refused(str(tiny_checkpoint), *to).message
    assert "not a folder on this machine" in refused(str(run), "--baseline", "embedded", *to).message
    asking = [judged(task) for task in read_tasks(honest.data / "heldout.jsonl")]
    by_judge = dataset(tmp_path / "judged.jsonl", asking)
    assert "a model judges" in refused(str(run), "--data", str(by_judge), *to).message
    manifest = (run / "manifest.json").read_text()
    edit_json(run / "manifest.json", lambda document: document.update(catalog_hash="0" * 64))
    assert "trained with other tools" in refused(str(run), *to).message
    (run / "manifest.json").write_text(manifest)
    assert not out.exists()

    assert "is not a certificate" in refused("--check", str(run)).message
    folder = Path(shutil.copytree(honest.folder, out))
    records = folder / "episodes" / "trained.jsonl.zst"
    whole = records.read_bytes()
    records.write_bytes(whole[: len(whole) // 2])
    refused("--check", str(folder))
    records.unlink()
    assert "lacks episodes/trained" in refused("--check", str(folder)).message
    records.write_bytes(whole)
    weights = (folder / "weights" / "trained").rename(tmp_path / "weights")
    assert "lacks weights/trained" in refused("--check", str(folder)).message
    weights.rename(folder / "weights" / "trained")
    edit_json(folder / "certificate.json", lambda document: document.update(schema_version=3))
    assert "of another version of mcpagent: schema_version" in refused("--check", str(folder)).message
    (folder / "certificate.json").write_text("{")
    assert "is damaged" in refused("--check", str(folder)).message
