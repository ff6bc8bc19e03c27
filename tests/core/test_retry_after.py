from __future__ import annotations

import time
from email.utils import formatdate

import httpx
import pytest

from mcpagent.core.values import backoff_s, retry_after_s


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


def test_a_pause_doubles_up_to_its_limit_and_is_shortened_by_at_most_a_quarter() -> None:
    for failures, longest_s in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (6, 8.0), (10_000, 8.0)):
        pauses = [backoff_s(failures, first_s=0.5, max_s=8.0) for _ in range(200)]
        assert 0.75 * longest_s <= min(pauses) < max(pauses) <= longest_s


def test_what_a_server_asks_to_wait_takes_the_place_of_the_pause() -> None:
    assert [backoff_s(n, first_s=0.5, max_s=8.0, asked_s=60.0) for n in (1, 2, 9)] == [60.0] * 3
    assert backoff_s(3, first_s=0.5, max_s=8.0, asked_s=0.0) == 0.0
