"""Fifty SIGKILLs at random moments: what comes of the command in the end is what an unbroken one gives.

The commands are forks of one process that has imported everything, so that a kill costs no import and falls
into the work itself. A command that was killed is given again, to resume or to begin anew; one that ended
before its kill is compared with the unbroken one, and a new one is begun.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcpagent.storage.run_folder import RunFolder
from tests.running import ROOT, Command, Warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("MCPAGENT_TEST_KILLS", "50"))
SAMPLES = ROOT / "data" / "samples"
STEPS = 6


class Commands:
    """Forks of one warm process, in its tree; `kills` counts those that were sent."""

    def __init__(self, warm: Warm, folder: Path, tree: Path) -> None:
        self._warm, self._folder, self._tree, self.kills = warm, folder, tree, 0

    def start(self, words: Sequence[str]) -> Command:
        with (self._folder / "stdout").open("w") as out, (self._folder / "stderr").open("w") as err:
            return Command(
                *words, warm=self._warm, cwd=self._tree, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def stderr(self) -> str:
        return (self._folder / "stderr").read_text()

    def run(self, words: Sequence[str], *, kill_after_s: float | None = None) -> str | None:
        """The command's stdout; None where it was killed."""
        process = self.start(words)
        try:
            code = process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code == -signal.SIGKILL:
            self.kills += 1
            return None
        assert code == 0, self.stderr
        return (self._folder / "stdout").read_text()


@contextmanager
def warm_process(folder: Path, *, tree: Path = ROOT) -> Iterator[Commands]:
    """Of the package in `tree`."""
    warm = Warm(tree)
    try:
        yield Commands(warm, folder, tree)
    finally:
        warm.close()


def killed(
    warm: Commands, words: Callable[[str], Sequence[str]], *, is_whole: Callable[[str, str], None]
) -> None:
    """Kills the command `words(NAME)` at random moments of its life; `is_whole(NAME, stdout)` compares what
    came of each one that ended with the unbroken one, which is called `whole`."""
    started_s = time.monotonic()
    out = warm.run(words("whole"))
    took_s = time.monotonic() - started_s
    assert out is not None
    rng, number = random.Random(0), 0
    warm.kills = 0
    while True:
        name = f"killed-{number}"
        # Of a hundredth of its life to all of it; after the last kill it runs to its end.
        after_s = None if warm.kills >= KILLS else rng.uniform(0.01, 1.0) * took_s
        ended = warm.run(words(name), kill_after_s=after_s)
        if ended is not None:
            is_whole(name, ended)
            number += 1
            if after_s is None:
                return


def whole_files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but locks and what a killed process left unfinished under another name."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    return {
        name: path.read_bytes()
        for path, name in names.items()
        if ".tmp-" not in name and not name.endswith(".lock")
    }


def test_gen_data(tmp_path: Path) -> None:
    def words(name: str) -> list[str]:
        counts = ["--train", "30", "--validation", "4", "--heldout", "4"]
        return ["gen-data", *counts, "--overwrite", "--out", str(tmp_path / name)]

    def is_whole(name: str, _: str) -> None:
        assert whole_files(tmp_path / name) == whole_files(tmp_path / "whole") != {}

    with warm_process(tmp_path) as warm:
        killed(warm, words, is_whole=is_whole)


def test_convert(tmp_path: Path) -> None:
    tasks = [
        {
            "task_id": f"t{i}",
            "complexity": "simple",
            "conversation": [{"role": "user", "content": f"What is the price of stock {i}?"}],
            "solution": {
                "tool_sequence": [
                    {"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": f"S{i}"}}
                ]
            },
        }
        for i in range(1000)
    ]
    scenario = {"scenario": "s", "turns": 1, "limits": {"max_servers": 1, "max_tools": 1}, "tasks": tasks}
    (tmp_path / "spec.json").write_text(json.dumps({"dependent_dataset": [scenario]}))

    def words(name: str) -> list[str]:
        out = str(tmp_path / name / "train.jsonl")
        return ["convert", str(tmp_path / "spec.json"), "--overwrite", "--out", out]

    def is_whole(name: str, _: str) -> None:
        assert whole_files(tmp_path / name) == whole_files(tmp_path / "whole") != {}

    with warm_process(tmp_path) as warm:
        killed(warm, words, is_whole=is_whole)


class Training:
    """Runs of a few steps; `more` are settings of all of them."""

    def __init__(self, folder: Path, model: Path, **more: object) -> None:
        self._folder, self._model, self._more = folder, model, more

    def words(self, name: str) -> list[str]:
        """To begin the run, or to resume it."""
        settings = {
            "model.name": self._model,
            "data.train": SAMPLES / "train.jsonl",
            "training.max_steps": STEPS,
            "training.save_frequency": 1,
            "training.batch_size": 2,
            "training.eval_every": 0,
            "training.eval_samples": 0,
            "rollout.group_size": 2,
            "rollout.max_new_tokens": 4,
            "reward.control": "random",
            "output_dir": self._folder,
            "name": name,
            **self._more,
        }
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        resume = ["--resume"] if (self._folder / name / "config.yaml").is_file() else []
        return ["train", "--config", "configs/quickstart.yaml", *options, *resume, "--json"]

    def is_whole(self, name: str, _: str) -> None:
        """The run is what the unbroken one is: every step, and the weights to the byte."""
        runs = [RunFolder.open(self._folder / which) for which in (name, "whole")]
        steps = [[_same(record) for record in run.metrics()] for run in runs]
        assert steps[0] == steps[1]
        assert [record["step"] for record in steps[0]] == list(range(1, STEPS + 1))
        weights = [
            {path.name: path.read_bytes() for path in run.checkpoint_dir(STEPS).glob("*.safetensors")}
            for run in runs
        ]
        assert weights[0] == weights[1] != {}


