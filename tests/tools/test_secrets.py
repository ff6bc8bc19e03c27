"""Servers that say what they were given to keep: real processes, and every file that a run leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.checks.doctor import check_servers
from mcpagent.config.loader import dump_config, load_train_config, public_settings
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.errors import UserError
from mcpagent.evaluate.report.document import ReportDocument
from mcpagent.evaluate.report.tables import tools_table
from mcpagent.storage.run_folder import RunFolder
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, StdioServer, learn_secrets, load_servers
from tests.env.world import make_task
from tests.run.world import dataset
from tests.running import mcpagent
from tests.tools.servers import hostile

# Of every kind: tokens, passphrases, quotes and backslashes, other scripts, a database, a header, many lines.
BASIC = "Basic YW5uOnBhc3MtOS1wYXNz"  # ann:pass-9-pass
HELD = {
    "SHOP_TOKEN": "tok_live_9f8E7d6C5b4A",
    "PASSPHRASE_OF_X": "correct horse battery staple",
    "ODD": "q\"uo\\te's & <more> 1",
    "NÄME": "schlüssel-für-größe-7",
    "DATABASE": "postgres://shop_owner_7:hunter2-hunter2@db.example.com:5432/shop?sslkey=abcDEF123456",
    "WEBHOOK": "https://hooks.example.com/services/T00000000/B11111111/XXyyZZ112233445566778899",
    "AUTHORIZATION": "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s1gnature-s1gnature",
    "PEM": "-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n---",
    "SERVICE_ACCOUNT": json.dumps({"private_key": "pk-1234567890abcdef", "type": "service"}),
    "PIN_TOKEN": "4711",
}
# What must not be readable, whatever stands around it.
VALUES = [
    "tok_live_9f8E7d6C5b4A",
    "correct horse battery staple",
    "q\"uo\\te's & <more> 1",
    "schlüssel-für-größe-7",
    "shop_owner_7",
    "hunter2-hunter2",
    "abcDEF123456",
    "XXyyZZ112233445566778899",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s1gnature-s1gnature",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
    "pk-1234567890abcdef",
]


def _server(**env: str) -> StdioServer:
    return StdioServer(name="odd", command=sys.executable, args=(hostile.__file__,), env={**HELD, **env})


def _call(
    server: StdioServer, *, limit: int = 10**6, log_dir: Path | None = None
) -> tuple[ToolResult, list[str], int]:
    notes: list[str] = []

    async def run() -> tuple[ToolResult, int]:
        config = ToolsConfig(result_limit_chars=limit)
        pool = ToolPool([server], config, on_note=notes.append, log_dir=log_dir)
        async with pool, pool.session() as session:
            result = await session.call(ToolCall(id="1", tool="look", arguments={}))
            return result, sum(t.secrets for s in pool.metrics().servers for t in s.tools)

    result, met = asyncio.run(run())
    return result, notes, met


def _leaks(text: str) -> list[str]:
    """Values that a person or a program can still read out of the text."""
    squeezed = "".join(text.split())
    seen = (text, text.lower(), squeezed, squeezed.lower(), text[::-1], squeezed.replace(":", ""))
    found = []
    for value in VALUES:
        data = value.encode()
        forms = {value, value.lower(), "".join(value.split()), data.hex(), json.dumps(value)[1:-1]}
        forms |= {base64.b32encode(data).decode().rstrip("=")[:-1]}
        for before in range(3):  # the middle of its base64 in any place
            forms.add(base64.b64encode(b"-" * before + data).decode()[4 : len(data)])
            forms.add(base64.urlsafe_b64encode(b"-" * before + data).decode()[4 : len(data)])
        if any(form in text for form in forms for text in seen):
            found.append(value)
    return found


@pytest.mark.parametrize("form", hostile.FORMS)
def test_a_server_that_says_its_environment_gives_no_secret_away(form: str) -> None:
    result, notes, met = _call(_server(ANSWER=f"{{ENV:{form}}}"))
    assert _leaks(result.content) == []
    assert "[SHOP_TOKEN]" in result.content
    assert met == 1
    (note,) = [note for note in notes if "said the value of" in note]
    assert note.startswith("odd.look said") and "SHOP_TOKEN" in note
    assert "4711" not in result.content or form not in ("plain", "json", "repr")
    assert hostile.FORMS[form]  # what it says is really there without the filter
    assert _leaks("\n".join(HELD.values())) == VALUES


def test_results_errors_descriptions_and_meta_of_a_server_lose_them_alike() -> None:
    dump = json.dumps(HELD)
    structured, _, met = _call(_server(ANSWER="ok", STRUCTURED="1"))
    assert met == 2  # the structured result and its `_meta`
    assert _leaks(structured.model_dump_json()) == []
    refused, _, _ = _call(_server(REFUSAL="{ENV}"))
    assert refused.is_error and _leaks(refused.content) == []
    tools = [{"name": "look", "description": dump, "inputSchema": {"type": "object", "title": dump}}]

    async def listed() -> str:
        async with ToolPool([_server(TOOLS=json.dumps(tools))]) as pool:
            return pool.tools["look"].model_dump_json()

    assert _leaks(asyncio.run(listed())) == []


async def test_the_last_words_of_a_server_lose_them() -> None:
    with pytest.raises(UserError) as caught:
        async with ToolPool([_server(DIE="{ENV}")]):
            pass
    assert "[SHOP_TOKEN]" in str(caught.value) and _leaks(str(caught.value)) == []


def test_the_log_of_a_server_that_has_ended_holds_none(tmp_path: Path) -> None:
    _call(_server(STDERR="started\n{ENV}\n" + "x" * 100_000 + "\n{ENV}\nready\n"), log_dir=tmp_path)
    log = (tmp_path / "odd.log").read_text()
    assert log.startswith("started\n") and log.endswith("ready\n") and log.count("[SHOP_TOKEN]") == 2
    assert _leaks(log) == []


def test_a_secret_is_not_cut_in_half_by_the_limit_of_a_result() -> None:
    server = _server(ANSWER="ab " * 30 + HELD["SHOP_TOKEN"] * 2 + " yz" * 30)
    for limit in (100, 120, 140):
        result, _, _ = _call(server, limit=limit)
        assert "9f8E" not in result.content and "5b4A" not in result.content


ORDINARY = r"""
1 true production Production 8080 0.75 2024-05-01 127.0.0.1:9000 /srv/data/store.db ./data
/usr/local/bin:/usr/bin:/bin ~/work/x.json C:\Users\ann en_US.UTF-8 Europe/Berlin eu-west-1
db-1.example.com:5432 http://localhost:8080/mcp https://example.com/api/v2 application/json
DEBUG utf-8 12.4.1 disabled
"""


def test_what_configures_a_server_and_is_ordinary_text_stays() -> None:
    for value in ORDINARY.split():
        SECRETS.learn({"SETTING": value})
        text = f"It runs in {value}, as always: SETTING={value}."
        assert SECRETS.text(text) == text


def test_a_path_is_known_by_its_look_or_by_its_name() -> None:
    paths = {"PYTHONPATH": "src:lib/python", "DATA_DIR": "data/processed/v2"}
    SECRETS.learn(paths)
    assert SECRETS.value(paths) == paths
    SECRETS.learn({"SOME_FILE": "/etc/keys/aB3dE6gH9jK2mN5pQ8"})  # a path that ends in a key
    assert SECRETS.text("aB3dE6gH9jK2mN5pQ8") == "aB3dE6gH9jK2mN5pQ8"
    assert "[SOME_FILE]" in SECRETS.text("open /etc/keys/aB3dE6gH9jK2mN5pQ8")


def test_variables_headers_urls_and_arguments_of_a_file_are_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGION_NOTE", "value-of-a-variable-1")
    monkeypatch.setenv("OTHER", "value-of-a-variable-2")
    file = tmp_path / "mcp.json"
    (tmp_path / "more.env").write_text("FROM_FILE=value-of-a-file-3\n")
    file.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "a": {
                        "command": "x",
                        "args": ["--note=${REGION_NOTE}", "--api-key", "typed-key-4", "--verbose"],
                        "env": {"PLAIN": "literal-value-5", "B": "x-${OTHER}-y"},
                        "envFile": str(tmp_path / "more.env"),
                    },
                    "b": {
                        "url": "https://ann-b7:pass-word-6@example.com/mcp?key=query-value-7&page=2",
                        "headers": {
                            "X-Team": "header-value-8",
                            "Authorization": "Basic YW5uOnBhc3MtOS1wYXNz",
                        },
                    },
                }
            }
        )
    )
    load_servers(file)
    secrets = ["value-of-a-variable-1", "value-of-a-variable-2", "value-of-a-file-3", "typed-key-4"]
    secrets += ["literal-value-5", "ann-b7", "pass-word-6", "query-value-7", "header-value-8", "pass-9-pass"]
    for secret in secrets:
        assert secret not in SECRETS.text(f"it is {secret}."), secret
    assert (
        SECRETS.text("--verbose page=2 https://example.com/mcp") == "--verbose page=2 https://example.com/mcp"
    )


def test_servers_that_a_program_builds_teach_theirs() -> None:
    learn_secrets(
        [HttpServer(name="w", url="http://h/mcp?token=abc-123-def", headers={"X-Key": "k-1-k-2-k"})]
    )
    assert SECRETS.text("abc-123-def k-1-k-2-k") == "[w.token] [X-Key]"


def test_doctor_names_the_variable_in_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands around it, and also where its value is part of a longer secret, such as a path of a URL
    or the password in it: by the variable that the file has there, as a shell takes it."""
    key, word = "aB3dE6gH9jK2mN5pQ8", 'pa"ss$word`1'
    monkeypatch.setenv("SHOP_TOKEN", key)
    monkeypatch.setenv("ODD_WORD", word)
    monkeypatch.delenv("NOT_SET", raising=False)
    written = [
        "--token=${SHOP_TOKEN}",
        "https://example.com/hooks/x-${SHOP_TOKEN}-y/${env:SHOP_TOKEN}",
        "https://ann:${ODD_WORD}@example.com/${NOT_SET:-some/path}?key=${SHOP_TOKEN}&page=2",
        'a$b \\ "c" `d` ${ODD_WORD}',
        "${userHome}/data",
        "plain word",
        "$HOME",
        "--api-key",
        "typed-key-4",
    ]
    shown = tmp_path / "shown.json"
    program = (
        "import sys, json, pathlib; pathlib.Path(sys.argv[1]).write_text(json.dumps(sys.argv[2:])); 1 / 0"
    )
    server = {"command": sys.executable, "args": ["-c", program, str(shown), *written]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"shop": server}}))
    check = check_servers(file).checks[-1]
    assert check.status == "fail" and check.remedy is not None
    given = json.loads(shown.read_text())
    assert key not in check.model_dump_json() and json.dumps(word)[1:-1] not in check.remedy
    assert '"--token=${SHOP_TOKEN}"' in check.remedy and "'plain word'" in check.remedy
    assert "https://ann:${ODD_WORD}@" in check.remedy and "typed-key-4" not in check.remedy
    subprocess.run(check.remedy, shell=True, capture_output=True, timeout=60)
    assert json.loads(shown.read_text()) == [*given[:-1], "[api-key]"]  # what has no variable is only named


