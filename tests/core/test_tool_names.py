from __future__ import annotations

import re
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.tools import ToolSpec, model_names


def _spec(server: str, name: str) -> ToolSpec:
    return ToolSpec(server=server, name=name, input_schema={"type": "object"})


def _names(*places: tuple[str, str]) -> dict[str, str]:
    return {name: spec.dotted for name, spec in model_names(_spec(*place) for place in places).items()}


def test_a_name_that_is_unique_reaches_the_model_as_it_is() -> None:
    odd = "weather.get/forecast " + "x" * 80
    assert _names(("a", odd), ("b", "plain")) == {odd: f"a.{odd}", "plain": "b.plain"}


def test_a_prefixed_name_that_is_taken_already_gets_a_hash() -> None:
    names = _names(("a", "b__c"), ("a__b", "c"), ("x", "c"), ("y", "b__c"), ("z", "x__c"))
    assert len(names) == 5
    assert names["x__c"] == "z.x__c"  # its own name
    assert names["y__b__c"] == "y.b__c"
    hashed = {name: place for name, place in names.items() if re.fullmatch(r".*_[0-9a-f]{8}", name)}
    assert set(hashed.values()) == {"a.b__c", "a__b.c", "x.c"}


def test_a_long_or_foreign_prefix_is_shortened_to_what_chat_apis_take() -> None:
    long = "get_the_weather_of_a_city_for_the_coming_days"
    names = _names(("a company's own server", long), ("b" * 40, long))
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert next(iter(names)).startswith("a_company_s_own_server__get_the_weather")


_PLACES = st.lists(
    st.tuples(st.sampled_from(["a", "a__b", "b", "c c"]), st.sampled_from(["c", "b__c", "a__c", "d" * 60])),
    unique=True,
    max_size=6,
)


@given(_PLACES)
def test_every_tool_has_a_name_of_its_own_that_no_order_changes(places: list[tuple[str, str]]) -> None:
    names = _names(*places)
    assert sorted(names.values()) == sorted(f"{server}.{tool}" for server, tool in places)
    for order in list(permutations(places))[:24]:
        assert _names(*order) == names
