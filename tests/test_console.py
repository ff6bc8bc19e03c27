from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mcpagent.console import Block, Console, Facts, ProgressRate, Table, duration
from mcpagent.core.records import Metric
from mcpagent.errors import UserError


def test_stdout_holds_one_json_document_and_stderr_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(is_json=True)
    console.note("loading [a/b]")
    console.show_blocks([Table("Results", ["kind", "rate"], [["simple", 0.5]])])
    console.say("done")
    with console.progress("evaluating", total=2) as advance:
        advance()
        advance(1, note="n")
    metric = Metric(value=0.5, ci_low=None, ci_high=None, n=2)
    console.print_json({"metrics": {"é": metric}, "list": (metric,)})
    out, err = capsys.readouterr()
    expected = {"value": 0.5, "ci_low": None, "ci_high": None, "n": 2}
    assert json.loads(out) == {"metrics": {"é": expected}, "list": [expected]}
    assert "loading [a/b]" in err and "simple" in err and "evaluating: 2/2" in err and "done" in err


def test_without_json_the_result_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.show_blocks([Table("Results", ["kind", "rate"], [["[bold]simple", 0.5]])])
    console.say("next: mcpagent report [RUN]")
    out, err = capsys.readouterr()
    assert "[bold]simple" in out and "next: mcpagent report [RUN]" in out and err == ""


def test_a_result_is_shown_as_blocks_or_printed_as_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    error, shown = UserError("bad value"), list[str]()

    def blocks() -> Iterator[Block]:
        shown.append("made")
        yield Table("Results", ("kind", "rate"), [("simple", 0.5)])
        yield Facts([("written", "out.json"), ("kept", None), ("a longer name", "yes")])
        yield "the end"

    Console(is_json=True).print_blocks(error, blocks())
    assert json.loads(capsys.readouterr().out) == error.as_json()
    assert shown == [], "what --json does not show is not made"
    Console().print_blocks(error, blocks())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Results"
    assert lines[-3:] == ["written        out.json", "a longer name  yes", "the end"]


def test_an_error_shows_its_place_and_remedy_and_has_its_document(capsys: pytest.CaptureFixture[str]) -> None:
    Console(is_json=True).fail(UserError("bad [value]", where="a.yaml:3", remedy="mcpagent doctor"))
    out, err = capsys.readouterr()
    assert err == "error: a.yaml:3: bad [value]\n  mcpagent doctor\n"
    assert json.loads(out)["error"]["where"] == "a.yaml:3"


def test_a_failing_job_shows_no_last_progress_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), Console().progress("working") as advance:
        advance(1 // 0)
    assert capsys.readouterr().err == ""


def test_in_a_pipe_a_line_comes_each_interval_though_nothing_advances(
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen = ""
    with Console(line_interval_s=0.01).progress("Tasks", total=8) as advance:
        advance(2, note="train")  # an earlier process did these: they say nothing about the pace
        advance(3, note="train")
        while seen.count("\n") < 2:
            seen += capfd.readouterr().err
    for line in seen.splitlines()[1:]:
        assert re.fullmatch(r"Tasks: 5/8 after \d+ s, \d+ s left train|Tasks: 5/8 after \d+ s train", line)
    assert capfd.readouterr().err.splitlines()[-1].startswith("Tasks: 5/8 after")


def test_the_time_left_is_that_of_what_remains_at_the_pace_of_this_process() -> None:
    pace = ProgressRate(110)
    pace.add(10)  # resumed at step 10
    assert pace._first is not None
    began_s, _ = pace._first
    assert pace.left_s(began_s + 5) is None
    pace.add(20)
    # 20 in 40 s, 80 remain: 160 s.
    assert pace.left_s(began_s + 40) == pytest.approx(160)
    assert [duration(s) for s in (45, 160, 7500)] == ["45 s", "2 min 40 s", "2 h 5 min"]


@pytest.mark.parametrize(
    ("total", "shown"), [(None, r"4/\? 0:00:\d\d\s"), (8, r"4/8 0:00:\d\d (-:--:--|0:00:\d\d) left")]
)
def test_a_bar_says_what_is_left_only_where_the_whole_is_known(
    total: int | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal
    with Console().progress("Tasks", total=total) as advance:
        advance(4)
    err = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert re.search(shown, err)
    assert ("left" in err) is (total is not None)


def test_the_hub_that_does_not_answer_is_told_of_once() -> None:
    # As huggingface_hub logs two requests of six attempts each.
    script = (
        "import logging; from mcpagent.console import guard_process; guard_process()\n"
        "logging.basicConfig(format='%(message)s')\n"
        "log = logging.getLogger('huggingface_hub.utils._http')\n"
        "for wait in (1, 2, 4, 8, 8) * 2:\n"
        "    log.warning(\"'%s' thrown while requesting HEAD %s\", 'unreachable', 'https://hub/config.json')\n"
        "    log.warning('Retrying in %ss [Retry 1/5].', wait)\n"
        "log.warning('something else')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and "the model hub does not answer" in lines[0] and lines[1] == "something else"
