"""What an HTTP response says about when to ask again."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: `Retry-After-Ms`, as language model APIs have it, else what RFC
    9110 section 10.2.3 allows, a number or a date. `headers` are looked up without regard to case."""
    for name, divisor in (("Retry-After-Ms", 1000.0), ("Retry-After", 1.0)):
        text = headers.get(name, "").strip()
        try:
            seconds = float(text) / divisor
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
            except ValueError:
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
