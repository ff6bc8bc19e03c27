"""JSON that a model wrote, read strictly: what cannot be stored, sent or checked is refused here."""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_DEPTH = 50  # serialisers and servers fail on deep nesting; no tool asks for it


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def decode_model_json(text: str, position: int = 0, *, max_depth: int = MAX_DEPTH) -> tuple[Any, int]:
    """The JSON value that begins at `position` and where it ends. Raises ValueError, which says what is
    wrong with it."""
    try:
        value, end = _DECODER.raw_decode(text, position)
        # An escaped lone surrogate cannot be stored or sent, and 1e999 decodes to infinity.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        is_deep = _is_deeper(value, max_depth)
    except RecursionError:
        is_deep, value, end = True, None, position
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at character {error.pos - position}") from None
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if is_deep:
        raise ValueError(f"the JSON is nested deeper than {max_depth}")
    return value, end


def _is_deeper(value: object, limit: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return limit == 0 or any(_is_deeper(item, limit - 1) for item in value)
