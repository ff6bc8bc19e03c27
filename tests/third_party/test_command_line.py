"""`mcpagent tools` with servers that others wrote, all in one mcp.json."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from mcpagent.core.tools import ToolSpec
from tests.running import mcpagent
from tests.third_party.servers import INSTALL, Desk

pytestmark = pytest.mark.registry

# Of each server, one tool with its required arguments and whether it says that it only reads.
_KNOWN = {
    "time.convert_time": ({"source_timezone", "time", "target_timezone"}, True),
    "git.git_commit": ({"repo_path", "message"}, False),
    "fetch.fetch": ({"url"}, True),
    "sqlite.read_query": ({"query"}, False),  # its author annotates nothing
    "everything.get-sum": ({"a", "b"}, True),
    "filesystem.write_file": ({"path", "content"}, False),
    "memory.read_graph": (set(), True),
}


def test_all_of_them_are_listed_from_one_file(desk: Desk) -> None:
    done = mcpagent("tools", "list", "--servers", desk.configure(*INSTALL), "--json")
    assert done.returncode == 0, done.stderr
    specs = {spec.dotted: spec for spec in map(ToolSpec.model_validate, json.loads(done.stdout))}
    counts = Counter(spec.server for spec in specs.values())
    assert counts.keys() == INSTALL.keys()
    # What they had in November 2026; servers gain tools, and seldom lose one.
    least = {"time": 2, "git": 12, "fetch": 1, "sqlite": 6, "everything": 13, "filesystem": 14, "memory": 9}
    assert counts >= Counter(least)
    for name, (required, read_only) in _KNOWN.items():
        assert set(specs[name].input_schema.get("required", [])) == required, name
        assert specs[name].annotations.read_only is read_only, name
    assert "note" not in done.stderr and "Traceback" not in done.stderr
