"""Whether the end state of a server is what a task expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpagent.core.matching import expect_holds, others_unchanged
from mcpagent.core.placeholders import PlaceholderError, resolve_references
from mcpagent.core.shown_values import result_value
from mcpagent.core.tasks import StateCheck
from mcpagent.core.tools import ToolResult


def state_holds(
    check: StateCheck, result: ToolResult, results: Mapping[str, Any], before: ToolResult | None = None
) -> bool:
    """Return whether the end state that `result` reports is as expected. `results` resolve step references;
    `before` is what the same call reported before the episode, which only some rules need: without it they
    fail."""
    if result.is_error:
        return False
    was = None if before is None or before.is_error else result_value(before)
    try:
        expected = resolve_references(check.expect, results)
    except PlaceholderError:
        return False
    now = result_value(result)
    return expect_holds(expected, now, was) and (
        not check.nothing_else_changed or (was is not None and others_unchanged(expected, now, was))
    )
