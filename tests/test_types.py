"""The page of types: its protocols are protocols, and what ships keeps to them."""

from __future__ import annotations

import typing

import pytest

from mcpagent import types
from mcpagent.engines import ENGINES
from mcpagent.policy.scripted import ScriptedPolicy
from mcpagent.reward.terms import ConfiguredReward
from mcpagent.storage.datasets import TaskFile
from mcpagent.tools.pool import ToolPool
from tests.house import ROOT

SHIPPED = {
    types.TaskSource: TaskFile,
    types.ToolProvider: ToolPool,
    types.Policy: ScriptedPolicy,
    types.Reward: ConfiguredReward,
    types.Engine: type(ENGINES.load("native")),
}


@pytest.mark.parametrize(("protocol", "implementation"), SHIPPED.items())
def test_what_ships_has_every_member_of_its_protocol(protocol: type, implementation: type) -> None:
    assert typing.Protocol in protocol.__bases__
    members = {*typing.get_type_hints(protocol), *vars(protocol)} - set(dir(object))
    asked = {name for name in members if not name.startswith("_") or name in {"__len__", "__getitem__"}}
    assert asked
    assert {name for name in asked if not hasattr(implementation, name)} == set()


def test_the_readme_leads_to_the_page() -> None:
    assert "(mcpagent/types.py)" in (ROOT / "README.md").read_text()
