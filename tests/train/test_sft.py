"""The supervised loop, alone and with a curriculum."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mcpagent.config.sections import BudgetConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import SEARCH_TOOL, ToolSpec, chat_schema
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.env.offer import Discovery
from mcpagent.models.tokens import Renderer
from mcpagent.policy.scripted import call_text
from mcpagent.storage.run_folder import RunFolder
from mcpagent.tools.pool import ToolPool
from mcpagent.train.batch.samples import TrainSample, sample_from_segments
from mcpagent.train.health import HealthMonitor
from mcpagent.train.sft import (
    Curriculum,
    RewrittenDemonstrations,
    SftSettings,
    SftState,
    demonstrate,
    demonstration_samples,
    texts,
    train_sft,
    writable,
)
from tests.env.world import make_task, with_builtins
from tests.run.world import samples
from tests.train.world import VOCABULARY, full_logprobs, make_learner, some_samples, tiny_model


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
    demonstrations: Sequence[TrainSample] = (),
    notes: list[str] | None = None,
    kinds: Sequence[str] = (),
    **settings: Any,
) -> list[JsonObject]:
    records: list[JsonObject] = []
    defaults = {"total_steps": 4, "save_every": 2, "batch_size": 3, "micro_batch_tokens": 150, "seed": 0}
    train_sft(
        make_learner(model, learning_rate=learning_rate),
        demonstrations or some_samples(6),
        kinds=kinds,
        renderer=renderer,
        run=RunFolder.create(folder, config_yaml="", manifest={}),
        settings=SftSettings(**{**defaults, **settings}),
        state=SftState(),
        of_tools=of_tools or {},
        on_step=records.append,
        note=(notes if notes is not None else []).append,
        health=HealthMonitor({"calls_fall": 0.1}, note=(notes if notes is not None else []).append),
    )
    return records


class Drawn(list[TrainSample]):
    """Samples that remember which of them were asked for, by place."""

    def __init__(self, samples: Sequence[TrainSample]) -> None:
        super().__init__(samples)
        self.places: list[int] = []

    def __getitem__(self, place: Any) -> Any:
        self.places.append(place)
        return super().__getitem__(place)


def test_every_step_trains_on_each_kind_in_its_share(tmp_path: Path, renderer: Renderer) -> None:
    drawn = Drawn(some_samples(16))
    kinds = ["refusal"] * 4 + ["single"] * 12
    run_sft(tmp_path / "run", renderer, tiny_model(), demonstrations=drawn, batch_size=4, kinds=kinds)
    steps = [drawn.places[first : first + 4] for first in range(0, 16, 4)]
    assert sorted(drawn.places) == list(range(16))
    assert [sum(place < 4 for place in step) for step in steps] == [1, 1, 1, 1]


def sampled_runs(sample: TrainSample) -> list[str]:
    return "".join("x" if sampled else " " for sampled in sample.loss_mask_T).split()


def test_the_loss_is_the_mean_surprise_of_the_tokens_that_the_model_is_to_produce(
    tmp_path: Path, renderer: Renderer
) -> None:
    model, samples = tiny_model(), some_samples(6)
    (record,) = run_sft(tmp_path / "run", renderer, model, learning_rate=0.0, total_steps=1, batch_size=6)
    surprises = torch.cat([-full_logprobs(model, s).detach() for s in samples])
    assert record["loss"] == pytest.approx(float(surprises.mean()), rel=1e-5)
    assert record["tokens"] == len(surprises)
    assert record["longest_turn"] == max(len(run) for s in samples for run in sampled_runs(s))


def test_the_loss_falls_on_what_is_seen_again_and_again(tmp_path: Path, renderer: Renderer) -> None:
    records = run_sft(tmp_path / "run", renderer, tiny_model(), total_steps=30, batch_size=6, save_every=30)
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]


def calling(renderer: Renderer, count: int, *, calls: bool = True) -> list[TrainSample]:
    """Demonstrations of one call and an answer; or, without the call, of the answer alone."""
    made: list[TrainSample] = []
    for number in range(count):
        prompt = renderer.prompt_ids([{"role": "user", "content": f"value {number}"}], ())
        call = f'<tool_call>\n{{"name": "get", "arguments": {{"key": {number}}}}}\n</tool_call>'
        turns = [(renderer.action_ids(call, calls=True), True), (prompt[:8], False)] if calls else []
        answer = (renderer.action_ids(f"It is {number}."), True)
        made.append(sample_from_segments([(prompt, False), *turns, answer]))
    return made


def without(model: Any, token: int) -> Any:
    """The model, holding one token 40 nats lower than it does, whatever is trained."""
    lower = 40.0 * torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY)
    model.lm_head.register_forward_hook(lambda _head, _hidden, logits: logits - lower)
    return model


def test_how_many_calls_of_its_demonstrations_a_model_would_begin_is_measured_at_every_step(
    tmp_path: Path, renderer: Renderer
) -> None:
    model, shown = tiny_model(), calling(renderer, 3)
    (record,) = run_sft(
        tmp_path / "run", renderer, model, learning_rate=0.0, total_steps=1, demonstrations=shown
    )
    opening = len(renderer.action_ids('<tool_call>\n{"name": "')) - 2  # the last may be merged with a name
    # By hand: the least of the opening's probabilities, from all logits; the answer is not a call.
    begun = [float(full_logprobs(model, sample).detach()[:opening].min().exp()) for sample in shown]
    assert record["calls_begun"] == pytest.approx(sum(begun) / 3, rel=1e-4)
    (silent,) = run_sft(
        tmp_path / "silent", renderer, model, total_steps=1, demonstrations=calling(renderer, 3, calls=False)
    )
    assert "calls_begun" not in silent


def test_training_that_never_learns_to_call_says_so_while_it_runs_and_when_it_ends(
    tmp_path: Path, renderer: Renderer
) -> None:
    (tag,) = renderer.action_ids("<tool_call>")[:-1]
    notes: list[str] = []
    records = run_sft(
        tmp_path / "run",
        renderer,
        without(tiny_model(), tag),
        total_steps=40,
        save_every=40,
        learning_rate=0.02,
        demonstrations=calling(renderer, 3),
        notes=notes,
    )
    assert records[-1]["calls_begun"] < 1e-6
    steps = [int(note.split("step ")[1].split(":")[0]) for note in notes]
    assert len(steps) == 2 and steps[0] < steps[1] == 40, "once while it runs, and at the end"
    assert all("calls are not learned" in note and "rollout.tool_format" in note for note in notes)


def test_nothing_is_said_of_training_that_learns_its_calls(tmp_path: Path, renderer: Renderer) -> None:
    notes: list[str] = []
    records = run_sft(
        tmp_path / "run",
        renderer,
        tiny_model(),
        total_steps=40,
        save_every=40,
        learning_rate=0.02,
        demonstrations=calling(renderer, 3),
        notes=notes,
    )
    assert records[0]["calls_begun"] < 0.01 and records[-1]["calls_begun"] > 0.5
    assert notes == []


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


def test_a_budget_that_is_spent_ends_the_run_with_a_checkpoint(tmp_path: Path, renderer: Renderer) -> None:
    budget = BudgetConfig(cpu_s=1e-9)
    records = run_sft(tmp_path / "run", renderer, tiny_model(), total_steps=50, save_every=50, budget=budget)
    assert records == []
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000"]


class _FromFile(Sequence[Task]):
    """Tasks that are made when they are asked for, as those of a file are; `alive` of them are held."""

    def __init__(self, tasks: Sequence[Task], count: int) -> None:
        self._tasks, self._count, self.alive = tasks, count, 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self._count:
            raise IndexError(place)
        sample = self._tasks[place % len(self._tasks)]
        truth = sample.truth.model_copy(update={"task_id": f"task-{place}"})
        task = sample.model_copy(
            update={"reward_spec": sample.reward_spec.model_copy(update={"ground_truth": truth})}
        )
        self.alive += 1
        weakref.finalize(task, self._forget)
        return task

    def _forget(self) -> None:
        self.alive -= 1


def test_demonstrations_of_any_number_hold_only_the_tasks_that_are_being_played() -> None:
    tasks, most = _FromFile(samples(count=20), 300), 0

    def count(_: Trajectory) -> None:
        nonlocal most
        most = max(most, tasks.alive)

    played = with_builtins(lambda pool: demonstrate(tasks, tools=pool, seed=1, on_done=count))
    assert [each.task_id for each in played] == [f"task-{place}" for place in range(300)]
    assert 0 < most <= 250  # 64 episodes are open at a time; the first ones, each task and its plan are held


def test_demonstrations_search_for_tools_before_they_call_them(renderer: Renderer) -> None:
    tasks = {task.id: task for task in samples(count=10)}
    discovery = Discovery()

    async def play(pool: ToolPool) -> tuple[Sequence[Trajectory], dict[str, ToolSpec]]:
        played = await demonstrate(
            list(tasks.values()), tools=pool, seed=1, wrong_tool=0.5, stop_early=0.5, discovery=discovery
        )
        return played, dict(pool.tools)

    played, catalog = with_builtins(play)
    made = demonstration_samples(played, tasks, catalog=catalog, renderer=renderer, discovery=discovery)
    for trajectory, sample in zip(played, made, strict=True):
        text = renderer.decode(sample.token_ids_T)
        loss = renderer.decode(
            [token for token, counts in zip(sample.token_ids_T, sample.loss_mask_T, strict=True) if counts]
        )
        prompt = renderer.prompt_ids(trajectory.prompt, (chat_schema(SEARCH_TOOL.name, SEARCH_TOOL),))
        assert tuple(sample.token_ids_T[: len(prompt)]) == prompt
        # Each tool is loaded by a search before its first call, and a search is what the policy writes.
        loaded: set[str] = set()
        for turn in trajectory.turns:
            for result in turn.tool_results:
                assert result.is_search or f"{result.server}.{result.tool}" in loaded
                loaded |= set(result.loaded or ())
        if trajectory.tool_results:
            assert '"search_tools"' in loss and text.count('"type": "function"') > 1
    called = [t for t in played if t.tool_results]
    assert any(t.is_success for t in called) and any(not t.is_success for t in called)
    assert "search_tools" in next(texts(called, tasks, catalog=catalog, renderer=renderer))


def test_demonstrations_with_a_value_that_the_format_cannot_write_are_left_out() -> None:
    """And no other: what is left is read back by `reads_back`, as is all in a format with escapes."""
    spec = ToolSpec(
        server="s",
        name="look",
        input_schema={"type": "object", "properties": {"text": {"type": "string"}, "any": {}}},
    )
    given_arguments: list[JsonObject] = [
        *(
            {"text": text}
            for text in ("plain", '"quoted"', "5", "a</parameter>\n<parameter=b>", "<think>a</think>")
        ),
        *({"any": value} for value in ("plain", 5, "5", {"a": "5"})),
    ]
    tasks = {str(n): make_task(task_id=str(n)) for n in range(len(given_arguments))}
    trajectories = [
        Trajectory(
            id=name,
            task_id=name,
            group_id=name,
            prompt=(),
            turns=(
                Turn(index=0, completion=Completion(text=call_text("look", arguments))),
                Turn(index=1, completion=Completion(text="Done.")),
            ),
            stop_reason=StopReason.ANSWERED,
        )
        for name, arguments in zip(tasks, given_arguments, strict=True)
    ]

    def left_out(tool_format: str) -> list[JsonObject]:
        kept = {
            each.id for each in writable(trajectories, tasks, catalog={"look": spec}, tool_format=tool_format)
        }
        return [given_arguments[int(each.id)] for each in trajectories if each.id not in kept]

    assert left_out("qwen3_coder") == [given_arguments[3], {"any": "5"}]
    assert left_out("glm") == [{"any": "5"}]
    assert left_out("hermes") == left_out("pythonic") == left_out("llama3") == []


class Counting:
    """An augmentation of this test's own: it appends its seed to the answer."""

    curriculum = staticmethod(repeat)
    wording = None

    def rewritten(self, trajectory: Trajectory, /, *, seed: int) -> Trajectory:
        (turn,) = trajectory.turns
        return trajectory.model_copy(
            update={"turns": (turn.model_copy(update={"completion": Completion(text=f"it is {seed}")}),)}
        )


