"""TRL's GRPOTrainer on tasks of mcpagent: the same episodes, tokens and rewards.

    from mcpagent.bridges.trl import open_dataset, reward_func, rollout_func

    with open_dataset("data/mine") as dataset:
        GRPOTrainer(model, reward_func, train_dataset=dataset, rollout_func=rollout_func, args=args).train()

`rollout_func` plays whole episodes (TRL 1.16, `RolloutFunc`), so tools keep their names and schemas, and what
the environment said is 0 in `env_mask`. An episode in which the machinery failed has no reward, so that TRL
leaves it out of its group, and no token in the loss.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mcpagent.bridges.host import Host, open_host
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.trajectory import Completion, FinishReason, Trajectory
from mcpagent.env.tool_format import open_renderer
from mcpagent.errors import UserError
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.rollout.collector import Attempt, collect
from mcpagent.storage.datasets import TaskFile
from mcpagent.train.batch.samples import sample_from_trajectory
from mcpagent.train.weight_sync import RolloutEngine, hf_sampler

_TASK = "task_id"  # a key of the first message of a prompt: TRL hands over nothing else of a row
_REWARD = "mcpagent_reward"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Source:
    """An open dataset, and the places of its tasks by id."""

    host: Host
    tasks: TaskFile
    places: dict[str, int]
    tool_format: str


@dataclass(frozen=True)
class _Player:
    """The engine that samples for one trainer, and its renderer."""

    engine: RolloutEngine
    renderer: Renderer
    max_context: int


_sources: dict[str, _Source] = {}  # by task id
_players: dict[int, _Player] = {}  # by trainer


@contextmanager
def open_dataset(
    data: Path | str,
    *,
    split: str = "train",
    config_files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    tool_format: str = "auto",
) -> Iterator[Any]:
    """Start the servers of a dataset of mcpagent and give its tasks as a `datasets.Dataset` for the trainer.
    `overrides` are settings such as `rollout.max_new_tokens=200`. Raises UserError."""
    from datasets import Dataset

    with open_host(Path(data), config_files=config_files, overrides=overrides, on_note=log.info) as host:
        tasks = host.tasks(split)
        source = _Source(host, tasks, {task.id: place for place, task in enumerate(tasks)}, tool_format)
        if taken := source.places.keys() & _sources.keys():
            raise UserError(f"task {min(taken)} is in another open dataset", where=str(data))
        _sources.update(dict.fromkeys(source.places, source))

        def rows() -> Iterator[JsonObject]:
            for task in tasks:
                messages = [message.model_dump() for message in task.prompt]
                yield {"prompt": [{**message, _TASK: task.id} for message in messages]}

        try:
            yield Dataset.from_list(list(rows()))
        finally:
            for name in source.places:
                del _sources[name]
            while _players:
                _players.popitem()[1].engine.close()


def reward_func(**columns: Any) -> list[float | None]:
    """Return the rewards of the episodes that `rollout_func` played; None: unscored."""
    return columns[_REWARD]


def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
    """Play one episode for each prompt. Lists of one entry an episode: `prompt_ids`, `completion_ids`,
    `logprobs` (nats; 0 for tokens of the environment), `env_mask` (1 for sampled tokens)."""
    names = [_task_of(prompt) for prompt in prompts]
    source = _sources[names[0]]
    player = _players.get(id(trainer)) or _open_player(trainer, source)
    settings = source.host.settings
    sampling = Sampling(
        max_new_tokens=min(settings.sampling.max_new_tokens, trainer.max_completion_length),
        temperature=trainer.temperature,
    )
    step = trainer.state.global_step
    numbers: Counter[str] = Counter()
    attempts: list[Attempt] = []
    for name in names:
        seed = derive_seed(
            trainer.args.seed, "rollout", step, name, numbers[name], trainer.accelerator.process_index
        )
        group = f"{name}@{step}"
        task = source.tasks[source.places[name]]
        attempts.append(Attempt(task=task, attempt=numbers[name], group_id=group, seed=seed))
        numbers[name] += 1
    was_training = trainer.model.training
    trainer.model.eval()  # with checkpointing on, a model in training keeps no cache
    player.engine.push()
    try:
        played = source.host.tools.io.run(
            collect(
                attempts,
                policy=player.engine.policy,
                tools=source.host.tools.pool,
                settings=replace(settings, sampling=sampling, max_context_tokens=player.max_context),
                renderer=player.renderer,
                concurrency=len(attempts),
            )
        )
    finally:
        trainer.model.train(was_training)
    rows = [training_row(trajectory, limit=trainer.max_completion_length) for trajectory in played]
    if cut := sum(row.pop("is_cut") for row in rows):
        log.warning("%d of %d episodes are longer than max_completion_length, and cut", cut, len(rows))
    return {key: [row[key] for row in rows] for key in rows[0]}


def _task_of(prompt: Any) -> str:
    name = prompt[0].get(_TASK) if isinstance(prompt, list) and prompt else None
    if name not in _sources:
        raise UserError(
            "a prompt is not of an open dataset of mcpagent",
            where=json.dumps(prompt)[:200],
            remedy="train on what mcpagent.bridges.trl.open_dataset gives, within its `with` block",
        )
    return name


def _open_player(trainer: Any, source: _Source) -> _Player:
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = trainer.processing_class
    renderer = open_renderer(tokenizer, name=tokenizer.name_or_path, tool_format=source.tool_format)
    max_context = model.config.get_text_config().max_position_embeddings
    if trainer.use_vllm:
        policy = _TrainersEngine(trainer, renderer)
        engine = RolloutEngine(policy=policy, push=lambda: None, close=lambda: None)
    else:
        engine = hf_sampler(
            model,
            decode=renderer.decode,
            stop_ids=renderer.stop_ids,
            max_context=max_context,
            slots=trainer.args.generation_batch_size,
            threads=torch.get_num_threads(),
            is_trained=True,
        )
    player = _players[id(trainer)] = _Player(engine, renderer, max_context)
    return player


class _TrainersEngine(Policy):
    """Samples with the trainer's own engine (vLLM), which has its weights already. A turn of all episodes
    is one batch."""

    def __init__(self, trainer: Any, renderer: Renderer) -> None:
        self._trainer, self._renderer = trainer, renderer

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order."""
        contexts = [list(request.token_ids) for request in requests]
        ids, logprobs = self._trainer._generate_single_turn(contexts, None, {}, 1)
        return [
            Completion(
                text=self._renderer.decode(tokens),
                token_ids=tuple(tokens),
                logprobs=tuple(given),
                finish_reason=FinishReason.STOP
                if tokens and tokens[-1] in self._renderer.stop_ids
                else FinishReason.LENGTH,
            )
            for tokens, given in zip(ids, logprobs, strict=True)
        ]

    async def release(self, episode_id: str) -> None:
        """Do nothing: no cache is kept between turns."""


def training_row(trajectory: Trajectory, *, limit: int) -> JsonObject:
    """Return what the trainer gets of one episode: at most `limit` tokens after the prompt. An unscored one
    has no token in the loss."""
    sample, is_scored = sample_from_trajectory(trajectory), trajectory.reward is not None
    start = len(trajectory.turns[0].added_token_ids) if trajectory.turns else 0
    kept = slice(start, start + limit)
    return {
        "prompt_ids": list(sample.token_ids_T[:start]),
        "completion_ids": list(sample.token_ids_T[kept]),
        "logprobs": list(sample.sampler_logprobs_T[kept]),
        "env_mask": [int(is_sampled and is_scored) for is_sampled in sample.loss_mask_T[kept]],
        _REWARD: trajectory.reward,
        "is_cut": len(sample) - start > limit,
    }
