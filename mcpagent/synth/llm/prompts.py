"""The words for the model: a YAML file, data that anybody may change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pydantic import Field

from mcpagent.core.records import Record
from mcpagent.errors import UserError
from mcpagent.synth.located_yaml import read_yaml, validate

_BLANK = re.compile(r"\{\{(\w+)\}\}")
_BLANKS = {
    "generate.system": set(),
    "generate.user": {"complexity", "domain", "steps", "max_tools", "idea", "tools", "observations"},
    "repair": {"stage", "code", "detail"},
    "judge.system": {"lens"},
    "judge.user": {"user_prompt", "calls", "answer", "reference_answer"},
}


class Pair(Record):
    system: str
    user: str


class PromptTexts(Record):
    generate: Pair
    repair: str
    judge: Pair
    lenses: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Prompts:
    texts: PromptTexts
    sha256: str


def load_prompts(path: Path) -> Prompts:
    """Raises UserError with file and line, also for a blank that nothing fills."""
    source = read_yaml(path)
    texts = validate(PromptTexts, source, ())
    for place, known in _BLANKS.items():
        keys = tuple(place.split("."))
        text: object = texts
        for key in keys:
            text = getattr(text, key)
        unknown = sorted(set(_BLANK.findall(str(text))) - known)
        if unknown:
            raise UserError(
                f"nothing fills {{{{{unknown[0]}}}}} in {place}",
                where=f"{path}:{source.line(keys)}",
                remedy=f"there are: {', '.join(sorted(known)) or 'none here'}",
            )
    return Prompts(texts, sha256(path.read_bytes()).hexdigest())


def fill_in(text: str, **values: object) -> str:
    """`text` with its `{{name}}` blanks filled; what is filled in is not read again."""
    return _BLANK.sub(lambda blank: str(values[blank[1]]), text)