def test_no_file_of_a_rollout_with_a_cassette_holds_a_secret(tmp_path: Path) -> None:
    """Trajectories, sidecars, cassette, logs, metrics, and all that is printed."""
    file, data, out = tmp_path / "mcp.json", tmp_path / "tasks.jsonl", tmp_path / "out"
    env = {**HELD, "ANSWER": "{ENV:plain}", "STRUCTURED": "1", "STDERR": "{ENV}"}
    server = {"command": sys.executable, "args": [hostile.__file__], "env": env}
    file.write_text(json.dumps({"mcpServers": {"odd": server}}))
    step = {"step": 1, "server": "odd", "tool": "look", "params": {}}
    dataset(data, [make_task(tool_sequence=[step], tools=["odd.look"])])
    command = ["rollout", "--policy", "gold", "--data", data, "--out", out / "t.jsonl", "--servers", file]
    taping = ("--set", f"tools.cassette={tmp_path / 'tape'}", "--set", "tools.cassette_mode=record")
    done = mcpagent(*command, *taping, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "odd.look said the value of" in done.stderr
    (tool,) = json.loads(done.stdout)["tool_metrics"]["servers"][0]["tools"]
    assert tool["secrets"] > 0
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in (file, data)]
    assert any(path.parent.name == "tape" for path in written) and out / "t.jsonl" in written
    assert "[SHOP_TOKEN]" in (out / "t.jsonl").read_text()
    for text in [path.read_text(errors="replace") for path in written] + [done.stdout, done.stderr]:
        assert _leaks(text) == []


