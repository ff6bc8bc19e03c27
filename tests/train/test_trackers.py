"""Trackers: what reaches them, and that a bad one costs the run nothing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError
from mcpagent.train.trackers import (
    TrackedRun,
    Tracker,
    Trackers,
    TrackerThread,
    open_trackers,
    open_weave,
    safe_config,
    weave_project,
)
from tests.train.world import trajectory

BOUND_S = 20.0


class Recording:
    def __init__(self) -> None:
        self.seen: list[tuple[int, JsonObject, Sequence[JsonObject]]] = []
        self.closed = False

    def log(self, step: int, metrics: JsonObject, trajectories: Sequence[JsonObject]) -> None:
        self.seen.append((step, metrics, trajectories))

    def close(self) -> None:
        self.closed = True

    def opened(self) -> Tracker:
        return Tracker(self.log, self.close)


class Failing(Recording):
    def log(self, step: int, metrics: JsonObject, trajectories: Sequence[JsonObject]) -> None:
        raise ConnectionError(f"no network at step {step}\nand a long story")


class Hanging(Recording):
    """Hangs in `log` until the test is over."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def log(self, step: int, metrics: JsonObject, trajectories: Sequence[JsonObject]) -> None:
        self.released.wait(BOUND_S)


def started(
    open_tracker: Callable[[], Tracker], notes: list[str], *, deadline_s: float = 2 * BOUND_S
) -> TrackerThread:
    return TrackerThread("mine", open_tracker, note=notes.append, deadline_s=deadline_s)


def test_a_tracker_gets_every_step_in_order_and_is_closed() -> None:
    notes: list[str] = []
    recording = Recording()
    trackers = Trackers([TrackerThread("weave", recording.opened, note=notes.append)])
    episode = trajectory("a", 0, 1.0)
    for step in range(1, 51):
        trackers.log(step, {"step": step, "loss": 0.5, "phase": "copy"}, [episode])
    trackers.close()
    assert [step for step, _, _ in recording.seen] == list(range(1, 51))
    assert recording.seen[0][1] == {"step": 1, "loss": 0.5}, "numbers only"
    assert recording.seen[0][2][0]["task_id"] == "a"
    assert recording.closed
    assert notes == []


def test_a_tracker_that_raises_is_reported_once_and_stops_nothing() -> None:
    notes: list[str] = []
    bad, good = Failing(), Recording()
    trackers = Trackers([started(bad.opened, notes), TrackerThread("good", good.opened, note=notes.append)])
    for step in range(1, 6):
        trackers.log(step, {"loss": 0.5}, [])
    trackers.close()
    assert len(notes) == 1
    assert "mine is off from here on: ConnectionError: no network at step 1 (" in notes[0]
    assert len(good.seen) == 5


def test_a_tracker_that_cannot_be_opened_is_reported_once() -> None:
    def refuse() -> Tracker:
        sys.exit("not logged in")

    notes: list[str] = []
    thread = started(refuse, notes)
    thread.log(1, {}, [])
    thread.close()
    assert len(notes) == 1
    assert "not logged in" in notes[0]


def test_a_tracker_that_hangs_is_left_alone_when_it_is_far_behind() -> None:
    notes: list[str] = []
    hanging = Hanging()
    thread = started(hanging.opened, notes)
    for step in range(1000):  # returns at once each time, or this test would take its bound
        thread.log(step, {}, [])
    thread.close()
    hanging.released.set()
    assert len(notes) == 1
    assert "steps behind" in notes[0]


def test_a_tracker_that_hangs_does_not_keep_the_run_from_ending() -> None:
    notes: list[str] = []
    hanging = Hanging()
    thread = started(hanging.opened, notes, deadline_s=0.05)
    thread.log(1, {}, [])
    thread.close()
    hanging.released.set()
    assert len(notes) == 1
    assert "did not finish within 0.05 s" in notes[0]


def test_no_secret_reaches_a_tracker() -> None:
    secret = "sk-1234567890abcdef"
    SECRETS.add(secret, "FMP_API_KEY")
    config = {
        "vllm": {"servers": ["http://me:hunter2@gpu:8000/v1"]},
        "tools": {"servers": f"/etc/{secret}/mcp.json"},
    }
    safe = safe_config(config)
    assert safe["vllm"]["servers"] == ["http://gpu:8000/v1"]
    assert safe["tools"]["servers"] == "/etc/[FMP_API_KEY]/mcp.json"
    recording = Recording()
    trackers = Trackers([TrackerThread("weave", recording.opened, note=print)])
    leaky = trajectory("a", 0, 1.0).model_copy(update={"final_answer": f"the key is {secret}"})
    trackers.log(1, {}, [leaky])
    trackers.close()
    assert recording.seen[0][2][0]["final_answer"] == "the key is [FMP_API_KEY]"


