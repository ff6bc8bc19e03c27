"""What a cassette did: the numbers of `cassette` in the metrics of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from mcpagent.core.records import JsonObject


class Miss(StrEnum):
    """Why the tape had no answer."""

    NEVER_MADE = "never_made"  # no recorded call has these arguments
    OTHER_STATE = "other_state"  # the call was made, but after other calls that write
    SCHEMA_CHANGED = "schema_changed"  # it was recorded when the tool took or gave something else
    VERSION_CHANGED = "version_changed"  # it was recorded from another version of the server
    CUT_SHORTER = "cut_to_another_limit"  # what was recorded was cut to another limit of characters


@dataclass
class CassetteCounts:
    """Calls by what became of them. `restored` calls went to a server to make up for replayed ones; `refused`
    ones got no answer, from the tape or from a server; `volatile` answers differ from the one on the tape."""

    mode: str
    replayed: int = 0
    live: int = 0
    recorded: int = 0
    volatile: int = 0
    restored: int = 0
    refused: int = 0
    misses: Counter[Miss] = field(default_factory=Counter)

    def as_json(self) -> JsonObject:
        """`hit_rate` is None where nothing was looked up, as in record mode."""
        looked_up = self.replayed + self.misses.total()
        return {
            "mode": self.mode,
            "hit_rate": self.replayed / looked_up if looked_up else None,
            "calls_saved": self.replayed - self.restored,
            "replayed": self.replayed,
            "live": self.live,
            "recorded": self.recorded,
            "volatile": self.volatile,
            "restored": self.restored,
            "refused": self.refused,
            "misses": {reason.value: count for reason, count in sorted(self.misses.items())},
        }