async def test_the_log_of_a_running_server_holds_none_however_it_is_written(tmp_path: Path) -> None:
    """Within one write, over several, in a line without an end; while the server runs, and afterwards."""
    said = f"a {HELD['SHOP_TOKEN']} b\n" + "x" * 70_000 + HELD["SHOP_TOKEN"] + " " + HELD["PASSPHRASE_OF_X"]
    program = (
        "import os, sys, time, runpy\n"
        "said = sys.argv[1].encode()\n"
        "for start in range(0, len(said), 1 if len(said) < 200 else 4099):\n"
        "    os.write(2, said[start:start + (1 if len(said) < 200 else 4099)])\n"
        "sys.argv = ['x']\n"
        f"runpy.run_path({hostile.__file__!r}, run_name='__main__')\n"
    )

    for text in (said, f"a {HELD['SHOP_TOKEN']} b\nc {HELD['SHOP_TOKEN']}"):
        (tmp_path / "odd.log").unlink(missing_ok=True)
        server = StdioServer(
            name="odd", command=sys.executable, args=("-c", program, text), env={**HELD, "ANSWER": "ok"}
        )
        async with ToolPool([server], log_dir=tmp_path) as pool, pool.session() as session:
            await session.call(ToolCall(id="1", tool="look", arguments={}))
            meanwhile = (tmp_path / "odd.log").read_text()
        meanwhile, after = meanwhile, (tmp_path / "odd.log").read_text()
        assert meanwhile.startswith("a [SHOP_TOKEN] b\n") and _leaks(meanwhile) == []
        assert after.count("[SHOP_TOKEN]") == 2 and _leaks(after) == []


