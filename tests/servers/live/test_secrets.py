"""Planted keys are searched for in everything that a run writes, also where services repeat them."""

from __future__ import annotations

import base64
import gzip
import io
import logging
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
import zstandard

from mcpagent.core.tasks import Task
from mcpagent.core.tools import LEDGER_ENV
from mcpagent.servers.builtin import BuiltinServer, Upstream
from mcpagent.servers.fmp import FMP
from mcpagent.servers.live.client import read_settings
from mcpagent.storage.trajectories import read_trajectories
from tests.env.world import make_task
from tests.run.world import as_processes, dataset, with_id
from tests.running import mcpagent
from tests.servers.calls import text_of, with_client
from tests.servers.live.service import KEYS, ReplayService, Reply, shape
from tests.servers.live.test_conformance import CASES
from tests.servers.live.world import live_call


def forms(key: str) -> Iterator[bytes]:
    """The key as it is, as URLs and hexadecimal have it, and within base64 at any offset."""
    plain = key.encode()
    yield plain
    yield from {quote(key, safe="").encode(), quote_plus(key).encode(), quote(key).encode()}
    yield plain.hex().encode()
    for offset in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # The first and the last characters depend on the neighbours.
            yield encode(b"\0" * offset + plain)[4:-4]


def holds_a_key(data: bytes) -> bool:
    lowered = data.lower()
    return any(form in data or form.lower() in lowered for key in KEYS.values() for form in forms(key))


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def leaks(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and holds_a_key(unpacked(path))]


def tasks(servers: dict[str, str]) -> list[Task]:
    """A task for every tool of the servers: each makes the call that the shapes answer."""
    return [
        with_id(
            make_task(
                tool_sequence=[{"step": 1, "server": server, "tool": tool, "params": case[0]}],
                tools=[f"{server}.{tool}"],
            ),
            tool,
        )
        for server in servers
        for tool, case in CASES[server].items()
    ]


