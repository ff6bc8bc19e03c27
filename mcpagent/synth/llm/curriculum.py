"""Ideas for tasks: a JSON array of prompts that somebody wrote for other tools, perhaps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ValidationError

from mcpagent.core.records import OpenRecord
from mcpagent.core.tasks import Complexity
from mcpagent.core.tools import ToolSpec
from mcpagent.core.validation import describe
from mcpagent.errors import UserError
from mcpagent.storage.records import read_records

_LEVELS: dict[str, Complexity] = {
    "easy": "simple",
    "medium": "moderate",
    "difficult": "complex",
    "hard": "complex",
    "simple": "simple",
    "moderate": "moderate",
    "complex": "complex",
}


def complexity_of(level: str) -> Complexity | None:
    """In our words or in those of curricula (easy, medium, difficult); None for another word."""
    return _LEVELS.get(level.strip().lower())


class CurriculumPrompt(OpenRecord):
    """`likely_tools` are loose names of tools."""

    id: str
    complexity: Annotated[Complexity, BeforeValidator(lambda level: _LEVELS.get(str(level).lower(), level))]
    user_prompt: str
    likely_tools: tuple[str, ...] = ()
    why_multi_turn: str = ""


def load_curriculum(path: Path) -> tuple[CurriculumPrompt, ...]:
    """Raises UserError with file and line."""
    prompts: list[CurriculumPrompt] = []
    for line, record in read_records(path):
        try:
            prompts.append(CurriculumPrompt.model_validate(record))
        except ValidationError as error:
            found = "; ".join(describe(detail) for detail in error.errors())
            raise UserError(found, where=f"{path}:{line}") from None
    if not prompts:
        raise UserError("holds no prompts", where=str(path))
    return tuple(prompts)


def resolve_alias(alias: str, tools: Iterable[ToolSpec]) -> ToolSpec | None:
    """The tool that a loose name means (`fmp.quote`, `polygon news`); None where none or several are near."""
    tools = list(tools)
    by_name = {name: tool for tool in tools for name in (tool.dotted, tool.name)}
    if alias in by_name:
        return by_name[alias]
    words = _words(alias)
    # The fewest other words win: `fmp.quote` is fmp_get_quote before fmp_get_quote_history.
    having = sorted((len(_words(tool.dotted)), tool.dotted) for tool in tools if words <= _words(tool.dotted))
    if having and (len(having) == 1 or having[0][0] < having[1][0]):
        return by_name[having[0][1]]
    near = get_close_matches(alias, [tool.dotted for tool in tools], n=1, cutoff=0.75)
    return by_name[near[0]] if near else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