def test_rewritten_demonstrations_are_others_each_time_and_the_same_at_the_same_place(
    renderer: Renderer,
) -> None:
    tasks = [
        Task.model_validate(
            {
                "prompt": [{"role": "user", "content": f"question {n}"}],
                "reward_spec": {"ground_truth": {"task_id": str(n)}},
                "extra_info": {"tools": []},
            }
        )
        for n in range(3)
    ]
    trajectories = [
        Trajectory(
            id=f"{task.id}#0",
            task_id=task.id,
            group_id=task.id,
            prompt=({"role": "user", "content": f"question {task.id}"},),
            turns=(Turn(index=0, completion=Completion(text="it is")),),
            stop_reason=StopReason.ANSWERED,
        )
        for task in tasks
    ]

    def made() -> RewrittenDemonstrations:
        encoded = partial(
            demonstration_samples, tasks={t.id: t for t in tasks}, catalog={}, renderer=renderer
        )
        return RewrittenDemonstrations(
            trajectories, augmentation=Counting(), encoded=encoded, times=4, seed=7
        )

    demonstrations = made()
    assert len(demonstrations) == 12
    texts = [renderer.decode(sample.token_ids_T) for sample in demonstrations]
    assert [re.findall(r"question (\d)", text) for text in texts] == [["0"], ["1"], ["2"]] * 4
    seeds = [re.findall(r"it is (\d+)", text)[0] for text in texts]
    assert len(set(seeds)) == 12
    assert [made()[place] for place in (11, 3)] == [demonstrations[11], demonstrations[3]]
    assert made()[2:4] == [demonstrations[2], demonstrations[3]]
