"""These run in an environment with vLLM (`make test-vllm`); elsewhere there is nothing to collect."""

from __future__ import annotations

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # What vLLM and its dependencies are warned of is not ours to fix.
        item.add_marker(pytest.mark.filterwarnings("ignore"))
