"""What strangers say on a terminal: real servers and files, a real pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.running import Command, mcpagent
from tests.tools.servers import hostile

# Clears the screen, renames the window, writes to the clipboard, and goes up a line to overwrite it.
ATTACK = "\x1b[2J\x1b]0;owned\x07\x1b]52;c;cm0gLXJm\x07\x9b1A\u202egnp.exe\rAll is well\x00\u200b\U000e0041"
# What rich itself writes: colours and styles, the cursor and the lines of a progress bar.
_OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12]?[AK]|\r+\n|\r(?=\x1b)")


def _file(tmp_path: Path, **env: str) -> Path:
    path = tmp_path / "mcp.json"
    # Not as its `env`, whose values are secrets and would be hidden.
    variables = [f"{name}={value}" for name, value in env.items()]
    server = {"command": "env", "args": [*variables, sys.executable, hostile.__file__]}
    path.write_text(json.dumps({"mcpServers": {"odd": server}}))
    return path


def _on_a_terminal(*arguments: str | Path) -> str:
    """All that the command writes to a terminal which is its stdout and its stderr."""
    leader, follower = pty.openpty()
    with Command(
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(follower)
        chunks: list[bytes] = []
        try:
            while chunk := os.read(leader, 65536):
                chunks.append(chunk)
        except OSError:  # Linux says the end of a terminal so
            pass
        process.wait(60)
    os.close(leader)
    return b"".join(chunks).decode()


def _assert_harmless(text: str) -> None:
    left = _OURS.sub("", text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e\U000e0041]", left), ascii(left)


def _tool(name: str = "a", description: str = "", properties: tuple[str, ...] = ()) -> dict[str, str]:
    schema = {"type": "object", "properties": {key: {} for key in properties}}
    tool = {"name": name, "description": description, "inputSchema": schema}
    return {"TOOLS": json.dumps([tool])}


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        pytest.param(("tools", "list"), {"DIE": ATTACK}, id="dying"),
        pytest.param(("doctor",), {"DIE": ATTACK}, id="dying, doctor"),
        pytest.param(("tools", "call", "odd.look"), {"ANSWER": ATTACK}, id="answer"),
        pytest.param(("tools", "call", "odd.look"), {"ANSWER": ATTACK, "IS_ERROR": "1"}, id="error"),
        pytest.param(("tools", "call", "odd.look"), {"REFUSAL": ATTACK}, id="refusal"),
        pytest.param(("tools", "list"), _tool(name=ATTACK), id="name"),
        pytest.param(("tools", "list"), _tool(properties=(ATTACK,)), id="property"),
        pytest.param(("tools", "list"), _tool(description=ATTACK), id="description"),
    ],
)
def test_a_server_does_not_steer_the_terminal(
    arguments: tuple[str, ...], env: dict[str, str], tmp_path: Path
) -> None:
    env = {k: v.replace("\x00", "") for k, v in env.items()}  # no environment holds one
    seen = _on_a_terminal(*arguments, "--servers", _file(tmp_path, **env))
    _assert_harmless(seen)
    assert "odd" in seen or "All is well" in seen


def _record(text: str) -> str:
    truth = {
        "task_id": text,
        "complexity": "simple",
        "max_turns": 4,
        "tool_sequence": [{"step": 1, "server": text, "tool": text, "params": {text: text}}],
    }
    return json.dumps(
        {
            "data_source": text,
            "env_class": "MCPToolEnv",
            "prompt": [{"role": "system", "content": text}, {"role": "user", "content": text}],
            "reward_spec": {"method": "rule", "ground_truth": truth},
            "extra_info": {"tools": [f"{text}.{text}"], "template": text, "split": text},
        }
    )


@pytest.mark.parametrize("command", [("show",), ("stats",), ("validate", "--no-catalog")])
def test_a_dataset_does_not_steer_the_terminal(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(
        _record(ATTACK) + "\n" + _record(ATTACK).replace("complexity", "\\u001b[2Jcomplexity") + "\n"
    )
    _assert_harmless(_on_a_terminal("data", command[0], file, *command[1:]))


def test_json_escapes_what_would_steer_and_is_still_the_same_text(tmp_path: Path) -> None:
    attack = (ATTACK + "\x7f").replace("\x00", "")
    done = mcpagent("tools", "call", "odd.look", "--json", "--servers", _file(tmp_path, ANSWER=attack))
    assert json.loads(done.stdout)["content"] == attack
    assert done.stdout.isascii() and done.stdout.replace("\n", "").isprintable()


def test_logs_and_tracebacks_go_through_the_filter(tmp_path: Path) -> None:
    code = (
        "import logging\nfrom mcpagent.console import guard_process\nguard_process()\n"
        f"text = {ATTACK!r}\nlog = logging.getLogger('x')\n"
        "log.warning('said %s', text)\n"
        "try:\n    raise ValueError(text)\nexcept ValueError:\n    log.exception('broke')\n"
        "log.warning('%d %s', 7, 'fine')\nraise RuntimeError(text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, cwd=tmp_path)
    seen = done.stderr.decode()
    _assert_harmless(seen)
    assert seen.count("\\x1b[2J") == 3 and "7 fine" in seen
    assert "ValueError" in seen and "RuntimeError" in seen


def test_a_sentence_breaks_between_words_on_a_terminal_and_a_command_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    samples = ROOT / "data" / "samples" / "train.jsonl"
    wide = next(line for line in mcpagent("data", "show", samples).stdout.splitlines() if len(line) > 60)
    shown = _OURS.sub("\n", _on_a_terminal("data", "show", samples)).splitlines()
    assert not any(len(line) > 60 for line in shown)
    assert " ".join(wide.split()) in " ".join(" ".join(shown).split())
    refused = _OURS.sub("\n", _on_a_terminal("train", "--data", samples.parent, "--model", "embedded"))
    command = "mcpagent train --algo sft --config configs/warm_start.yaml --data DATA --out outputs/warm"
    assert command in refused


def test_a_long_fact_goes_on_below_its_text() -> None:
    script = (
        "from mcpagent.console import Console, Facts\n"
        "Console().print_blocks({}, [Facts([('note', 'word ' * 40), ('next', 'mcpagent ' + 'x' * 100)])])\n"
    )
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", script], stdout=follower, env=environment, check=True)
    os.close(follower)
    lines = _OURS.sub("\n", os.read(leader, 65536).decode()).split("\n")
    os.close(leader)
    first, *others = [line for line in lines if "word" in line]
    assert first.startswith("note      word") and len(others) >= 2
    assert all(line.startswith(" " * 10 + "word") and len(line) <= 80 for line in others)
    assert any("mcpagent " + "x" * 100 in line for line in lines), "a command stays whole"
