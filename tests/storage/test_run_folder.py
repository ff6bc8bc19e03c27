from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.errors import RunError, UserError
from mcpagent.storage.atomic import atomic_dir
from mcpagent.storage.run_folder import RunFolder


def new_run(folder: Path) -> RunFolder:
    return RunFolder.create(
        folder / "run", config_yaml="seed: 1\n", manifest={"seed": 1, "data_sha256": "ab"}
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_has_its_config_and_manifest(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert names(run.path) == ["checkpoints", "config.yaml", "eval", "logs", "manifest.json", "trajectories"]
    assert run.config_path.read_text() == "seed: 1\n"
    manifest = RunFolder.open(run.path).manifest
    assert (manifest["seed"], manifest["data_sha256"], manifest["schema_version"]) == (1, "ab", 1)
    assert manifest["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "pydantic" in manifest["versions"]
    if manifest["git"] is not None:
        assert len(manifest["git"]["commit"]) == 40


def test_a_folder_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    before = names(run.path)
    with pytest.raises(UserError, match="not empty") as caught:
        new_run(tmp_path)
    assert caught.value.remedy and "--resume" in caught.value.remedy
    assert names(run.path) == before
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", config_yaml="", manifest={})


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_metrics_are_on_disk_line_by_line(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert run.metrics() == []
    run.append_metrics({"step": 1, "reward": 0.5, "kl": None})
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 1, "reward": 0.5, "kl": null}\n'
    run.append_metrics({"step": 2, "reward": 0.75})
    assert [line["reward"] for line in run.metrics()] == [0.5, 0.75]


def test_a_value_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(RunError, match="step 3: loss is nan, kl is inf"):
        run.append_metrics({"step": 3, "loss": float("nan"), "kl": float("inf"), "reward": 1.0})
    with pytest.raises(ValueError, match="step"):
        run.append_metrics({"loss": 1.0})
    assert run.metrics() == []


def test_a_line_that_a_kill_cut_short_is_left_out_and_removed_on_resume(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.append_metrics({"step": 1})
    with (run.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 2, "rew')
    assert run.metrics() == [{"step": 1}]
    run.truncate_after(1)
    run.append_metrics({"step": 2})
    assert run.metrics() == [{"step": 1}, {"step": 2}]


def test_a_broken_line_in_the_middle_is_reported(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl:2: broken JSON"):
        run.metrics()


def test_resuming_drops_what_later_steps_wrote(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for step in (1, 2, 3, 1_000_000):
        run.append_metrics({"step": step})
        stem = run.trajectory_stem(step)
        for suffix in (".jsonl.zst", ".safetensors"):
            stem.with_name(stem.name + suffix).write_bytes(b"x")
        (run.evaluations / f"{stem.name}.json").write_text("{}")
    (run.evaluations / "before.json").write_text("{}")
    (run.checkpoints / ".tmp-1-step-000003").mkdir()
    run.truncate_after(2)
    assert run.metrics() == [{"step": 1}, {"step": 2}]
    kept = [f"step-00000{step}{suffix}" for step in (1, 2) for suffix in (".jsonl.zst", ".safetensors")]
    assert names(run.trajectories) == kept
    assert names(run.evaluations) == ["before.json", "step-000001.json", "step-000002.json"]
    assert names(run.checkpoints) == []


def test_the_latest_checkpoint_is_the_complete_one_of_the_highest_step(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert run.latest_checkpoint() is None
    for step in (9, 10, 1_000_000):
        with atomic_dir(run.checkpoint_dir(step)) as folder:
            (folder / "weights").write_text(str(step))
    with pytest.raises(KeyboardInterrupt), atomic_dir(run.checkpoint_dir(2_000_000)) as folder:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt
    latest = run.latest_checkpoint()
    assert latest == run.checkpoint_dir(1_000_000)
    assert latest is not None and (latest / "weights").read_text() == "1000000"
    assert names(run.checkpoints) == ["step-000009", "step-000010", "step-1000000"]


def test_a_killed_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with atomic_dir(run.checkpoint_dir(1)) as folder:
        (folder / "weights").write_text("1")
    program = (
        "import os, signal, sys; from pathlib import Path; from mcpagent.storage.atomic import atomic_dir\n"
        "with atomic_dir(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'weights').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run.checkpoint_dir(2))], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(run.checkpoints)) == 2  # the half one is there, under another name
    assert run.latest_checkpoint() == run.checkpoint_dir(1)
    run.truncate_after(1)
    assert names(run.checkpoints) == ["step-000001"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with atomic_dir(tmp_path / "c") as folder:
            (folder / f"{text}.txt").write_text(text)
    assert names(tmp_path) == ["c"] and names(tmp_path / "c") == ["new.txt"]
