"""A command that writes where another process does is refused, with the name of that process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.specs import spec_of
from tests.running import mcpagent, refused
from tests.storage.test_runs import another_process

SAMPLES = Path("data/samples/train.jsonl")


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        ("folder", "data", "gen-data --train 2 --validation 2 --heldout 2 --out"),
        ("file", "gold.jsonl", f"rollout --policy gold --data {SAMPLES} --out"),
        ("file", "train.jsonl", "convert {spec} --out"),
        ("file", "model", "export {model} --out"),
        ("file", "eval.json", f"eval checkpoint {{model}} --data {SAMPLES} --out"),
        ("folder", "quick", "quickstart --out"),
    ],
)
def test_a_command_does_not_write_where_another_process_does(
    kind: str, name: str, command: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    out, spec = tmp_path / name, tmp_path / "spec.json"
    spec.write_text(json.dumps(spec_of("fmp", "fmp_get_quote", {"symbol": "QQLA"})))
    words = command.format(spec=spec, model=tiny_checkpoint).split()
    with another_process(kind, out) as process:
        message = refused(mcpagent(*words, out))
        assert f"is in use by another process: pid {process.pid} on" in message
    assert not out.exists() or [path.name for path in out.iterdir()] == [".lock"]
