"""`logs/run.log`: what a run said, with time and step."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from mcpagent.core.redact import SECRETS
from mcpagent.errors import RunError
from mcpagent.storage.run_folder import run_log

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 step (\d+): (.*)")


def entries(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "logs" / "run.log").read_text().splitlines()
    return [match.groups() for line in lines if (match := LINE.fullmatch(line))]  # pyright: ignore


def test_notes_and_warnings_of_libraries_stand_in_the_log_with_their_step(tmp_path: Path) -> None:
    with run_log(tmp_path) as log:
        log.write("sampling with hf")
        log.step = 3
        logging.getLogger("transformers.x").warning("a key was %s", "missing")
        logging.getLogger("transformers.x").debug("every tensor by name")
        log.write("two\nlines \x1b[31mred")
        SECRETS.learn({"SHOP_TOKEN": "aB3dE6gH9jK2mN5pQ8"})
        log.write("the shop answered aB3dE6gH9jK2mN5pQ8")
    assert entries(tmp_path) == [
        ("0", "sampling with hf"),
        ("3", "warning transformers.x: a key was missing"),
        ("3", "two"),
        ("3", "the shop answered [SHOP_TOKEN]"),
    ]
    text = (tmp_path / "logs" / "run.log").read_text()
    assert "\x1b" not in text
    assert "\n    lines" in text


def test_what_ends_a_run_is_its_last_entry(tmp_path: Path) -> None:
    with pytest.raises(RunError), run_log(tmp_path):
        raise RunError("loss is nan")
    with pytest.raises(KeyboardInterrupt), run_log(tmp_path):
        raise KeyboardInterrupt
    assert [text for _, text in entries(tmp_path)] == ["failed: RunError: loss is nan", "interrupted"]
    logging.getLogger("other").warning("after the run")
    assert len(entries(tmp_path)) == 2
