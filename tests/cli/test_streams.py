"""Standard output that is closed or full, disks that are full, and what else the system refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, Command, in_turn, mcpagent, refused

pytestmark = pytest.mark.system

SAMPLES = ROOT / "data" / "samples" / "train.jsonl"


def shell(command: str) -> tuple[int, str]:
    """The exit code of mcpagent in a shell's line, and its stderr."""
    line = command.replace("mcpagent", f"{sys.executable} -m mcpagent.cli.main", 1)
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def one_error(stderr: str) -> str:
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr
    assert stderr.count("error: ") == 1, stderr
    return stderr


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("> /dev/full", "No space left on device"),
        (">&-", "standard output is closed"),
        ("| true", "Broken pipe"),
        ("--json > /dev/full", "No space left on device"),
    ],
)
def test_a_result_that_cannot_be_printed_is_one_error(printed: str, reason: str) -> None:
    code, stderr = shell(f"mcpagent data stats {SAMPLES} {printed}")
    assert code == 1
    assert reason in one_error(stderr)


def test_notes_that_cannot_be_printed_do_not_end_the_work(tmp_path: Path) -> None:
    out = tmp_path / "gold.jsonl"
    words = ("rollout", "--policy", "gold", "--data", SAMPLES, "--set", "data.max_tasks=2", "--out", out)
    with (
        Path("/dev/full").open("w") as full,
        Command(*words, stdout=subprocess.DEVNULL, stderr=full) as process,
    ):
        assert process.wait() == 0
    assert len(out.read_text().splitlines()) == 2
    code, _ = shell(f"mcpagent {' '.join(map(str, words))} --overwrite 2>&-")
    assert code == 0
    assert len(out.read_text().splitlines()) == 2


def test_a_disk_that_takes_no_more_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    before = tmp_path / "made.jsonl"
    before.write_text("as it was")
    for command in (
        f"rollout --policy gold --data {SAMPLES} --out {tmp_path}/new.jsonl",
        f"rollout --policy gold --data {SAMPLES} --out {before} --overwrite",
        f"gen-data --train 40 --validation 4 --heldout 4 --out {tmp_path}/data",
    ):
        done = mcpagent(*command.split(), cwd=ROOT, limits={"RLIMIT_FSIZE": 4096})
        assert done.returncode == 1, done.stderr
        assert "larger than this process may write" in one_error(done.stderr)
    assert before.read_text() == "as it was"
    assert [path.name for path in tmp_path.rglob("*")] == ["made.jsonl"]


def test_a_file_where_runs_need_a_folder_is_one_error(tmp_path: Path, tiny_checkpoint: Path) -> None:
    (tmp_path / "outputs").write_text("as it was")
    command = (
        f"train --config configs/quickstart.yaml --set model.name={tiny_checkpoint} "
        f"--set data.train={SAMPLES} --set training.eval_every=0 --set output_dir={tmp_path}/outputs"
    )
    assert "outputs is a file, not a folder" in refused(mcpagent(*command.split(), cwd=ROOT))
    assert (tmp_path / "outputs").read_text() == "as it was"
    quick = refused(mcpagent("quickstart", "--out", tmp_path / "outputs" / "deep", cwd=ROOT))
    assert "outputs is a file, not a folder" in quick


PLACES = (
    "data split {s} --out {f}/x",
    "data dedupe {s} --out {f}/x.jsonl",
    "data dedupe {s} --out {f}/x/y.jsonl",
    "data samples {f}/x",
    "gen-data --train 2 --out {f}/x",
    "rollout --policy gold --data {s} --out {f}/x/r.jsonl",
    "export {m} --out {f}/x",
    "train --model {m} --data {s} --set training.eval_every=0 --set output_dir={f}/x",
)


def test_a_place_inside_a_file_is_the_users_error(tmp_path: Path, tiny_checkpoint: Path) -> None:
    file = tmp_path / "file"
    file.write_text("as it was")
    typed = [line.format(s=SAMPLES, f=file, m=tiny_checkpoint).split() for line in PLACES]
    for line, answer in zip(PLACES, in_turn(typed, cwd=ROOT), strict=True):
        assert (answer.code, answer.out) == (2, ""), (line, answer)
        assert "file" in one_error(answer.err), line
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "as it was")]
