from __future__ import annotations

import time
from email.utils import formatdate

import httpx
import pytest

from mcpagent.core.values import retry_after_s


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "30"}, 30.0),
        ({"RETRY-AFTER": " 0.5 "}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "30"}, 0.25),  # the finer one wins
        ({"retry-after-ms": "soon", "retry-after": "30"}, 30.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),  # the example of RFC 9110, long past
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
    ],
)
def test_a_wait_is_a_number_a_date_or_unknown(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(httpx.Headers(headers)) == seconds


def test_a_date_in_the_future_is_so_many_seconds_away() -> None:
    in_an_hour = formatdate(time.time() + 3600, usegmt=True)  # whole seconds, and time goes on
    wait_s = retry_after_s(httpx.Headers({"Retry-After": in_an_hour}))
    assert wait_s is not None and 3500 < wait_s <= 3600
