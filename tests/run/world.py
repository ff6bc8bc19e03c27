"""Configurations, datasets and records for the tests of whole jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.core.tasks import Task
from mcpagent.core.tools import LEDGER_ENV, NONCE_META_KEY, ToolResult
from mcpagent.servers.names import DATA_SERVERS, KEY_NAMES, live_variable
from mcpagent.storage.datasets import read_tasks, write_jsonl
from tests.env.world import make_task

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
TRAIN = SAMPLES / "train.jsonl"
# No question of the samples is answered in four tokens, and few are wanted.
SHORT = "rollout.max_new_tokens=4"


def config(*overrides: str) -> TrainConfig:
    return load_train_config([], overrides, for_training=False).config


def short_run(model: Path | str, train: Path, *overrides: str, base: Path | None = None) -> TrainConfig:
    """Two short steps that move the weights of `model` by chance, and nothing else, over the file `base`."""
    settings = [
        f"model.name={model}",
        f"data.train={train}",
        *("training.max_steps=2", "training.batch_size=2", "training.eval_every=0"),
        *("training.eval_samples=0", "rollout.group_size=2", "rollout.max_new_tokens=6"),
        *("optimization.learning_rate=0.05", "reward.control=random"),
        *overrides,
    ]
    return load_train_config([] if base is None else [base], settings).config


def with_id(task: Task, name: str) -> Task:
    spec = task.reward_spec
    truth = spec.ground_truth.model_copy(update={"task_id": name})
    return task.model_copy(update={"reward_spec": spec.model_copy(update={"ground_truth": truth})})


def task_calling(name: str, server: str, tool: str, **params: Any) -> Task:
    """A task whose gold plan is one call of whatever it is told."""
    step = {"step": 1, "server": server, "tool": tool, "params": params}
    return with_id(make_task(tool_sequence=[step], tools=["fmp.fmp_get_quote"]), name)


def dataset(path: Path, tasks: Iterable[Task]) -> Path:
    write_jsonl(path, tasks)
    return path


def samples(*, count: int) -> list[Task]:
    return list(read_tasks(TRAIN))[:count]


def three_splits(folder: Path) -> Path:
    """Two tasks each to train on, to validate with and held out."""
    tasks = samples(count=6)
    for i, split in enumerate(("train", "validation", "heldout")):
        dataset(folder / f"{split}.jsonl", tasks[2 * i : 2 * i + 2])
    return folder


def live_variables(server: str) -> tuple[str, ...]:
    """Every environment variable that the live upstream of `server` reads."""
    return *KEY_NAMES[server], *(live_variable(server, name) for name in ("BASE_URL", "RATE", "ALLOW_SEND"))


def as_processes(path: Path, environment: Mapping[str, str], *options: str) -> Path:
    """A file of servers in which the built-in ones are processes, which see these variables."""
    served = {}
    for name in DATA_SERVERS:
        variables = ("PYTHONPATH", LEDGER_ENV, *live_variables(name))
        served[name] = {
            "command": sys.executable,
            "args": ["-m", "mcpagent.cli.main", "serve", name, *options],
            "env": {variable: f"${{{variable}}}" for variable in variables if variable in environment},
        }
    path.write_text(json.dumps({"mcpServers": served}))
    return path


def fresh_adapters(base: Path, folder: Path) -> Path:
    """New adapters on `base` in PEFT format: their product is zero, so the model behaves as its base."""
    import torch

    from mcpagent.models.adapters import LoraShape, attach_lora
    from mcpagent.models.load import load_model, load_tokenizer, save_model

    model = load_model(str(base), dtype=torch.float32, device=torch.device("cpu"))
    shape = LoraShape(r=4, alpha=8, dropout=0.0, target_modules="all-linear")
    save_model(attach_lora(model, shape, seed=0), load_tokenizer(str(base)), folder)
    return folder


def nonces(results: Iterable[ToolResult]) -> list[str]:
    return [result.meta[NONCE_META_KEY] for result in results if NONCE_META_KEY in result.meta]


def ledger_nonces(path: Path) -> list[str]:
    return [json.loads(line)["nonce"] for line in path.read_text().splitlines()]
