"""Which format `auto` is, by what a model can write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.env.tool_format import measured_format, open_renderer, opening_ids
from mcpagent.models.probe import Probe, write_probe

PROBE = Probe(token_ids=[[1, 2]], logprobs=[[-0.5]], dtype="float32")
TAG = "<tool_call>"


@cache
def tokenizer() -> Any:
    """Its template asks for tags, each a token of its own."""
    return train_tokenizer([], vocab_size=0, catalog_hash="")


def model(*, tag: float, text: float) -> Callable[[Sequence[int], Sequence[int]], list[float]]:
    """A model that holds the tag at one logprob and whatever else it is asked about at another."""
    of_tag = tokenizer().convert_tokens_to_ids(TAG)
    return lambda _, tokens: [tag if token == of_tag else text for token in tokens]


@pytest.mark.parametrize(
    ("tag", "text", "chosen", "said"),
    [
        (-0.1, -2.0, "auto", None),  # it was trained on the tags
        (-9.5, -0.5, "auto", None),  # it holds the token well enough to be trained on
        (-21.4, -5.0, "json", "at e^-21: never trained; tool format json is used"),
        (-21.4, -8.0, "auto", "begins no other call easily"),  # random weights tell nothing
    ],
)
def test_auto_is_the_format_that_the_model_can_write(tag: float, text: float, chosen: str, said: str) -> None:
    choice = measured_format(tokenizer(), name="some", score=model(tag=tag, text=text))
    assert choice.tool_format == chosen
    assert (choice.why is None) == (said is None) and (said is None or said in str(choice.why))
    assert choice.openings["auto"] == pytest.approx(min(tag, text))


def test_a_model_that_a_run_trained_keeps_the_format_of_that_run(tmp_path: Path) -> None:
    """What it was trained to write, however easily it begins another: the choice for a warm start and the one
    for what is trained from it must not differ."""
    weights = tmp_path / "run" / "checkpoints" / "step-000001"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors").touch()
    write_probe(weights, replace(PROBE, tool_format="xml"))
    scripted = model(tag=-21.4, text=-5.0)  # json, by its weights
    assert measured_format(tokenizer(), name=str(weights), score=scripted).tool_format == "xml"
    assert open_renderer(tokenizer(), name=str(weights)).tool_format == "xml"
    assert open_renderer(tokenizer(), name=str(weights), tool_format="json").tool_format == "json"
    # A checkpoint from before probes named it: the settings of its run.
    write_probe(weights, PROBE)
    assert measured_format(tokenizer(), name=str(weights), score=scripted).tool_format == "json"
    (tmp_path / "run" / "config.yaml").write_text("rollout: {tool_format: xml}")
    assert measured_format(tokenizer(), name=str(weights), score=scripted).tool_format == "xml"
    # A run that was made while `auto` was what the template writes.
    (tmp_path / "run" / "config.yaml").write_text("rollout: {tool_format: auto}")
    assert measured_format(tokenizer(), name=str(weights), score=scripted).tool_format == "auto"


def test_each_format_is_scored_under_its_own_rendering() -> None:
    """Where a format is taught, its example stands in the prompt that is scored; and the opening that is
    scored is what the parser's own writer begins a call with."""
    seen: list[tuple[str, str]] = []
    scripted = model(tag=-30.0, text=-1.0)

    def score(context: Sequence[int], tokens: Sequence[int]) -> list[float]:
        seen.append((tokenizer().decode(context), tokenizer().decode(tokens)))
        return scripted(context, tokens)

    measured_format(tokenizer(), name="some", score=score)
    for context, opening in seen[3:6]:
        assert opening.startswith('{"tool"') and opening in context and TAG not in context
    instruction = open_renderer(tokenizer(), name="some", tool_format="json").instruction
    assert instruction is not None and instruction in seen[3][0]
    assert seen[0][1].startswith(TAG)


def test_what_a_call_begins_with_begins_the_call_of_a_tool_whose_name_is_merged_with_it() -> None:
    """A tokenizer that has seen the calls of a tool holds what stands before its name and the name as one
    token."""

    def call(name: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'

    merging = train_tokenizer([call("fmp_get_quote")] * 50, vocab_size=400, catalog_hash="")
    renderer = open_renderer(merging, name="some")
    whole = [renderer.action_ids(call(name)) for name in ("fmp_get_quote", "get_item", "zebra")]
    assert whole[0][1] != whole[1][1], "the name is merged with what stands before it"
    opening = opening_ids(renderer)
    assert opening and all(tuple(ids[: len(opening)]) == opening for ids in whole)
