"""`mcpagent doctor --model`: is it safe to train on this model's tokens?"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from mcpagent.checks.doctor import check_model
from mcpagent.core.records import CheckResult, CheckStatus
from mcpagent.core.tools import ToolSpec
from tests.models.templates import (
    AS_PYTHON,
    NAMES_PROPERTIES,
    NAMES_TOOLS,
    REFUSES_TOOLS,
    STRIPS_THINKING,
    WRITES_IDS,
)

TOOLS = [ToolSpec(server="s", name="look", description="Look.", input_schema={"type": "object"})]


def check(
    folder: Path, *, tool_format: str = "auto", catalog: Sequence[ToolSpec] = TOOLS
) -> dict[str, CheckResult]:
    return {c.name: c for c in check_model(str(folder), tool_format=tool_format, catalog=catalog)}


def with_template(checkpoint: Path, folder: Path, template: str) -> Path:
    shutil.copytree(checkpoint, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def test_the_embedded_model_passes_without_drift(tiny_checkpoint: Path) -> None:
    checks = check(tiny_checkpoint)
    assert list(checks) == [
        *("model tokenizer", "model template", "model tool calls"),
        *("model injection", "model can call", "model names", "model schemas"),
        *("model drift", "model logits"),
    ]
    can_call = checks.pop("model can call")  # random weights begin no call
    assert can_call.status is CheckStatus.WARN and "0 of 3 greedy turns hold a call" in can_call.detail
    assert {c.status for c in checks.values()} == {CheckStatus.PASS}
    assert checks["model drift"].detail.startswith("0 of ")


@pytest.mark.parametrize(
    ("template", "says"),
    [(WRITES_IDS, "writes the id of the call"), (AS_PYTHON, "in a form that no parser here reads")],
)
def test_a_template_that_cannot_be_trained_on_fails_with_reason_and_remedy(
    tiny_checkpoint: Path, tmp_path: Path, template: str, says: str
) -> None:
    checks = check(with_template(tiny_checkpoint, tmp_path / "odd", template))
    assert list(checks) == ["model tokenizer", "model"]
    assert checks["model"].status is CheckStatus.FAIL
    assert says in checks["model"].detail and checks["model"].remedy


def test_a_template_without_tool_messages_passes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    checks = check(with_template(tiny_checkpoint, tmp_path / "gemma", REFUSES_TOOLS))
    del checks["model can call"]
    assert {c.status for c in checks.values()} == {CheckStatus.PASS}


def test_another_form_is_taught_in_the_place_of_one_that_nobody_reads(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    checks = check(with_template(tiny_checkpoint, tmp_path / "odd", AS_PYTHON), tool_format="json")
    assert checks["model tool calls"].detail.startswith("json, taught in the system message")


def test_drift_is_measured_and_no_failure(tiny_checkpoint: Path, tmp_path: Path) -> None:
    checks = check(with_template(tiny_checkpoint, tmp_path / "thinker", STRIPS_THINKING))
    assert checks["model drift"].status is CheckStatus.WARN
    assert not checks["model drift"].detail.startswith("0 of")


def test_what_comes_after_the_head_is_told(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "capped"
    shutil.copytree(tiny_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "final_logit_softcapping": 30.0}))
    assert check(folder)["model logits"].detail == "the output head's, softly capped at 30"


def test_a_model_that_is_not_there_is_a_failed_check(tmp_path: Path) -> None:
    [failure] = check(tmp_path / "nothing").values()
    assert failure.status is CheckStatus.FAIL and failure.remedy


def test_an_unknown_tool_format_is_a_failed_check_that_lists_them(tiny_checkpoint: Path) -> None:
    failure = check(tiny_checkpoint, tool_format="yaml")["model"]
    assert "yaml" in failure.detail and "qwen3_coder" in str(failure.remedy)


def test_names_that_the_format_cannot_write_fail_and_are_all_told(tiny_checkpoint: Path) -> None:
    odd = [
        ToolSpec(server="s", name=tool, input_schema={"type": "object", "properties": {name: {}, "x": {}}})
        for tool, name in (("one", "a\nb"), ("two", "filter[name]"), ("three", "c>d"))
    ]
    failed = check(tiny_checkpoint, tool_format="qwen3_coder", catalog=odd)["model names"]
    assert failed.status is CheckStatus.FAIL and failed.remedy
    assert failed.detail == "qwen3_coder cannot write 'a\\nb' of s.one; 'c>d' of s.three"
    assert check(tiny_checkpoint, catalog=odd)["model names"].status is CheckStatus.PASS


@pytest.mark.parametrize(
    ("template", "status", "says"),
    [
        (
            NAMES_PROPERTIES,
            CheckStatus.PASS,
            "the template leaves out what the descriptions tell instead: deep",
        ),
        (NAMES_TOOLS, CheckStatus.FAIL, "the prompt does not name deep of look"),
    ],
)
def test_what_the_prompt_names_is_compared_with_what_the_schema_has(
    tiny_checkpoint: Path, tmp_path: Path, template: str, status: CheckStatus, says: str
) -> None:
    inner = {"type": "object", "properties": {"deep": {"type": "string"}}}
    spec = TOOLS[0].model_copy(
        update={"input_schema": {"type": "object", "properties": {"q": {"anyOf": [inner, {"type": "null"}]}}}}
    )
    told = check(with_template(tiny_checkpoint, tmp_path / "odd", template), catalog=[spec])["model schemas"]
    assert (told.status, says in told.detail) == (status, True)