def test_train(tmp_path: Path, tiny_checkpoint: Path) -> None:
    training = Training(tmp_path, tiny_checkpoint)
    with warm_process(tmp_path) as warm:
        killed(warm, training.words, is_whole=training.is_whole)


# What most of a step's time goes to.
LONG: dict[str, dict[str, object]] = {
    "episodes": {"rollout.max_new_tokens": 96},
    "updates": {"grpo.epochs_per_batch": 10},
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("part", LONG)
def test_a_preempted_run_ends_with_130_at_a_checkpoint_and_goes_on_as_if_unbroken(
    part: str, number: signal.Signals, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    training = Training(tmp_path, tiny_checkpoint, **LONG[part], **{"training.save_frequency": 100})
    run = RunFolder(tmp_path / "cut")
    with warm_process(tmp_path) as warm:
        assert warm.run(training.words("whole")) is not None
        process, pause = warm.start(training.words("cut")), threading.Event()
        while not ((run.path / "metrics.jsonl").is_file() and len(run.metrics()) >= 2):
            pause.wait(0.01)
        process.send_signal(number)
        assert process.wait() == 130, warm.stderr
        assert "Traceback" not in warm.stderr
        step = run.metrics()[-1]["step"]
        assert 2 <= step < STEPS, "it was to be cut in its middle"
        assert run.latest_checkpoint() == run.checkpoint_dir(step)
        assert f"stopped after step {step}, which is kept" in warm.stderr
        out = warm.run(training.words("cut"))
        assert out is not None
        training.is_whole("cut", out)


def _same(record: dict[str, Any]) -> dict[str, Any]:
    """What a step came to, without what it took: times, memory, and the latencies of the servers' calls."""
    times = ("tool_metrics", "rss_mb")
    return {k: v for k, v in record.items() if k not in times and not k.endswith(("_s", "_ms"))}


def test_eval(tmp_path: Path, tiny_checkpoint: Path) -> None:
    def words(name: str) -> list[str]:
        return [
            *("eval", "checkpoint", str(tiny_checkpoint), "--data", str(SAMPLES / "train.jsonl")),
            *("--samples", "2", "--set", "rollout.max_new_tokens=4", "--overwrite"),
            *("--out", str(tmp_path / name / "eval.json"), "--json"),
        ]

    def is_whole(name: str, _: str) -> None:
        results = [json.loads((tmp_path / which / "eval.json").read_text()) for which in (name, "whole")]
        assert results[0]["metrics"] == results[1]["metrics"]
        assert results[0]["tasks"] == results[1]["tasks"]
        assert whole_files(tmp_path / name).keys() == whole_files(tmp_path / "whole").keys()

    with warm_process(tmp_path) as warm:
        killed(warm, words, is_whole=is_whole)


# What makes the quickstart short: file of a copy of the project -> a text in it and what takes its place.
SHORT = {
    "configs/warm_start.yaml": {
        "max_steps: 630": "max_steps: 11",
        "save_frequency: 50": "save_frequency: 2",
        "batch_size: 32": "batch_size: 4",
        "curriculum_steps: 200": "curriculum_steps: 3",
        "warmup_steps: 20": "warmup_steps: 2",
    },
    "configs/quickstart.yaml": {
        "max_steps: 24": "max_steps: 3",
        "save_frequency: 4": "save_frequency: 1",
        "batch_size: 12": "batch_size: 2",
        "group_size: 8": "group_size: 2",
        "max_new_tokens: 48": "max_new_tokens: 6",
    },
    "mcpagent/demo/job.py": {
        '{"train": 1600, "validation": 64, "heldout": 240}': '{"train": 24, "validation": 4, "heldout": 6}'
    },
}


def test_quickstart(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("mcpagent", "configs", "templates", "data/samples"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in SHORT.items():
        text = (tree / name).read_text()
        for before, after in changes.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        (tree / name).write_text(text)
    documents: dict[str, Any] = {}

    def words(name: str) -> list[str]:
        return ["quickstart", "--out", str(tmp_path / name), "--seed", "0", "--json"]

    def is_whole(name: str, stdout: str) -> None:
        if not documents:  # a finished quickstart only says again what came of it
            unbroken = warm.run(words("whole"))
            assert unbroken is not None
            documents["whole"] = json.loads(unbroken)
        document, whole = json.loads(stdout), documents["whole"]
        for part in ("warm_start", "trained"):
            assert document[part]["metrics"] == whole[part]["metrics"]
        runs = [[_same(r) for r in RunFolder.open(tmp_path / n).metrics()] for n in (name, "whole")]
        assert runs[0] == runs[1] != []
        assert document["tool_calls"] == whole["tool_calls"]
        assert document["tool_calls"]["trajectories"] == document["tool_calls"]["servers"]

    with warm_process(tmp_path, tree=tree) as warm:
        killed(warm, words, is_whole=is_whole)
