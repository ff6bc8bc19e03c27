from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from mcpagent.errors import UserError
from mcpagent.evaluate.report.live import LiveServer
from mcpagent.storage.trajectories import write_trajectories
from tests.evaluate.report.browser import chromium
from tests.evaluate.run_folder import learned, step_row, write_run
from tests.running import BOUND_S

pytestmark = pytest.mark.system
get = partial(httpx.get, timeout=BOUND_S)  # the first state is long in coming on a busy machine


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", tasks=6)


@pytest.fixture
def server(run: Path) -> Iterator[LiveServer]:
    with LiveServer(run) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def _state(server: LiveServer, version: str = "") -> dict[str, Any]:
    return get(f"{server.url}state", params={"version": version}).json()


def _changed(server: LiveServer, version: str) -> dict[str, Any]:
    """The first state that is not `version`; looking rests as long as reading took nine times."""
    while (state := _state(server, version))["version"] == version:
        pass
    return state


def _train_a_step(run: Path, step: int) -> None:
    """As the trainer does: the episodes first, then the line of the step."""
    episodes = [learned(i, a, before=False) for i in range(3) for a in range(2)]
    write_trajectories(run / "trajectories" / f"step-{step:06d}", episodes)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step_row(step)) + "\n")


def test_the_page_knows_a_new_step_and_its_episodes(run: Path, server: LiveServer) -> None:
    first = _state(server)
    assert "step-000031" not in first["episodes"] and "Verdicts" in first["summary"]
    assert _state(server, first["version"]) == {"version": first["version"]}
    _train_a_step(run, 31)
    second = _changed(server, first["version"])
    rows = second["episodes"]["step-000031"]
    expected = [learned(i, a, before=False).is_success for i in range(3) for a in range(2)]
    assert [row["outcome"] == "success" for row in rows] == expected
    assert second["figures"]["reward"]["data"][0]["x"][-1] == 31
    page = get(server.url)
    assert "connect-src 'self'" in page.text and page.headers["cache-control"] == "no-store"


def test_reading_what_was_there_before_does_not_delay_the_first_new_step(run: Path) -> None:
    later = run.with_name("later")
    shutil.copytree(run, later)
    _train_a_step(later, 31)
    with LiveServer(run) as server:
        first = server.live.state()
        for path in [*later.glob("trajectories/step-000031*"), later / "metrics.jsonl"]:
            path.replace(run / path.relative_to(later))
        assert "step-000031" in server.live.state()["episodes"] and "step-000031" not in first["episodes"]


def test_an_episode_is_shown_with_its_calls_and_what_it_earned_in_its_group(
    run: Path, server: LiveServer
) -> None:
    state = _state(server)
    rows = state["episodes"]["eval_trained_sampled"]
    place = next(i for i, row in enumerate(rows) if abs(row["relative"]) > 0.01)
    own = [row["reward"] for row in rows if row["task"] == rows[place]["task"]]
    relative = rows[place]["reward"] - sum(own) / len(own)
    assert rows[place]["relative"] == pytest.approx(relative)
    shown = get(f"{server.url}episode", params={"file": "eval_trained_sampled", "place": place})
    text = re.sub(r"<[^>]+>", " ", shown.text).replace("−", "-")
    assert rows[place]["task"] in text and "polygon.get_aggs(ticker=" in text
    assert f"({relative:+.2f} against its group)" in text


@pytest.mark.parametrize(
    ("file", "place"),
    [("../config", "0"), ("eval_trained", "99999"), ("eval_trained", "-1"), ("eval_trained", "x"), ("", "")],
)
def test_only_episodes_of_the_run_are_given_out(server: LiveServer, file: str, place: str) -> None:
    _state(server)
    found = get(f"{server.url}episode", params={"file": file, "place": place})
    assert found.status_code == 404


def test_other_names_other_methods_and_other_pages_are_refused(server: LiveServer, run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert get(server.url, headers={"Host": "evil.example"}).status_code == 403
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert httpx.request(method, server.url, timeout=BOUND_S).status_code in (405, 501)
    assert get(f"{server.url}config.yaml").status_code == 404
    assert get(f"{server.url}state").status_code == 200
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before  # it only reads
    assert server.server_address[0] == "127.0.0.1"


def test_a_run_that_has_just_begun_and_a_broken_file_are_said_and_followed(tmp_path: Path) -> None:
    run = tmp_path / "new"
    run.mkdir()
    with LiveServer(run) as server:
        first = server.live.state()
        assert "wait for the first step" in first["summary"] or "no metrics.jsonl" in first["summary"]
        (run / "trajectories").mkdir()
        (run / "trajectories" / "step-000001.jsonl.zst").write_bytes(b"not compressed")
        _train_a_step(run, 2)
        while (state := server.live.state())["version"] == first["version"]:
            pass
        assert "step-000001" in state["summary"]
        (run / "trajectories" / "step-000001.jsonl.zst").unlink()
        while (healed := server.live.state())["version"] == state["version"]:
            pass
        assert healed["figures"] and list(healed["episodes"]) == ["step-000002"]


def test_a_port_that_is_taken_is_an_error_of_the_user(run: Path) -> None:
    with LiveServer(run) as first, pytest.raises(UserError, match=str(first.server_port)):
        LiveServer(run, port=first.server_port)


def test_the_command_prints_its_address_and_ends_with_ctrl_c(run: Path) -> None:
    command = [sys.executable, "-m", "mcpagent", "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert get(f"{url}state").json()["episodes"]
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=BOUND_S)
        finally:
            process.kill()
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.startswith("interrupted: the page is no longer served; begin again with: mcpagent view ")


@pytest.mark.slow
def test_a_browser_follows_a_run_and_keeps_what_is_open(
    tmp_path: Path, run: Path, server: LiveServer
) -> None:
    with chromium(tmp_path / "profile") as browser:
        browser.open(server.url)
        browser.wait("document.querySelectorAll('.js-plotly-plot').length === 11")
        browser.wait("document.querySelectorAll('#episode-list details').length > 3")
        browser.value("document.querySelector('#episode-list details').open = true")
        browser.wait("document.querySelector('#episode-list .turn')")
        asked = browser.value("document.querySelector('#episode-list .opened').textContent")
        _train_a_step(run, 31)
        browser.wait("document.getElementById('chart-reward').data[0].x.at(-1) === 31")
        assert browser.value("document.querySelector('#episode-list .opened').textContent") == asked
        browser.value("document.querySelector('#episode-list details').open = false")
        _train_a_step(run, 32)
        source = "[...document.querySelector('[data-filter=source]').options].map(option => option.value)"
        browser.wait(f"{source}.includes('step-000032')")
        assert browser.errors == []
        assert all(url.startswith(server.url) for url in browser.requests)
