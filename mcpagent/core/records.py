"""Base of the records that touch disk."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]


class Record(BaseModel):
    """Frozen, strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OpenRecord(BaseModel):
    """Frozen, keeps fields that it does not know (foreign datasets survive a round trip)."""

    model_config = ConfigDict(frozen=True, extra="allow")
