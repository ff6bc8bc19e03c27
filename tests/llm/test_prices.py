"""The price that a user names."""

from __future__ import annotations

import pytest

from mcpagent.errors import UserError
from mcpagent.llm.budget import Price, given_price


def test_a_price_is_both_of_its_halves_or_none() -> None:
    assert given_price(0.0, 10.0) == Price(0.0, 10.0)
    assert given_price(None, None) is None


@pytest.mark.parametrize("halves", [(1.0, None), (None, 0.0)])
def test_half_a_price_is_an_error_that_names_both_settings(halves: tuple[float | None, float | None]) -> None:
    with pytest.raises(UserError, match=r"one of api\.price_in and api\.price_out is set"):
        given_price(*halves)
