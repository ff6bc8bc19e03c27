"""The supervised loop, alone and with a curriculum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mcpagent.core.records import JsonObject
from mcpagent.demo.embedded_model import train_tokenizer
from mcpagent.models.tokens import Renderer
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.batch.samples import TrainSample, sample_from_segments
from mcpagent.train.budget import RunBudget
from mcpagent.train.sft import Curriculum, SftSettings, SftState, train_sft
from tests.train.world import full_logprobs, make_learner, some_samples, tiny_model


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""))


def run_sft(
    folder: Path,
    renderer: Renderer,
    model: Any,
    *,
    learning_rate: float = 0.01,
    of_tools: JsonObject | None = None,
    **settings: Any,
) -> list[JsonObject]:
    records: list[JsonObject] = []
    defaults = {"total_steps": 4, "save_every": 2, "batch_size": 3, "micro_batch_tokens": 150, "seed": 0}
    train_sft(
        make_learner(model, learning_rate=learning_rate),
        some_samples(6),
        renderer=renderer,
        run=RunFolder.create(folder, config_yaml="", manifest={}),
        settings=SftSettings(**{**defaults, **settings}),
        state=SftState(),
        of_tools=of_tools or {},
        on_step=records.append,
    )
    return records


def test_the_loss_is_the_mean_surprise_of_the_tokens_that_the_model_is_to_produce(
    tmp_path: Path, renderer: Renderer
) -> None:
    model, samples = tiny_model(), some_samples(6)
    (record,) = run_sft(tmp_path / "run", renderer, model, learning_rate=0.0, total_steps=1, batch_size=6)
    surprises = torch.cat([-full_logprobs(model, s).detach() for s in samples])
    assert record["loss"] == pytest.approx(float(surprises.mean()), rel=1e-5)
    assert record["tokens"] == len(surprises)


def test_the_loss_falls_on_what_is_seen_again_and_again(tmp_path: Path, renderer: Renderer) -> None:
    records = run_sft(tmp_path / "run", renderer, tiny_model(), total_steps=30, batch_size=6, save_every=30)
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]


def repeat(renderer: Renderer, *, count: int, seed: int) -> list[TrainSample]:
    """A curriculum of this test's own: `count` samples in which the model is to write one word."""
    prompt = renderer.prompt_ids([{"role": "user", "content": f"word {seed}"}], ())
    return [sample_from_segments([(prompt, False), (renderer.action_ids("word"), True)])] * count


def test_a_curriculum_comes_first_and_joins_the_demonstrations(tmp_path: Path, renderer: Renderer) -> None:
    asked: list[int] = []

    def counted(renderer: Renderer, *, count: int, seed: int) -> list[TrainSample]:
        asked.append(count)
        return repeat(renderer, count=count, seed=seed)

    records = run_sft(
        tmp_path / "run", renderer, tiny_model(), curriculum=Curriculum(counted, steps=2, mix=1), batch_size=3
    )
    assert [r["phase"] for r in records] == ["counted", "counted", "demonstrations", "demonstrations"]
    assert [r["step"] for r in records] == [1, 2, 3, 4]
    assert asked == [6, 6, 1, 1]  # alone: twice the batch of demonstrations
    each = len(renderer.action_ids("word"))
    assert [r["tokens"] for r in records[:2]] == [6 * each, 6 * each]


def test_what_the_demonstrations_cost_the_servers_stands_in_the_first_record(
    tmp_path: Path, renderer: Renderer
) -> None:
    records = run_sft(tmp_path / "run", renderer, tiny_model(), of_tools={"tool_metrics": {"servers": []}})
    kept = RunFolder(tmp_path / "run").metrics()
    assert [("tool_metrics" in record) for record in records] == [True, False, False, False]
    assert kept == records


def test_checkpoints_are_kept_at_their_interval_and_at_the_end(tmp_path: Path, renderer: Renderer) -> None:
    run_sft(tmp_path / "run", renderer, tiny_model(), total_steps=5)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-000002",
        "step-000004",
        "step-000005",
    ]


@pytest.mark.parametrize(("budget", "steps"), [(RunBudget(steps=1), 1), (RunBudget(cpu_s=1e-9), 0)])
def test_a_budget_that_is_spent_ends_the_run_with_a_checkpoint(
    tmp_path: Path, renderer: Renderer, budget: RunBudget, steps: int
) -> None:
    records = run_sft(tmp_path / "run", renderer, tiny_model(), total_steps=50, save_every=50, budget=budget)
    assert len(records) == steps
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"step-{steps:06d}"]
