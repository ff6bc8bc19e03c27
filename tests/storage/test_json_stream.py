"""Whatever a file holds, its reader gives records or a UserError: no other exception, and in linear time."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from mcpagent.config.source import read_file
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.yaml_file import read_yaml
from mcpagent.synth.dependent.spec import read_spec
from mcpagent.tools.servers_config import load_servers
from tests.run.world import TRAIN

FEW, MANY = 300, 200_000
_RECORD = TRAIN.read_bytes().splitlines()[0]
_MCP_JSON = json.dumps(
    {
        "mcpServers": {
            "a": {"command": "x", "args": ["-m", 1], "env": {"K": "${K:-d}"}, "cwd": "/", "timeout": 5000},
            "b": {"type": "http", "url": "http://127.0.0.1:1/mcp", "headers": {"X-A": "b"}},
            "c": {"type": "stdio", "command": "y", "disabled": True},
        }
    }
).encode()
_SPEC = json.dumps(
    {
        "dependent_dataset": [
            {
                "scenario": "s",
                "turns": 2,
                "limits": {"max_servers": 2, "max_tools": 2},
                "tasks": [
                    {
                        "task_id": "t",
                        "complexity": "easy",
                        "conversation": [{"role": "user", "message": "hi"}],
                        "solution": {
                            "tool_sequence": [
                                {"step": 1, "server": "fmp", "tool": "q", "params": {"a": "${step1.x}"}}
                            ]
                        },
                    }
                ],
            }
        ]
    }
).encode()
_YAML = b"""model:
  name: embedded
rollout: {group_size: 8, temperature: 1e0}
tools:
  isolation: &i {a: episode}
  per_server: {a: {timeout_s: 3.0}}
grpo: [*i, 2020-01-01, 0x1f]
"""
# What has broken readers: syntax, extremes, other types, characters that text has not.
_TOKENS = [
    *(bytes([byte]) for byte in b'"{}[],:\\\n\0\xff'),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"null", b"{}", b"[]", b"NaN", b"-1e999", b"1" * 5000, b"true"),
    *(b'"\\ud800"', b"0b", b"/*", b"//", b"'", b"&a ", b"*a", b"<<: *i\n", b"!!python/object:os.system "),
    *(b"- ", b"? ", b"\t", b"${", b"2020-13-45", b"\x85"),
]


def _run_with(name: str, path: Path) -> RunFolder:
    shutil.copyfile(path, path.with_name(name))
    return RunFolder(path.parent)


Reader = Callable[[Path], object]
READERS: dict[str, tuple[Reader, bytes]] = {
    "records": (lambda path: list(read_tasks(path)), _RECORD + b"\n" + _RECORD),
    "array": (lambda path: list(read_tasks(path)), b"[" + _RECORD + b", " + _RECORD + b"]"),
    "mcp_json": (load_servers, _MCP_JSON),
    "spec": (lambda path: list(read_spec(path)), _SPEC),
    "config": (read_file, _YAML),
    "templates": (read_yaml, _YAML),
    "settings of a run": (lambda path: _run_with("config.yaml", path).settings, _YAML),
    "manifest of a run": (lambda path: _run_with("manifest.json", path).manifest, _MCP_JSON),
}


def mutated(rng: Random, seed: bytes) -> bytes:
    text = bytearray(seed)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0:
                text[place:place] = rng.choice(_TOKENS)
            case 1:
                del text[place : place + rng.randrange(1, 40)]
            case 2:
                text[place:place] = text[place : place + rng.randrange(1, 200)]
            case 3:
                text[place : place + 1] = bytes([rng.randrange(256)])
            case _:
                value = text.find(b":", place) + 1
                end = min(
                    (i for i in (text.find(b",", value), text.find(b"}", value)) if i > 0), default=value
                )
                text[value:end] = rng.choice(_TOKENS)
    return bytes(text)


def read_all(name: str, path: Path, *, count: int, seed: int = 0) -> tuple[int, int]:
    reader, valid = READERS[name]
    rng, read = Random(seed), 0
    for number in range(count):
        content = mutated(rng, valid)
        path.write_bytes(content)
        try:
            reader(path)
            read += 1
        except UserError:
            pass
        except Exception as error:
            raise AssertionError(f"{name}, file {number}: {error!r} from {content[:3000]!r}") from error
    return read, count


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_gives_a_typed_error(name: str, tmp_path: Path) -> None:
    read, count = read_all(name, tmp_path / "file", count=FEW)
    assert 0 < read < count  # the files are neither all broken nor all whole


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", READERS)
def test_two_hundred_thousand_broken_files_give_typed_errors(name: str, tmp_path: Path) -> None:
    read, count = read_all(name, tmp_path / "file", count=MANY, seed=1)
    assert 0 < read < count


_DEEP = 5_000
NAMED = {
    "a NUL": b"a: b\0c\n",
    "mappings 5,000 deep": b'{"a": ' * _DEEP + b"1" + b"}" * _DEEP,
    "lists 5,000 deep": b"[" * _DEEP + b"]" * _DEEP,
    "a type that is an object": b'{"mcpServers": {"a": {"type": {}, "command": "x"}}}',
    "a type that is a list": b'{"mcpServers": {"a": {"type": [], "command": "x"}}}',
    "a NUL in a command": b'{"mcpServers": {"a": {"command": "x\\u0000y"}}}',
    "half a surrogate pair": b'{"mcpServers": {"a": {"command": "x", "args": ["\\ud800"]}}}',
    "a number of 5,000 digits": b'{"mcpServers": ' + b"9" * 5000 + b"}",
    "aliases of aliases": b"a0: &a0 {x: 1}\n"
    + b"".join(
        b"a%d: &a%d {%s}\n" % (n, n, b", ".join(b"k%d: *a%d" % (k, n - 1) for k in range(9)))
        for n in range(1, 11)
    ),
    "an alias of itself": b"a: &a {b: *a}\n",
}


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("name", ["records", "mcp_json", "spec", "config"])
def test_what_once_broke_a_reader_is_a_typed_error(what: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(NAMED[what])
    try:
        READERS[name][0](path)
    except UserError:
        return
    assert name == "config"  # YAML takes what is strange in an mcp.json for a plain mapping


LONG: dict[str, Callable[[int], bytes]] = {
    "quotes": lambda n: b'"' * n,
    "escaped quotes": lambda n: b'"' + b'\\"' * (n // 2),
    "comments without an end": lambda n: b"/*" * (n // 2),
    "slashes": lambda n: b"/" * n,
    "commas": lambda n: b", " * (n // 2),
    "spaces": lambda n: b" " * n + b"x",
    "brackets": lambda n: b"[" * n,
    "objects": lambda n: b"{}" * (n // 2),
    "one string": lambda n: b'{"a": "' + b"b" * n + b'"}',
    "lines": lambda n: b"x\n" * (n // 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LONG)
@pytest.mark.parametrize("name", ["records", "array", "mcp_json", "spec"])
def test_reading_a_million_characters_takes_time_in_proportion(what: str, name: str, tmp_path: Path) -> None:
    def cpu_s(size: int) -> float:
        path = tmp_path / str(size)
        path.write_bytes((b"[" if name == "array" else b"") + LONG[what](size))
        started = time.process_time()
        with suppress(UserError):
            READERS[name][0](path)
        return time.process_time() - started

    assert cpu_s(1_000_000) < 40 * max(cpu_s(100_000), 0.02)
