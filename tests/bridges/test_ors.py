"""Episodes over HTTP: the same rewards as everywhere else, and clients that do what they should not."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from mcpagent.bridges.ors import ServeLimits
from mcpagent.bridges.serving import listening, serve, url_of
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.policy.scripted import ScriptedPolicy
from mcpagent.reward.terms import DEFAULT_REWARD, regraded
from mcpagent.storage.trajectories import read_trajectories
from tests.bridges.ors_client import Served, begin, call, events, open_session, play, served
from tests.bridges.scripts import SCRIPTS, script
from tests.run.world import as_processes
from tests.running import Command, mcpagent

SAMPLES = Path(__file__).resolve().parents[2] / "data/samples"


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    with served(SAMPLES) as server:
        yield server


async def play_all(server: Served, name: str, tasks: list[tuple[int, Task]]) -> list[dict]:
    policy = ScriptedPolicy(script(name, [task for _, task in tasks]))
    async with server.client() as client:
        return await asyncio.gather(
            *(play(client, policy, split="train", index=i, task_id=task.id) for i, task in tasks)
        )


def assert_graded_as_ever(server: Served, name: str, tasks: list[tuple[int, Task]]) -> list[bool | None]:
    """Play the tasks and compare each verdict with that of grading the recorded episode again."""
    outputs = asyncio.run(play_all(server, name, tasks))
    for (_, task), output in zip(tasks, outputs, strict=True):
        trajectory = server.graded[output["metadata"]["trajectory_id"]]
        again = regraded(task, trajectory, DEFAULT_REWARD)
        assert output["metadata"]["unscored"] == (again.reward is None)
        assert output["reward"] == (None if again.reward is None else pytest.approx(again.reward, abs=1e-9))
        assert output["metadata"]["terms"] == {term.name: term.value for term in again.reward_terms}
    return [output["metadata"]["success"] for output in outputs]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_reward_over_http_is_the_one_that_regrading_the_episode_gives(running: Served, name: str) -> None:
    successes = assert_graded_as_ever(running, name, list(enumerate(running.host.tasks("train"))))
    assert all(successes) == (name == "gold")
    assert any(successes) == (name != "silent")  # no call is right in some tasks


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("data", "least", "name"),
    [
        pytest.param("few_data", 60, "gold", marks=pytest.mark.system),
        *(pytest.param("bridge_data", 250, name, marks=pytest.mark.slow) for name in SCRIPTS),
    ],
)
def test_rewards_over_http_hold_for_every_class_of_task_and_if_servers_fail(
    request: pytest.FixtureRequest, data: str, least: int, name: str
) -> None:
    with served(request.getfixturevalue(data)) as server:
        every = enumerate(server.host.tasks("train"))
        # Tasks in which a user speaks again are not served, and do not count in the places.
        tasks = list(enumerate(task for _, task in every if not task.truth.user_turns))
        successes = assert_graded_as_ever(server, name, tasks)
    assert len(tasks) >= least and successes.count(None) >= least * 2 // 25
    classes = {task.extra_info["class"] for _, task in tasks}
    assert classes >= {"single", "sequential", "parallel", "irrelevance", "error_recovery"}
    scored = [success for success in successes if success is not None]
    assert all(scored) == (name == "gold")


@pytest.mark.registry
@pytest.mark.parametrize("name", SCRIPTS[:2])
def test_rewards_over_http_hold_for_a_server_that_others_wrote(time_data: Path, name: str) -> None:
    with served(time_data) as server:
        successes = assert_graded_as_ever(server, name, list(enumerate(server.host.tasks("train"))))
    assert successes.count(None) == 2 and successes.count(True) == (18 if name == "gold" else 0)


def test_an_episode_whose_servers_fail_is_unscored_and_never_zero(tmp_path: Path) -> None:
    record = json.loads((SAMPLES / "train.jsonl").read_text().splitlines()[0])
    set_up = {"slack": [{"tool": "send_slack_message", "arguments": {}}]}  # lacks what the tool needs
    record["reward_spec"]["ground_truth"]["setup"] = set_up
    (tmp_path / "train.jsonl").write_text(json.dumps(record))
    (tmp_path / "servers.yaml").write_text((SAMPLES / "servers.yaml").read_text())

    async def main(server: Served) -> dict:
        async with server.client() as client:
            return await call(client, await begin(client, "train", 0), "answer", {"text": "5"})

    with served(tmp_path) as server:
        output = asyncio.run(main(server))["output"]
    assert output["finished"] and output["reward"] is None and output["metadata"]["unscored"]
    assert "set-up call" in output["metadata"]["errors"][0]


def test_the_example_plays_an_episode_with_an_http_client_alone(running: Served) -> None:
    command = [sys.executable, SAMPLES.parents[1] / "examples/bridges/http_episode.py", running.url]
    done = subprocess.run([*command, "heldout", "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    called, _, verdict = done.stdout.splitlines()
    assert "polygon_get_market_status" in called and "open" in called
    assert verdict.startswith("reward 0.0 {'success': 0.0")


JSON = {"Content-Type": "application/json"}


def refusal(server: Served, method: str, path: str, **request: object) -> tuple[int, str]:
    answer = httpx.request(method, server.url + path, timeout=60, **request)
    return answer.status_code, answer.json()["detail"]


def test_what_is_not_there_is_said_with_what_there_is(running: Served) -> None:
    assert refusal(running, "POST", "/tasks", json={"split": "tain"}) == (
        400,
        "there is no split 'tain'; there are train, validation, heldout",
    )
    status, said = refusal(running, "POST", "/task", json={"split": "train", "index": 99})
    assert status == 400 and "tasks 0 to 11, not 99" in said
    status, said = refusal(running, "POST", "/tasks", json={"splt": "train"})
    assert status == 400 and "splt" in said
    status, said = refusal(running, "POST", "/tasks", content=b"{not json", headers=JSON)
    assert status == 400 and "JSON" in said
    status, said = refusal(running, "GET", "/prompt", headers={"X-Session-ID": "guessed"})
    assert status == 404 and "no such session" in said


NOT_A_TASK = [{"split": "train", "index": index} for index in (True, False, "1", 1.0, None, [1], -1, 12)] + [
    {"split": split, "index": 0} for split in (None, 1, True, ["train"], "Train")
]


@pytest.mark.parametrize("spec", [*NOT_A_TASK, {"index": 0}, {"split": "train"}])
async def test_only_a_name_and_a_whole_number_name_a_task(running: Served, spec: dict) -> None:
    async with running.client() as client:
        headers = {"X-Session-ID": await open_session(client)}
        for body in ({"task_spec": {"prompt": [], **spec}}, spec):
            answer = await client.post("/create", json=body, headers=headers)
            assert answer.status_code == 400 and answer.json()["detail"]
        good = {"task_spec": {"prompt": [], "split": "train", "index": 1}}  # of which nothing else was taken
        assert (await client.post("/create", json=good, headers=headers)).status_code == 200


PAGE = {"Origin": "http://evil.example"}


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"Host": "evil.example"}, 421, "evil.example"),
        ({"Host": "evil.example:8000"}, 421, "evil.example"),
        ({"Host": "127.0.0.1.evil.example:8000"}, 421, "evil.example"),
        ({"Host": "localhost.evil.example"}, 421, "evil.example"),
        ({"Host": "192.0.2.1"}, 421, "192.0.2.1"),
        (PAGE, 403, "evil.example"),
        ({"Origin": "https://127.0.0.1:8000"}, 403, "https"),
        ({"Origin": "null"}, 403, "null"),
        ({"Content-Type": "text/plain"}, 400, "text/plain"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400, "form"),
        ({"Content-Type": ""}, 400, "application/json"),
    ],
)
def test_a_web_page_reaches_neither_server_on_the_loopback(
    running: Served, builtin_url: str, headers: dict[str, str], status: int, said: str
) -> None:
    asked = {"headers": JSON | headers, "content": b'{"split": "train"}'}
    assert httpx.post(builtin_url, **asked).status_code == status  # `mcpagent serve --transport http`
    refused, why = refusal(running, "POST", "/tasks", **asked)
    assert refused == status and said in why


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_programs_and_pages_of_this_machine_reach_the_server(running: Served, name: str) -> None:
    for host in (name, f"{name}:8000"):
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert httpx.get(f"{running.url}/health", headers=headers).status_code == 200
        asked = httpx.post(f"{running.url}/tasks", headers=headers, json={"split": "train"})
        assert len(asked.json()["tasks"]) == 12


@pytest.fixture(scope="module")
def builtin_url() -> Iterator[str]:
    """The URL of a built-in server over HTTP."""
    process = Command(
        "serve", "tavily", "--transport", "http", "--port", "0", stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        yield process.stderr.readline().rpartition(" ")[2].strip()
    finally:
        process.terminate()
        process.communicate()


async def test_a_step_after_the_end_and_a_task_that_has_changed_are_refused(running: Served) -> None:
    async with running.client() as client:
        headers = await begin(client, "train", 0)
        end = await call(client, headers, "answer", {"text": "5"})
        after = await call(client, headers, "answer", {"text": "6"})
        other = {"X-Session-ID": await open_session(client)}
        spec = {"task_id": "of another dataset", "split": "train", "index": 0}
        end, after, changed = (
            end,
            after,
            await client.post("/create", json={"task_spec": spec}, headers=other),
        )
    assert end["output"]["finished"]
    assert after == {"ok": False, "error": after["error"], "reason": "episode_finished"}
    assert changed.status_code == 409 and "list its tasks again" in changed.json()["detail"]


async def test_a_client_that_lost_its_connection_takes_its_call_up_again(running: Served) -> None:
    async with running.client() as client:
        headers = await begin(client, "train", 0)
        tool = (await client.get("/task_tools", headers=headers)).json()["tools"][0]["name"]
        body = {"name": tool, "input": {}}
        first = events((await client.post("/call", json=body, headers=headers)).text)
        again = await client.post("/call", json={**body, "task_id": dict(first)["task_id"]}, headers=headers)
        first, again = dict(first), dict(events(again.text))
    assert first == again


def test_what_a_hostile_client_sends_is_refused_and_the_server_goes_on() -> None:
    limits = ServeLimits(sessions=3, body=1000, token="a secret")
    with served(SAMPLES, limits=limits) as server:
        bearer = {"Authorization": "Bearer a secret"}
        assert refusal(server, "GET", "/splits")[0] == 401
        assert refusal(server, "GET", "/splits", headers={"Authorization": "Bearer another"})[0] == 401
        large = {"headers": bearer | JSON, "content": b" " * 5000}
        assert refusal(server, "POST", "/tasks", **large) == (413, "the body is larger than 1000 bytes")
        answers = [httpx.post(f"{server.url}/create_session", headers=bearer) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 503, 503]
        assert "all 3 sessions are in use" in answers[3].json()["detail"]
        assert httpx.get(f"{server.url}/health", headers=bearer).json() == {"status": "ok", "sessions": 3}


@pytest.mark.system
@pytest.mark.parametrize("sessions", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_ten_megabytes_and_thousands_of_sessions_meet_the_limits_that_it_has_by_itself(sessions: int) -> None:
    def ask(count: int) -> list[tuple[int, bytes]]:
        """By one connection: a client that costs more than the server would be what is measured."""
        with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
            answers = []
            for _ in range(count):
                connection.request("POST", "/create_session")
                answer = connection.getresponse()
                answers.append((answer.status, answer.read()))
            return answers

    with served(SAMPLES) as server:
        body = {"content": b" " * 10_000_000, "headers": JSON}
        assert refusal(server, "POST", "/tasks", **body) == (413, "the body is larger than 1048576 bytes")
        with ThreadPoolExecutor(10) as pool:
            answers = [answer for asked in pool.map(ask, [sessions // 10] * 10) for answer in asked]
        assert Counter(status for status, _ in answers) == {200: 1100, 503: sessions - 1100}
        assert {b"start the server with more" in said for status, said in answers if status == 503} == {True}
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "sessions": 1100}


def test_the_session_of_a_client_that_vanished_ends() -> None:
    async def main(server: Served) -> None:
        async with server.client() as client:
            await begin(client, "train", 0)
            while (await client.get("/health")).json()["sessions"]:
                await asyncio.sleep(0.05)

    with served(SAMPLES, limits=ServeLimits(idle_s=0.2)) as server:
        asyncio.run(asyncio.wait_for(main(server), timeout=30))


_CLIENT = """
import sys, time
import httpx
url = sys.argv[1]
session = httpx.post(url + "/create_session").text.split("data: ")[1].split("\\n")[0]
headers = {"X-Session-ID": session}
httpx.post(url + "/create", json={"split": "train", "index": 0}, headers=headers).raise_for_status()
tools = httpx.get(url + "/task_tools", headers=headers, timeout=60).json()["tools"]
name = next(tool["name"] for tool in tools if "list" in tool["name"])
httpx.post(url + "/call", json={"name": name, "input": {}}, headers=headers, timeout=60).raise_for_status()
print("playing", flush=True)
time.sleep(600)
"""


@pytest.mark.system
def test_a_client_killed_in_mid_episode_leaves_no_server_process(tmp_path: Path) -> None:
    servers = as_processes(tmp_path / "mcp.json", {}, "--limited")
    settings = (f"tools.servers={servers}", "tools.per_server.slack.isolation=episode")
    here = psutil.Process()
    with served(SAMPLES, *settings, limits=ServeLimits(idle_s=2.0)) as server:
        before = set(here.children(recursive=True))
        client = subprocess.Popen([sys.executable, "-c", _CLIENT, server.url], stdout=subprocess.PIPE)
        assert client.stdout is not None and client.stdout.readline() == b"playing\n"
        during = set(here.children(recursive=True)) - before - {psutil.Process(client.pid)}
        assert during  # the episode has a slack of its own
        client.kill()
        client.communicate()
        psutil.wait_procs(during, timeout=30)
        assert not [process for process in during if process.is_running()]
        assert httpx.get(f"{server.url}/health").json()["sessions"] == 0


@pytest.mark.system
async def test_ctrl_c_ends_the_server_and_keeps_the_episodes_that_ended(tmp_path: Path) -> None:
    out = tmp_path / "served.jsonl"
    command = ("env", "serve", "--data", SAMPLES, "--port", "0", "--out", out)
    process = Command(*command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await begin(client, "train", 1)  # is under way when the server ends
        outcome = await call(client, await begin(client, "train", 0), "answer", {"text": "5"})
    ended = outcome["output"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (kept,) = read_trajectories(out)
    assert kept.id == ended["metadata"]["trajectory_id"] and kept.reward == ended["reward"]


@pytest.mark.system
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
async def test_a_kill_loses_no_episode_that_has_ended(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"served.{suffix}"
    command = ("env", "serve", "--data", SAMPLES, "--port", "0", "--out", out)
    process = Command(*command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    url, kept = process.stdout.readline().strip(), list[str]()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for number in range(3):
            outcome = await call(client, await begin(client, "train", number), "answer", {"text": "5"})
            kept = [trajectory.id for trajectory in read_trajectories(out)]
            assert len(kept) == number + 1 and kept[-1] == outcome["output"]["metadata"]["trajectory_id"]
        await begin(client, "train", 3)
    process.kill()
    process.communicate()
    assert [trajectory.id for trajectory in read_trajectories(out)] == kept


@pytest.mark.parametrize("name", ["served.jsonl", "served.jsonl.zst", "folder"])
def test_a_file_that_is_there_is_replaced_only_if_that_is_asked_for(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    there = out / "trajectories.jsonl.zst" if name == "folder" else out
    there.parent.mkdir(exist_ok=True)
    there.write_bytes(b"of an earlier run")
    serving = ("env", "serve", "--data", SAMPLES, "--port", "0", "--out", out)
    refused = mcpagent(*serving)
    assert refused.returncode == 2 and str(there) in refused.stderr and "--overwrite" in refused.stderr
    assert there.read_bytes() == b"of an earlier run"
    process = Command(*serving, "--overwrite", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("http")
    assert list(read_trajectories(there)) == []
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "0 ended episodes" in said and "--overwrite" not in said  # which would replace what it has kept


def test_a_connection_sends_at_once() -> None:
    """Without TCP_NODELAY the second part of each response waits 40 ms for the delayed ACK of the first."""
    with listening("127.0.0.1", 0) as sock, closing(socket.create_connection(sock.getsockname())):
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_every_address_of_the_loopback_answers_to_its_own_name(running: Served) -> None:
    with serve(running.server, running.host, address="127.0.0.2", port=0) as port:
        assert httpx.get(f"http://127.0.0.2:{port}/health").status_code == 200
        refused = httpx.get(f"http://127.0.0.2:{port}/health", headers={"Host": "evil.example"})
        assert refused.status_code == 421


def test_an_address_of_other_machines_needs_a_token(running: Served) -> None:
    with (
        pytest.raises(UserError, match="no token is asked for"),
        serve(running.server, running.host, address="0.0.0.0", port=0),
    ):
        pass


def test_an_ipv6_address_is_listened_on_and_stands_in_brackets() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listening("::1", 0) as sock:
        port = sock.getsockname()[1]
        assert httpx.URL(url_of("::1", port)).port == port
        with closing(socket.create_connection(("::1", port))):
            pass
        with pytest.raises(UserError, match=str(port)):
            listening("::1", port)
    assert url_of("127.0.0.1", 80) == "http://127.0.0.1:80"
