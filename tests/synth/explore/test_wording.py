"""What is said of a walk: the wish in words of fields and values, in registers, and never the plan."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.answers import Leaf, answer_fields
from mcpagent.synth.explore.graph import Edge, Fact
from mcpagent.synth.explore.naming import (
    field_words,
    frames,
    human,
    is_quantity,
    is_worth_asking,
    subject_of,
    topic,
    unit_of,
)
from mcpagent.synth.explore.naturalness import overlap, spells_plan
from mcpagent.synth.explore.wording import (
    Saying,
    asks_for,
    compared,
    is_beyond,
    leads_to,
    say,
    say_named,
    totals_of,
)


def tool(name: str, description: str = "", /, **properties: str) -> ToolSpec:
    schema = {
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()}
    }
    return ToolSpec(server="port", name=name, description=description, input_schema=schema)


SHIP = tool("ship_details", "Look up the details of a ship by its name", name="Name of the ship")
BERTH = tool("get_berth", "Which ship lies at a berth", berth="Number of the berth")
SHIPS = tool("list_ships", "List all ships in the harbour")
QUERY = tool("read_query", "Execute a SELECT query", query="SELECT statement")
RATE = tool("exchange_rate", "Rate", from_currency="Base", to_currency="Quote")
RAIN = ToolSpec(
    server="port",
    name="rain",
    description="",
    input_schema={
        "properties": {"station": {"type": "string"}, "month": {"$ref": "#/$defs/Month"}},
        "$defs": {"Month": {"type": "string", "enum": ["january", "july"]}},
    },
)


_UUID = "fdcfd25e-0a7e-4fc7-9e83-183ac42a5bdd"


def aurora(*leaves: Leaf) -> Fact:
    return Fact(SHIP, {"name": "Aurora"}, leaves)


@pytest.mark.parametrize(
    ("leaf", "questions"),
    [
        (
            Leaf("@.premium", "premium", 5.5),
            {"what is the premium of Aurora", "how much is Aurora's premium", "what's Aurora's premium"},
        ),
        (Leaf("@.weight", "weight", 512.5), {"how heavy is Aurora", "what is the weight of Aurora"}),
        (
            Leaf("@.captain", "captain", "Ada Berg"),
            {"who is the captain of Aurora", "who is Aurora's captain"},
        ),
        (Leaf("@.crew_count", "crew count", 31), {"how many crews does Aurora have"}),
        (
            Leaf("@.built", "built", "1987-05-02"),
            {"when was Aurora built", "what is Aurora's construction date"},
        ),
        (
            Leaf("@.renovated", "renovated", 2001),
            {"when was Aurora renovated", "what is the renovation year of Aurora"},
        ),
        (Leaf("@.opened_at", "opened at", "2001-02-03T10:00:00Z"), {"when was Aurora opened"}),
        (Leaf("@.died", "died", 1777), {"what is the death year of Aurora"}),
        (
            Leaf("@.platforms", "platforms", 7),
            {"how many platforms does Aurora have", "what is the number of platforms of Aurora"},
        ),
        (Leaf("@.tons", "tons", 5209.5), {"how many tons does Aurora have"}),
        (Leaf("@.country", "country", "Norway"), {"which country is Aurora in", "what is Aurora's country"}),
    ],
)
def test_the_question_follows_from_the_field_and_the_type_of_its_value(
    leaf: Leaf, questions: set[str]
) -> None:
    sayings = [asks_for(leaf, aurora(leaf), Random(seed)) for seed in range(200)]
    assert questions <= {saying.question for saying in sayings if saying}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("status", 3, "status"),
        ("address", 12, "address"),
        ("sales", 12.5, "sales"),
        ("platforms", "north and south", "platforms"),
        ("delay_minutes", 12, "number of delay minutes"),
        ("weight_kg", 12, "weight in kg"),
        ("built", 12, "built"),
        ("limited", 1999, "limited"),
        ("published", "2024-01-02", "publication date"),
        ("digitized", 1999, "digitization year"),
        ("year_founded", 1850, "founding year"),
        ("certified", 1999, "certifying year"),
        ("validUntil", "2031-02-03", "expiry date"),
        ("license_expires_on", "2031-02-03", "license expiry date"),
    ],
)
def test_what_a_field_is_called_follows_from_what_it_holds(name: str, value: str | float, words: str) -> None:
    leaf = Leaf(f"@.{name}", name.replace("_", " "), value)
    assert field_words(leaf, aurora(leaf)) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [("shipName", "name"), ("ship_owner_id", "owner ID"), ("port_name", "port name"), ("ship", "ship")],
)
def test_the_fields_of_a_thing_are_not_called_after_it_again(name: str, words: str) -> None:
    leaf = Leaf(f"@.{name}", name, "Aurora")
    assert field_words(leaf, Fact(tool("get_ships"), {}, (leaf,))) == words


def test_a_thing_that_is_found_by_another_keeps_its_name() -> None:
    leaf = Leaf("@.vehicleId", "", "v7")
    found = Fact(tool("findVehicleByPlate"), {"licensePlate": "AB-12"}, (leaf,))
    assert field_words(leaf, found) == "vehicle ID"
    assert field_words(leaf, Fact(tool("getVehicle"), {"vehicle": "AB-12"}, (leaf,))) == "ID"
    age = Leaf("@.vehicleAge", "", 7)
    assert field_words(age, Fact(found.spec, found.arguments, (age,))) == "age"


def _compared(style: str, leaf: Leaf) -> set[str]:
    plain = Saying("", "the @ of @", "", "")
    names, values = ["Aurora", "Rosa"], ["a", "b"]
    return {
        compared(style, plain, leaf, aurora(leaf), names, values, Random(seed))[0].question
        for seed in range(20)
    }


def test_years_are_later_and_are_not_added_up_and_what_is_counted_is_more() -> None:
    built, tracks = Leaf("@.built", "built", 1987), Leaf("@.tracks", "tracks", 5)
    assert _compared("most", built) == {
        f"which has the {which} construction year, Aurora or Rosa, and what is it"
        for which in ("later", "earlier")
    }
    assert _compared("difference", tracks) == {
        "what is the difference in the number of tracks between Aurora and Rosa"
    }
    assert is_beyond(built, "construction year", is_more=True, bound=1900.0) == "were built after 1900"
    assert is_beyond(tracks, "number of tracks", is_more=False, bound=5.0) == "have fewer than 5 tracks"
    assert {name for name, _ in totals_of(built)} == {"latest", "earliest"}
    assert "total" in {name for name, _ in totals_of(tracks)}


def test_a_number_that_names_a_thing_is_not_added_up() -> None:
    for name in ("id", "table_id", "orderNo", "number", "room_number", "zip_code", "cid"):
        assert not is_quantity(Leaf(f"@.rows[0].{name}", "", 12))
    for name in ("price", "number_of_rooms", "tracks"):
        assert is_quantity(Leaf(f"@.rows[0].{name}", "", 12))


def test_a_unit_stands_at_the_end() -> None:
    leaf = Leaf("@.length_m", "length m", 210.5)
    sayings = [asks_for(leaf, aurora(leaf), Random(seed)) for seed in range(40)]
    assert {saying.goal for saying in sayings if saying} == {
        "the length of Aurora in m",
        "Aurora's length in m",
    }
    assert {saying.bare for saying in sayings if saying} == {"length of Aurora in m", "Aurora length in m"}


def test_which_part_of_a_list_was_asked_for_is_not_said() -> None:
    ships = tool("list_ships", "", cursor="Where to go on", flag="Flag")
    assert subject_of(Fact(ships, {"cursor": 50, "flag": "NO"}, ())) == "NO"


def test_a_value_in_a_list_is_asked_for_by_the_name_of_its_item_and_else_by_its_place() -> None:
    items = [
        {"id": "s11", "name": "Aurora", "tons": 5209.5},
        {"id": "s12", "name": "Borealis", "tons": 1237.7},
    ]
    rows = tuple(
        Leaf(f"@.rows[{index}].{name}", "", value)
        for index, item in enumerate(items)
        for name, value in item.items()
    )
    table = Fact(QUERY, {"query": "SELECT * FROM ships"}, rows)
    weight, name = asks_for(rows[5], table, Random(1)), asks_for(rows[4], table, Random(1))
    assert weight is not None and weight.subject == "Borealis in ships"
    assert name is not None and "s12" in name.goal
    unnamed = Fact(QUERY, {"query": "SELECT * FROM ships"}, (rows[2], rows[5]))
    placed = asks_for(rows[5], unnamed, Random(1))
    assert placed is not None and placed.subject == "the second of the ships"


def test_what_leads_to_a_thing_is_said_by_what_it_is_there() -> None:
    held = Leaf("@.ship", "ship", "Aurora")
    berth = Fact(BERTH, {"berth": 12}, (held,))
    assert leads_to(Edge(berth, held, "name", "Aurora"), subject_of(berth)) == "the ship of berth 12"
    third = Leaf("@.ships[2].name", "name of the third ship", "Caravel")
    ships = Fact(SHIPS, {}, (third,))
    assert leads_to(Edge(ships, third, "name", "Caravel"), "") == "the third ship"
    code = Leaf("@.ships[2].id", "", "c7")
    both = Fact(SHIPS, {}, (third, code))
    assert leads_to(Edge(both, code, "ship_id", "c7"), "") == "Caravel"


def _observed(*names: str) -> Fact:
    lists = [
        (
            *([Leaf(f"@.ships[{n}].name", "", name)] if name else []),
            *(Leaf(f"@.ships[{n}].notes[{m}]", "", f"note {n}{m}") for m in range(2)),
        )
        for n, name in enumerate(names)
    ]
    return Fact(SHIPS, {}, tuple(leaf for leaves in lists for leaf in leaves))


def test_an_item_of_one_of_several_lists_is_said_with_the_thing_that_has_the_list() -> None:
    for names, said in [
        (("Aurora", "Borealis"), "the second note of Borealis"),
        (("", ""), None),
        (("Aurora",), "the second note"),
    ]:
        fact = _observed(*names)
        note = fact.leaves[-1]
        assert leads_to(Edge(fact, note, "query", str(note.value)), "") == said
        saying = asks_for(note, fact, Random(0))
        assert (saying and saying.goal) == said


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"date": "2025-10-14"}, "on 2025-10-14"),
        ({"start_date": "2024-01-02", "end_date": "2024-03-04"}, "from 2024-01-02 to 2024-03-04"),
        ({"fresh": True}, "with fresh"),
    ],
)
def test_a_call_that_names_only_times_or_choices_is_said_with_no_other_preposition(
    arguments: dict[str, object], phrase: str
) -> None:
    tides = tool("list_tides")
    height, first = Leaf("@.height_cm", "", 212), Leaf("@.tides[1].place", "", "Genoa")
    fact = Fact(tides, arguments, (height, first))
    for seed in range(40):
        saying = asks_for(height, fact, Random(seed))
        assert saying is not None and saying.goal == f"the height in cm {phrase}"
        assert saying.question == f"what is the height in cm {phrase}"
        texts = [text for text in vars(saying).values() if text]
        assert all(f"cm {phrase}" in text for text in texts) and "{" not in say(saying, Random(seed)).prompt
        item = asks_for(first, fact, Random(seed))
        assert item is not None and item.goal == f"the place of the second tide {phrase}"
    plain = asks_for(height, fact, Random(0), subject="@")
    assert plain is not None
    both, _ = compared("both", plain, height, fact, [phrase, "on 2020-01-01"], ["a", "b"], Random(0))
    assert f"{phrase} and on 2020-01-01" in both.goal and " of " not in both.goal


@pytest.mark.parametrize(
    ("spec", "arguments", "item"),
    [
        (QUERY, {"query": "SELECT name FROM sqlite_master"}, "the second table in the database"),
        (tool("get_table_schema"), {"table": "ships"}, "the second column in ships"),
        (tool("describe_table"), {"table_name": "ships"}, "the second column in ships"),
        (tool("directory_tree"), {"path": "/data"}, "the second entry in /data"),
        (tool("read_file"), {"path": "/data/fleet.csv"}, "the second row in /data/fleet.csv"),
        (tool("list_files"), {"path": "/data"}, "the second file in /data"),
        (tool("recipes_with_ingredient"), {"name": "basil"}, "the second recipe for basil"),
        (tool("hotels_near"), {"airport": "LIS"}, "the second hotel for LIS"),
    ],
)
def test_an_item_of_a_list_is_called_what_such_lists_hold(
    spec: ToolSpec, arguments: dict[str, str], item: str
) -> None:
    leaf = Leaf("@.result[1].kind", "", "steamer")
    saying = asks_for(leaf, Fact(spec, arguments, (leaf,)), Random(0))
    assert saying is not None and item in saying.goal


def test_an_item_of_a_list_of_ids_is_the_thing_and_neither_compared_nor_added_up() -> None:
    menu = tool("get_menu")
    for name, kind in (("recipe_ids", "recipe"), ("orderNumbers", "order"), ("stages", "stage")):
        leaf = Leaf(f"@.{name}[1]", "", 512)
        saying = asks_for(leaf, Fact(menu, {"slug": "brunch"}, (leaf,)), Random(0))
        assert saying is not None and saying.goal == f"the second {kind} for brunch"
    assert not is_quantity(Leaf("@.recipe_ids[1]", "", 512)) and not is_quantity(Leaf("@.result[1]", "", 512))
    assert is_quantity(Leaf("@.prices[1]", "", 512)) and is_quantity(Leaf("@.result[1]", "", 5.5))


@pytest.mark.parametrize(
    ("name", "arguments", "value", "question"),
    [
        ("convert_currency", {"amount": 97, "from": "CHF", "to": "USD"}, 99.5, "what is 97 CHF in USD"),
        ("convert", {"value": 5, "from_unit": "mile", "to_unit": "km"}, 8.05, "what is 5 mile in km"),
        (
            "days_between",
            {"start": "2024-01-02", "end": "2024-03-01"},
            59,
            "what is the number of days from 2024-01-02 to 2024-03-01",
        ),
        (
            "add_days",
            {"day": "2024-01-02", "days": 30},
            "2024-02-01",
            "what is the date 30 days after 2024-01-02",
        ),
        (
            "subtract_weeks",
            {"date": "2024-01-15", "weeks": 2},
            "2024-01-01",
            "what is the date 2 weeks before 2024-01-15",
        ),
    ],
)
def test_what_is_worked_out_is_asked_for_as_people_ask_for_it(
    name: str, arguments: dict[str, Any], value: str | float, question: str
) -> None:
    leaf = Leaf("@.result", "result", value, "result")
    saying = asks_for(leaf, Fact(tool(name), arguments, (leaf,)), Random(0))
    assert saying is not None and saying.question == question and not saying.subject


def test_a_count_of_days_is_not_told_in_hours_as_a_duration_is() -> None:
    assert unit_of(Leaf("@.skipped_days", "", 3)) == "" and unit_of(Leaf("@.weight_kg", "", 3)) == "kg"


def test_a_year_in_a_text_is_asked_for_as_a_year_and_a_word_of_yes_or_no_is_not_asked_for() -> None:
    answer = "Built: 1950\nFlag: Norway\nisFerry: true\nisNew: False"
    built, flag = answer_fields({"text": answer})[:2]
    fact = Fact(tool("read_file"), {"path": "/data/a.md"}, (built, flag))
    sayings = [asks_for(built, fact, Random(0))]
    assert {saying.goal for saying in sayings if saying} == {"the construction year of /data/a.md"}
    assert [leaf.name for leaf in answer_fields({"text": answer})] == ["Built", "Flag"]


@pytest.mark.parametrize(
    ("fact", "subject"),
    [
        (Fact(tool("count_words"), {"text": "the old mill"}, ()), '"the old mill"'),
        (Fact(tool("search"), {"query": "was built in 1962"}, ()), '"was built in 1962"'),
        (Fact(tool("find_ship"), {"name": "Old Mill"}, ()), "Old Mill"),
        (Fact(BERTH, {"berth": 12}, ()), "berth 12"),
        (Fact(SHIP, {"name": "Aurora"}, ()), "Aurora"),
        (Fact(QUERY, {"query": "SELECT * FROM ships"}, ()), "ships"),
        (Fact(RATE, {"from_currency": "USD", "to_currency": "EUR"}, ()), "from USD to EUR"),
        (Fact(tool("history"), {"channel_id": "C101"}, ()), "channel C101"),
        (Fact(tool("close"), {"ticker": "AAPL", "date": "2025-01-02"}, ()), "AAPL on 2025-01-02"),
        (Fact(tool("read"), {"path": "/data/notes.txt"}, ()), "/data/notes.txt"),
        (Fact(tool("get_order"), {"number": 5810}, ()), "order 5810"),
        (Fact(tool("patient"), {"id": "PT-40"}, ()), "patient PT-40"),
        (Fact(tool("count_words"), {"text": "b12"}, ()), "b12"),
        (Fact(tool("get_hotels"), {"iata": "LIS", "min_stars": 3}, ()), "LIS with at least 3 stars"),
        (Fact(tool("cars"), {"city": "Bonn", "max_price": 30}, ()), "Bonn with a price of at most 30"),
        (Fact(tool("getCar"), {"carId": _UUID}, ()), f"car {_UUID}"),
        (Fact(tool("airport"), {"iata": "L2"}, ()), "airport L2"),
        (Fact(tool("tickets"), {"match": "M1", "seats": 3}, ()), "match M1 with 3 seats"),
        (Fact(RAIN, {"month": "july"}, ()), "the month july"),
        (Fact(RAIN, {"month": "july", "station": "Old Mill"}, ()), "Old Mill for the month july"),
        (
            Fact(RAIN, {"station": "ws-1", "month": "july", "year": 2021}, ()),
            "station ws-1 for the month july with year 2021",
        ),
    ],
)
def test_a_thing_is_called_as_people_call_it(fact: Fact, subject: str) -> None:
    assert subject_of(fact) == subject


def test_names_of_fields_become_words() -> None:
    assert [human(n) for n in ("n_prices", "weight_kg", "changePercent", "channel_id", "berth_count")] == [
        "number of prices", "weight in kg", "change in percent", "channel ID", "number of berths",
    ]  # fmt: skip
    assert topic(tool("get_weather_by_city")) == "weather" and topic(tool("port_list_all_ships")) == "ships"
    named_alike = ToolSpec(server="moons", name="moons_of", description="", input_schema={})
    assert topic(named_alike) == "moons"
    runs_it = ToolSpec(server="python", name="execute_python", description="", input_schema={})
    assert topic(runs_it) == "result"  # nobody asks for the python of 2 + 2
    rate = Fact(RATE, {}, (Leaf("@.result", "result", 1.1),))
    assert field_words(rate.leaves[0], rate) == "exchange rate"


def test_there_are_eight_registers_and_each_fills_every_slot() -> None:
    registers = frames()["registers"]
    assert len(registers) >= 8
    saying = asks_for(Leaf("@.tons", "tons", 5.5), aurora(), Random(0))
    assert saying is not None
    said = [say(saying, Random(seed)) for seed in range(2000)]
    texts = {(each.register, each.prompt, each.later) for each in said}
    assert {register for register, _, _ in texts} == set(registers)
    assert len(texts) == sum(map(len, registers.values())) - 1  # two plain questions are the same frame
    assert all("Aurora" in prompt + " ".join(later) and "{" not in prompt for _, prompt, later in texts)
    assert all("tons" in prompt + " ".join(later) for _, prompt, later in texts)
    assert any(later for _, _, later in texts)
    assert not [each for each in (say(saying, Random(s), in_one=True) for s in range(300)) if each.later]


def test_a_frame_that_needs_one_subject_is_not_used_without_it() -> None:
    saying = Saying(
        "how many ships are there", "the number of ships", "how many ships there are", "number of ships"
    )
    said = {say(saying, Random(seed)).prompt for seed in range(500)}
    assert said and all("ships" in text for text in said)
    assert {say_named("berth 12", Random(seed)) for seed in range(50)} >= {
        "berth 12",
        "Sorry, I mean berth 12.",
    }


def test_a_word_that_says_nothing_is_not_asked_for_by_its_place() -> None:
    leaves = answer_fields({"text": "Titan was discovered by Huygens from a garden near Delft in 1655."})
    asked = {leaf.value for leaf in leaves if is_worth_asking(leaf)}
    assert {"Huygens", "Titan", "garden"} <= asked and not asked & {"was", "by", "in", "from", "a"}


def test_what_something_is_called_is_never_changed() -> None:
    leaf = Leaf("@.size", "size", 512)
    saying = asks_for(leaf, Fact(tool("stat"), {"file": "notes"}, (leaf,)), Random(0))
    assert saying is not None
    texts = [" ".join([said.prompt, *said.later]) for said in (say(saying, Random(s)) for s in range(300))]
    assert all("notes" in text for text in texts)


def test_lines_of_a_listing_are_counted_and_words_of_a_sentence_are_not() -> None:
    listing = tuple(
        Leaf(f"word(@.text, {n})", "a word of the text", value) for n, value in [(1, "a"), (3, "b")]
    )
    fact = Fact(tool("list_files"), {"folder": "docs"}, listing)
    assert leads_to(Edge(fact, listing[1], "path", "b"), "docs") == "the second file in docs"
    words = enumerate(("it", "is", "so"))
    prose = tuple(Leaf(f"word(@.text, {n})", "a word of the text", value) for n, value in words)
    said = Fact(tool("read_file"), {"path": "/docs/a"}, prose)
    assert leads_to(Edge(said, prose[2], "path", "so"), "/docs/a") is None


@pytest.mark.parametrize(
    "text",
    [
        "Look up the details of a ship by its name, with name Aurora. What is the premium?",
        "List all ships, then look up the third one. What does it cost?",
        "What is the premium if you look up a ship using the name Aurora?",
        "Please call ship_details for Aurora.",
        "Take Aurora as the name. What is the premium?",
        "What does the tool say about Aurora?",
    ],
)
def test_a_question_that_spells_out_the_plan_is_refused(text: str) -> None:
    assert spells_plan(text, [SHIP, SHIPS], entities=["Aurora"])


@pytest.mark.parametrize(
    "text",
    [
        "What does the Aurora cost to insure?",
        "How much is the premium of the ship of berth 12?",
        "I've been trying to find out the name of the third ship for an hour now. Help!",
        "Which of the ships has the highest premium?",
    ],
)
def test_a_wish_is_kept(text: str) -> None:
    assert spells_plan(text, [SHIP, SHIPS, BERTH], entities=["Aurora", "12"]) is None


def test_the_overlap_is_the_share_of_content_words_without_the_entities() -> None:
    # Content words: details, ship, cost, insure, of which the description has details and ship.
    shared = overlap(
        "What are the details of the ship Aurora, and what does it cost to insure?",
        [SHIP],
        entities=["Aurora"],
    )
    assert (shared.share, shared.content_words) == (0.5, 4)
    assert shared.copied == ("the", "details", "of")
    named = overlap("Aurora, the details", [SHIP], entities=["Aurora", "details"])
    assert named.content_words == 0 and named.share == 0.0
