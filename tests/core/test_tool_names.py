from __future__ import annotations

import re
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.tools import ToolSpec, api_schemas, chat_schema, model_names, renamed


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


_FITS = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MCP_NAMES = st.text(st.sampled_from("aA9_-./ \u00fc"), max_size=6) | st.sampled_from(
    [
        "calendar.listEvents",
        "calendar/listEvents",
        "calendar_listEvents",
        "x" * 128,
        "x" * 64 + ".y",
        "x" * 127 + "z",
    ]
)


@given(st.lists(_MCP_NAMES, unique=True, max_size=8), st.lists(_MCP_NAMES, unique=True, max_size=3))
def test_a_chat_api_gets_names_that_it_takes_each_for_one_tool_whatever_the_others_are(
    names: list[str], more: list[str]
) -> None:
    given_names = renamed(names)
    seen = [given_names.get(name, name) for name in names]
    assert len(set(seen)) == len(names) and all(map(_FITS.fullmatch, seen))
    assert all(name in names and not _FITS.fullmatch(name) for name in given_names)
    later = renamed([*reversed(names), *more])
    assert {name: later[name] for name in given_names} == given_names


def test_a_tool_cannot_take_the_name_of_another_by_being_called_so() -> None:
    name = "calendar.listEvents"
    others = [renamed([name])[name]]
    for _ in range(20):  # each next name that the tool would be given is taken, too
        given_name = renamed([name, *others])[name]
        assert given_name not in others and _FITS.fullmatch(given_name)
        others.append(given_name)


def test_two_names_of_one_hash_get_two_names() -> None:
    """Of 2 ** 17 names that differ in signs which no API takes, two share a hash of 32 bits nearly surely."""
    first: dict[str, str] = {}
    for number in range(2**17):
        name = f"a{chr(0x4E00 + number % 2**12)}{chr(0x4E00 + number // 2**12)}"
        other = first.setdefault(renamed([name])[name], name)
        if other != name:
            assert len(set(renamed([name, other]).values())) == 2
            return
    raise AssertionError("no two names share a hash")


def test_schemas_for_an_api_are_the_same_but_for_the_name_and_lead_back() -> None:
    spec = _spec("s", "a.b")
    (schema, plain), name_of = api_schemas([chat_schema("a.b", spec), chat_schema("plain", spec)])
    name = schema["function"]["name"]
    assert name_of == {name: "a.b"} and _FITS.fullmatch(name)
    assert schema == chat_schema(name, spec) and plain == chat_schema("plain", spec)
