"""Documents that commands wrote as JSON files, read back and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from mcpagent.core.records import describe
from mcpagent.errors import UserError
from mcpagent.storage.json_stream import reading

_T = TypeVar("_T")


def read_document(path: Path, kind: type[_T], *, wrong: str, remedy: str) -> _T:
    """Read what a JSON file holds. Raises UserError, which says `wrong` and the first problem if the file
    holds something else."""
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        problem = describe(error.errors()[0], root="the document")
        raise UserError(f"{wrong}: {problem}", where=str(path), remedy=remedy) from None
