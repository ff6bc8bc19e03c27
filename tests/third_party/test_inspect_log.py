"""Our logs, read by inspect_ai itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evaluate.report.test_inspect_log import check_what_inspect_read, read_by_inspect, written

pytestmark = pytest.mark.registry


def test_inspect_reads_messages_calls_results_scores_usage_and_errors(
    tmp_path: Path, installed: Callable[[str], None]
) -> None:
    installed("inspect")
    check_what_inspect_read(read_by_inspect(["uvx", "--from", "inspect_ai", "python"], written(tmp_path)))
