from pathlib import Path

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.errors import UserError
from mcpagent.synth.templates.template import fill, load_templates, slots_in

POOLS = """\
ticker:
  list: {server: fmp, tool: fmp_search_ticker, items: results, field: symbol}
"""
TEMPLATE = """\
name: price
complexity: simple
prompts: ["Price of {ticker}?"]
slots: {ticker: ticker}
plan:
  - server: fmp
    tool: fmp_get_quote
    params: {symbol: "{ticker}"}
answer: {type: number, value: "${step1.price}"}
reference_answer: "The answer is ${step1.price}."
"""


def write_set(folder: Path, *, template: str = TEMPLATE, pools: str = POOLS) -> Path:
    (folder / "pools.yaml").write_text(pools)
    (folder / "price.yaml").write_text(template)
    return folder


def error_of(folder: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load_templates(folder)
    return caught.value


def test_every_template_folder_that_ships_loads_and_has_templates_of_every_complexity() -> None:
    folders = sorted({path.parent for path in resource_path("templates").rglob("pools.yaml")})
    assert folders
    for folder in folders:
        assert len(load_templates(folder).templates) > 0
    shipped = load_templates(resource_path("templates/tasks")).templates
    assert {t.complexity for t in shipped} == {"simple", "moderate", "complex"}
    assert any(t.answer is not None and t.answer.type == "none" for t in shipped)
    assert all(len(t.prompts) >= 2 for t in shipped)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("complexity: simple", "complexity: easy", 2, "complexity"),
        ("params: {symbol", "parameters: {symbol", 8, "plan.0.parameters"),
        ("slots: {ticker: ticker}", "slots: {ticker: tickers}", 1, "not a pool"),
        ("slots: {ticker: ticker}", "slots: {ticker: ticker, other: ticker}", 1, "does not name the slots"),
        ('{symbol: "{ticker}"}', '{symbol: "{tick}"}', 1, "not declared"),
        ('{symbol: "{ticker}"}', '{symbol: "${step1.price}"}', 1, "has not run by then"),
        ('"The answer is ${step1.price}."', '"The answer is ${step2.price}."', 1, "step 2 of a plan with 1"),
        ('"The answer is ${step1.price}."', '"The answer is ${eval(1)}."', 1, "only paths"),
        ("answer: {type: number", "answer: {type: none", 1, "either a plan or"),
        ("type: number", "type: numbers", 9, "answer.type"),
        ("prompts: [", "prompts: [[", 3, "not valid YAML"),
    ],
)
def test_a_mistake_in_a_template_is_reported_with_its_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in TEMPLATE
    error = error_of(write_set(tmp_path, template=TEMPLATE.replace(old, new)))
    assert error.where is not None
    name, _, found = error.where.rpartition(":")
    assert Path(name) == tmp_path / "price.yaml"
    # A parse error stands where the parser noticed it, which is on the broken line or after it.
    assert int(found) == line or ("YAML" in message and int(found) >= line)
    assert message in error.message


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    broken = TEMPLATE.replace("complexity: simple", "complexity: easy").replace("tool: fmp", "tol: fmp")
    error = error_of(write_set(tmp_path, template=broken))
    assert "price.yaml:7: plan.0.tol" in error.message
    assert error.where == f"{tmp_path / 'price.yaml'}:2"


def test_the_second_use_of_a_template_name_is_reported_where_it_stands(tmp_path: Path) -> None:
    item = "- " + TEMPLATE.replace("\n", "\n  ").rstrip()
    error = error_of(write_set(tmp_path, template=f"{item}\n{item}\n"))
    assert error.where == f"{tmp_path / 'price.yaml'}:{1 + len(TEMPLATE.splitlines())}"
    assert "used twice" in error.message


@pytest.mark.parametrize(
    ("pools", "line", "message"),
    [
        ("ticker: {keys_of: nothing}\n", 1, "not a pool"),
        ("ticker: {}\n", 1, "exactly one of"),
        ("# entities\nticker:\n  lists: {}\n", 3, "lists"),
        ("- ticker\n", 1, "mapping"),
    ],
)
def test_a_mistake_in_the_pools_is_reported_with_its_line(
    tmp_path: Path, pools: str, line: int, message: str
) -> None:
    error = error_of(write_set(tmp_path, pools=pools))
    assert error.where == f"{tmp_path / 'pools.yaml'}:{line}"
    assert message in error.message


def test_a_missing_or_empty_template_folder_is_a_user_error(tmp_path: Path) -> None:
    assert "no template folder" in error_of(tmp_path / "nowhere").message
    assert "pools.yaml" in error_of(tmp_path).message
    (tmp_path / "pools.yaml").write_text(POOLS)
    assert "holds no templates" in error_of(tmp_path).message


def test_filling_a_slot_keeps_references_patterns_and_types() -> None:
    value = {"id": "{n}", "text": "{n} of ${step1.n} matching [0-9]{3}", "list": ["{n}"]}
    assert fill(value, {"n": 7}) == {"id": 7, "text": "7 of ${step1.n} matching [0-9]{3}", "list": [7]}
    assert slots_in(value) == {"n"}


def test_the_digest_of_a_template_set_follows_its_text(tmp_path: Path) -> None:
    before = load_templates(write_set(tmp_path)).sha256
    assert load_templates(tmp_path).sha256 == before
    assert load_templates(write_set(tmp_path, template=TEMPLATE + "weight: 2\n")).sha256 != before
