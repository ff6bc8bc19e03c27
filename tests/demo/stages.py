"""Stages of the quickstart for its tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mcpagent.demo.job import Stages


def noting(notes: list[str]) -> Stages:
    """Stages that show nothing and keep their titles and notes."""

    @contextmanager
    def begin(title: str, total: int | None) -> Iterator[Any]:
        notes.append(title)
        yield lambda *_, **__: None

    return Stages(begin=begin, note=notes.append)
