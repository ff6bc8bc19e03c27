"""Rounds of batch files: questions out, answers in, and what is no answer."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpagent.errors import UserError
from tests.llm.service import Received, service
from tests.synth.llm.model import model
from tests.synth.llm.running import generate, invoke, written

SAMPLES = ("--n-samples", "14")
NOWHERE = "http://127.0.0.1:9/v1"  # nothing listens: a batch asks no one


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answered(batch: Path) -> list[str]:
    """The lines that a provider gives back for a batch, in another order."""
    answers: list[str] = []
    for line in lines(batch):
        said = model(Received(line["url"], line["custom_id"], 9, line["body"], "")).body
        response = {"status_code": 200, "request_id": "r", "body": said}
        answers.append(json.dumps({"custom_id": line["custom_id"], "response": response, "error": None}))
    return answers[::-1]


def test_rounds_of_files_end_in_the_tasks_that_the_endpoint_gives(tmp_path: Path) -> None:
    with service(model) as running:
        whole = generate(running.url, tmp_path / "whole", *SAMPLES)
    out, rounds, document, more = tmp_path / "out", 0, dict[str, Any](), tuple[str, ...]()
    while not rounds or "waiting" in document:
        rounds += 1
        batch, answers = tmp_path / f"round-{rounds}.jsonl", tmp_path / f"answers-{rounds}.jsonl"
        document = generate(NOWHERE, out, *SAMPLES, "--batch", str(batch), *more)
        if "waiting" in document:
            assert not written(out)
            assert document["waiting"] == len(lines(batch))
            answers.write_text("\n".join(answered(batch)))
            more = ("--answers", str(answers))
    # A draft and at most two repairs, each reviewed and solved.
    assert 3 < rounds <= 7
    assert written(out) == written(tmp_path / "whole")
    assert document["rejects"] == whole["rejects"]
    first = lines(tmp_path / "round-1.jsonl")
    assert [line["custom_id"].split(":")[-2:] for line in first] == [["draft", "0"]] * 14
    assert {line["method"] for line in first} == {"POST"}


def test_what_is_no_answer_is_named_by_its_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    out, batch, answers = tmp_path / "out", tmp_path / "one.jsonl", tmp_path / "in.jsonl"
    shown = generate(NOWHERE, out, "--n-samples", "4", "--batch", str(batch))["shown"]
    assert (shown["tools"], shown["servers"]) == (20, ["fmp", "polygon", "slack", "tavily"])
    good = answered(batch)
    key = json.loads(good[1])["custom_id"]
    foreign = json.dumps({**json.loads(good[0]), "custom_id": f"0123456789abcdef:{key}"})
    failed = json.dumps({"custom_id": key, "response": None, "error": {"code": "batch_expired"}})
    answers.write_text("\n".join([good[0], "{cut", foreign, failed, '"text"', good[2]]))
    two = tmp_path / "two.jsonl"
    options = ("--n-samples", "4", "--batch", str(two), "--answers", str(answers))
    done = invoke(NOWHERE, out, *options)
    assert done.exit_code == 0, done.exception
    told = [line for line in done.stderr.splitlines() if "in.jsonl:" in line]
    assert [line.partition("in.jsonl:")[2][0] for line in told] == ["2", "3", "4", "5"]
    assert "another batch" in told[1] and "batch_expired" in told[2]
    stages = [line["custom_id"].split(":")[-2] for line in lines(two)]
    assert stages.count("draft") == 2  # that which failed, and that which the file lacks
    assert stages.count("review") == stages.count("solve") == 2


def test_a_file_of_another_batch_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    out, batch = tmp_path / "out", tmp_path / "one.jsonl"
    generate(NOWHERE, out, "--n-samples", "2", "--batch", str(batch))
    other, two = tmp_path / "other.jsonl", tmp_path / "two.jsonl"
    other.write_text("\n".join(answered(batch)).replace('"custom_id": "', '"custom_id": "x'))
    done = invoke(NOWHERE, out, "--n-samples", "2", "--batch", str(two), "--answers", str(other))
    assert isinstance(done.exception, UserError)
    assert "none of its 2 lines" in str(done.exception)
    assert not two.exists() and not written(out)


def test_a_secret_of_the_settings_is_in_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["-m", "mcpagent.cli.main", "serve", "slack", "--limited"]
    server = {"command": sys.executable, "args": args, "env": {"SHOP_TOKEN": "tok-93aa71f0c2d4"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"slack": server}}))
    monkeypatch.setenv("DOMAINS", "logging in with tok-93aa71f0c2d4")
    batch = tmp_path / "one.jsonl"
    options = ("--servers", str(tmp_path / "mcp.json"))
    generate(NOWHERE, tmp_path / "out", "--n-samples", "1", "--batch", str(batch), *options)
    assert "logging in with [SHOP_TOKEN];" in batch.read_text()
    assert "tok-93aa71f0c2d4" not in batch.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--answers", "in.jsonl"), "--answers without --batch"),
        (("--answers", "in.jsonl", "--batch", "new.jsonl"), "no such file"),
        (("--batch", "old.jsonl"), "is there already"),
    ],
)
def test_batch_options_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.jsonl").write_text("{}")
    done = invoke(NOWHERE, tmp_path / "out", "--n-samples", "1", *options)
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
    assert Path("old.jsonl").read_text() == "{}" and not Path("new.jsonl").exists()
