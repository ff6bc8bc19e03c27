"""The words and patterns of `words.yaml`: what differs from language to language, outside of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))


def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of `words.yaml`."""
    return re.compile(WORDS["patterns"][name].replace("\n", ""), re.IGNORECASE)