def run(*arguments: str | Path, folder: Path, service: ReplayService) -> subprocess.CompletedProcess[str]:
    """A command that sees the keys, runs in `folder` and keeps its temporary files there."""
    environment = {**service.environment, "TMPDIR": str(folder)}
    environment["MCPAGENT_CALL_LEDGER"] = str(folder / "ledger.jsonl")
    done = mcpagent(*arguments, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def repeating(key: str) -> list[Reply]:
    """Answers that say the key back, as services do in their errors and proxies in their pages."""
    encoded = base64.b64encode(key.encode()).decode()
    said = f"your key {key} is {quote(key, safe='')} and {encoded}"
    return [
        Reply(
            status=401, body={"error": said, "Error Message": said, "detail": {"error": said}, "ok": False}
        ),
        Reply(
            status=400, body={"error": said, "Error Message": said, "detail": {"error": said}, "ok": False}
        ),
        Reply(status=503, body={"message": said}, headers={"Retry-After": "0"}),
        Reply(status=429, body={"message": said, "ok": False, "error": said}, headers={"Retry-After": "99"}),
        Reply(raw=said.encode()),
        Reply(body={"ok": True, "results": said, "messages": said, "symbol": said}),
        Reply(body={"ok": False, "error": said, "needed": said}),
    ]


# What fails in every way that `repeating` knows, with the key in each answer; six tools ask for it.
UNDER_FIRE = {
    "/polygon/v2/last/trade/EXMP": KEYS["MASSIVE_API_KEY"],
    "/fmp/quote": KEYS["FMP_API_KEY"],
    "/tavily/search": KEYS["TAVILY_API_KEY"],
    "/slack/conversations.history": KEYS["SLACK_BOT_TOKEN"],
}
N_UNDER_FIRE = 6


def test_the_search_finds_a_key_in_every_form(tmp_path: Path) -> None:
    key = KEYS["FMP_API_KEY"]
    hidden = [
        f"https://x.example/?apikey={quote(key, safe='')}&a=1".encode(),
        base64.b64encode(f"Bearer {key} and more".encode()),
        base64.b64encode(f"?{key}!".encode()),
        key.upper().encode(),
    ]
    for number, data in enumerate(hidden):
        (tmp_path / f"{number}.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(data))
    (tmp_path / "clean.txt").write_text("planted")
    assert len(leaks(tmp_path)) == len(hidden)


@pytest.mark.parametrize("transport", ["memory", "stdio"])
def test_a_rollout_over_live_servers_writes_no_key(
    transport: str, replay: ReplayService, tmp_path: Path
) -> None:
    every = tasks(dict.fromkeys(CASES, ""))
    for path, key in UNDER_FIRE.items():
        replay.answer(path, *repeating(key))
    # A page that quotes the key.
    page = {
        "results": [{"url": "https://pages.example/1", "raw_content": f"it is {KEYS['TAVILY_API_KEY']}!"}]
    }
    replay.always("/tavily/extract", Reply(body=page))
    data = dataset(tmp_path / "tasks.jsonl", every)
    out = tmp_path / "gold.jsonl.zst"
    processes = as_processes(
        tmp_path / "mcp.json", {**replay.environment, LEDGER_ENV: ""}, "--upstream", "live"
    )
    in_process = ("tools.upstream=live", "tools.limited=false")
    servers = in_process if transport == "memory" else (f"tools.servers={processes}",)
    done = run(
        "rollout",
        *("--policy", "gold", "--data", data, "--out", out, "--samples", "2", "--json"),
        *(word for setting in servers for word in ("--set", setting)),
        *("--set", "tools.isolation={slack: shared}"),
        *("--set", f"tools.cassette={tmp_path / 'tape'}", "--set", "tools.cassette_mode=record"),
        folder=tmp_path,
        service=replay,
    )
    results = [result for trajectory in read_trajectories(out) for result in trajectory.tool_results]
    assert len({result.tool for result in results if not result.is_error}) >= len(every) - N_UNDER_FIRE
    assert sum(result.failure is not None and result.failure.is_infrastructure for result in results) >= 4
    assert any("it is [key]!" in result.content for result in results)
    assert (tmp_path / "ledger.jsonl").stat().st_size > 0
    taped = b"".join(unpacked(path) for path in (tmp_path / "tape").rglob("*.jsonl*"))
    assert len(taped.splitlines()) >= len(every) - N_UNDER_FIRE
    assert leaks(tmp_path) == []
    assert not holds_a_key((done.stdout + done.stderr).encode())


@pytest.mark.slow
def test_a_training_run_over_live_servers_writes_no_key(
    replay: ReplayService, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """Supervised training plays its gold trajectories through the servers; the run folder has every file."""
    replay.answer("/fmp/quote", *repeating(KEYS["FMP_API_KEY"]))
    data = dataset(tmp_path / "tasks.jsonl", tasks({"fmp": ""}))
    settings = (
        *("tools.upstream=live", "tools.limited=false", "device=cpu"),
        *(f"model.name={tiny_checkpoint}", "finetune.mode=full", "rollout.max_new_tokens=2"),
        *(f"data.train={data}", f"data.validation={data}", "output_dir=out"),
        *("training.batch_size=2", "training.max_steps=1", "training.eval_every=1"),
    )
    words = (word for setting in settings for word in ("--set", setting))
    done = run("train", "--algo", "sft", *words, folder=tmp_path, service=replay)
    written = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"config.yaml", "manifest.json", "metrics.jsonl"} <= written
    assert any(asked.path.startswith("/fmp/") for asked in replay.asked)
    assert leaks(tmp_path) == []
    assert not holds_a_key((done.stdout + done.stderr).encode())


@pytest.mark.parametrize("server", CASES)
def test_no_library_logs_a_key_however_much_it_logs(
    server: str, replay: ReplayService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for tool, (arguments, *_) in CASES[server].items():
        if tool == "tavily_qna_search":
            replay.answer("/tavily/search", Reply(body=shape("tavily/answer")))
        assert not live_call(server, tool, **arguments).is_error
    assert caplog.records  # asyncio's, and those of the MCP SDK
    for record in caplog.records:
        assert not holds_a_key(f"{record.getMessage()} {record.exc_text} {record.args!r}".encode())


def test_a_key_in_an_answer_is_hidden_in_text_and_structure_alike(replay: ReplayService) -> None:
    found = {"title": "t", "url": "https://u.example", "content": f"{KEYS['TAVILY_API_KEY']} it is"}
    replay.answer("/tavily/search", Reply(body={"results": [found]}))
    result = live_call("tavily", "tavily_search", query="pumps")
    assert result.structured_content == {"results": [{**found, "content": "[key] it is"}]}
    assert "[key] it is" in text_of(result)


def test_an_exception_that_nobody_foresaw_is_logged_without_the_key(
    replay: ReplayService, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def fmp_get_quote(self, symbol: str) -> None:
            raise RuntimeError(f"unexpected: apikey={KEYS['FMP_API_KEY']}")

    redact = read_settings("fmp", base_url="").redact
    server = BuiltinServer(FMP, upstream=Upstream(open=lambda: nullcontext(Broken()), redact=redact))
    result = with_client(server, lambda client: client.call_tool("fmp_get_quote", {"symbol": "EXMP"}))
    assert result.is_error and not holds_a_key(text_of(result).encode())
    (record,) = [record for record in caplog.records if "broke down" in record.getMessage()]
    assert "RuntimeError: unexpected: apikey=[key]" in record.getMessage()
    assert not any(holds_a_key(f"{r.getMessage()} {r.exc_text}".encode()) for r in caplog.records)