def test_a_missing_package_is_one_error_with_its_install_command(tmp_path: Path) -> None:
    missing = [n for n in ("wandb", "weave", "tensorboard") if not importlib.util.find_spec(n)]
    if not missing:
        pytest.skip("all trackers are installed here")
    with pytest.raises(UserError, match=f"tracker {missing[0]} is not installed") as caught:
        open_trackers(missing, a_run(tmp_path), note=print)
    assert "pip install" in (caught.value.remedy or "")


def a_run(folder: Path) -> TrackedRun:
    return TrackedRun(
        project="tests", name="a run", folder=folder, config={"seed": 0, "lora": {"r": 4}}, is_online=False
    )


def test_weave_offline_is_off_with_one_note(tmp_path: Path) -> None:
    notes: list[str] = []
    thread = TrackerThread("weave", lambda: open_weave(a_run(tmp_path)), note=notes.append)
    thread.close()
    assert len(notes) == 1 and "weave is off from here on" in notes[0] and "trajectories/" in notes[0]
    assert list(tmp_path.iterdir()) == []


# In a process of its own: these packages warn, start threads and change the environment as they like.
REAL = """
import json, sys
from pathlib import Path
from mcpagent.train.trackers import TrackedRun, open_trackers
from tests.train.world import trajectory
backend, folder = sys.argv[1], Path(sys.argv[2])
notes = []
run = TrackedRun(project="tests", name="a run", folder=folder, config={"seed": 0, "lora": {"r": 4}},
                 is_online=False)
trackers = open_trackers([backend], run, note=notes.append, deadline_s=120)
for step in (1, 2, 3):
    trackers.log(step, {"step": step, "reward_mean": step / 8}, [trajectory("a", 0, 1.0)])
trackers.close()
print(json.dumps(notes))
"""


@pytest.mark.parametrize("backend", ["wandb", "tensorboard"])
def test_the_real_package_takes_a_run_offline(backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: python -m pip install 'mcpagent[track]'")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", REAL, backend, str(tmp_path / "logs")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
    written = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) > 100, written
    if backend == "tensorboard":
        assert _tensorboard_scalars(tmp_path / "logs" / "tensorboard") == [(1, 0.125), (2, 0.25), (3, 0.375)]


def _tensorboard_scalars(folder: Path) -> list[tuple[int, float]]:
    read = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload()\n"
        "print(json.dumps([(e.step, e.value) for e in events.Scalars('reward_mean')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", read, str(folder)], capture_output=True, check=True)
    return [tuple(pair) for pair in json.loads(done.stdout)]


def test_a_tracker_finds_its_key_in_the_file_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb and weave read their keys from the environment alone; a `.env` is not part of it."""
    (tmp_path / ".env").write_text("WANDB_API_KEY=from-the-file\nOTHER_SECRET=kept-out\n")
    code = (
        "import os\nfrom pathlib import Path\nfrom mcpagent.errors import UserError\n"
        "from mcpagent.train.trackers import TrackedRun, open_trackers\n"
        "run = TrackedRun(project='p', name='n', folder=Path('.'), config={}, is_online=False)\n"
        "try:\n    open_trackers(['wandb'], run, note=print, deadline_s=0.1)\nexcept UserError:\n    pass\n"
        "print(os.environ.get('WANDB_API_KEY'), os.environ.get('OTHER_SECRET'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1] == "from-the-file None"


@pytest.mark.parametrize(
    ("entity", "project", "name"),
    [(None, "traces", "traces"), ("us", "traces", "us/traces"), ("us", "them/traces", "them/traces")],
)
def test_weave_names_its_project_with_the_entity(
    entity: str | None, project: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_ENTITY", raising=False)
    if entity is not None:
        monkeypatch.setenv("WANDB_ENTITY", entity)
    run = TrackedRun(
        project=project,
        name="n",
        folder=tmp_path,
        config={},
        is_online=True,
    )
    assert weave_project(run) == name