def test_urls_of_settings_are_secrets_and_the_settings_of_a_run_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the value of a secret is a folder, a model or a word of the settings."""
    monkeypatch.setenv("STORE_TOKEN", "dr_grpo")
    monkeypatch.setenv("ODD_KEY", "projects")
    monkeypatch.setenv("MODEL_KEY", "someone/model-7b")
    file = tmp_path / "a.yaml"
    url = "https://ann-b7:pass-word-6@[::1]:8000/v1?key=query-value-7&page=2"
    file.write_text(
        f"name: projects-run\nmodel: {{name: someone/model-7b}}\n"
        f"data: {{train: /srv/projects/train.jsonl}}\noutput_dir: /srv/projects/out\n"
        f"api: {{base_url: '{url}'}}\ngrpo: {{loss: dr_grpo}}\n"
        "rollout: {backend: vllm}\nvllm: {servers: ['http://bob-c8:other-word-9@host:8000/v1']}\n"
    )
    config = load_train_config([file]).config
    for secret in ("ann-b7", "pass-word-6", "query-value-7", "bob-c8", "other-word-9"):
        assert secret not in SECRETS.text(f"it is {secret}."), secret
    run = RunFolder.create(tmp_path / "run", config_yaml=dump_config(config), manifest={})
    text = run.config_path.read_text()
    for secret in ("ann-b7", "pass-word-6", "query-value-7", "bob-c8", "other-word-9"):
        assert secret not in text
    again = load_train_config([run.config_path])
    assert again.config.data.train == config.data.train == "/srv/projects/train.jsonl"
    assert again.config.model == config.model and again.config.grpo == config.grpo
    assert again.config.model_dump() == public_settings(config)  # so that --resume finds the same settings
    assert any("vllm.servers was kept without its secrets" in note for note in again.notes)
    assert not any("kept without" in note for note in load_train_config([file]).notes)


async def test_the_tools_of_a_report_show_how_many_texts_held_a_secret() -> None:
    async with ToolPool([_server(ANSWER="{ENV:plain}")]) as pool, pool.session() as session:
        for number in range(3):
            await session.call(ToolCall(id=str(number), tool="look", arguments={}))
        outcome = pool.metrics()
    (table,) = tools_table(ReportDocument.model_construct(tools=outcome))
    (row,) = table.rows
    assert dict(zip(table.columns, row, strict=True))["*Secrets"] == "3"
