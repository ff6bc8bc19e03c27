"""One quickstart: its folder, its configurations, and how far it has come."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.demo import pretrained as of_pretrained
from mcpagent.demo.explored import ExploredServers, named_servers
from mcpagent.demo.pretrained import Pretrained
from mcpagent.errors import UserError
from mcpagent.storage.atomic import write_text
from mcpagent.storage.locks import LOCK_NAME
from mcpagent.storage.run_folder import step_name
from mcpagent.tools.setup import open_tools

SPLITS = {"train": 1600, "validation": 64, "heldout": 240}
SAMPLED_ATTEMPTS = 2  # for each held-out task at temperature 1
LEDGER_NAME = "ledger.jsonl"
# The entities of a user's servers are few: the demonstrations have others each time, and other flaws.
_EXPLORED_WARM_START = [
    "sft.augmentation=mcpagent.demo.warm_start:renaming",
    "sft.demonstrations_per_task=4",
    "sft.stop_early=0.85",
    "rollout.max_new_tokens=96",  # as below, so that evaluations of both can be compared
    "sft.curriculum_steps=250",  # names and texts are longer than the tickers of the built-in servers
    "training.max_steps=950",
]
# One update a batch (the default): with four, random rewards alone gained 10.8 points.
_EXPLORED_GRPO = [
    "training.max_steps=60",
    "training.dynamic_sampling=2",  # the warm start knows one class: half of the groups are uniform
    "rollout.max_new_tokens=96",
]
_PROGRESS_NAME = "quickstart.json"
# What stands in the folder before the GRPO run makes it its run folder.
BESIDE = (
    "data",
    "pace",
    "warm_start",
    "eval",
    "trajectories",
    _PROGRESS_NAME,
    LEDGER_NAME,
    f"{LEDGER_NAME}.env",
)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Functions that are told what goes on. `begin(title, total)` opens a stage and returns how to advance
    it."""

    begin: Callable[[str, int | None], Any]
    note: Callable[[str], None] = lambda _: None


@dataclass
class Progress:
    """The stages that are finished: seconds, and how long the ledger was when the stage began. `pace` is what
    was measured of this machine under the settings of the user; `fitted` are the settings that follow from
    it, `said_s` is how long all was said to take, `untrained_tasks` on how many the model is evaluated as it
    is; `skips_grpo` if there is no time for it."""

    path: Path
    seed: int
    servers: str | None = None  # `named_servers`; None: the built-in servers
    model: str | None = None  # None: the embedded one
    pace: JsonObject | None = None
    fitted: dict[str, list[str]] | None = None
    said_s: float | None = None
    untrained_tasks: int | None = None
    skips_grpo: bool = False
    trained: str | None = None  # the checkpoint that GRPO has left
    wall_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    ledger_bytes: dict[str, int] = field(default_factory=dict)
    catalog_hash: str = ""

    def save(self) -> None:
        document = {k: v for k, v in vars(self).items() if k != "path"}
        write_text(self.path, json.dumps(document, indent=1) + "\n", is_settings=True)

    @classmethod
    def at(cls, path: Path, *, seed: int, servers: str | None = None, model: str | None = None) -> Progress:
        """Return the progress of an earlier call, or a new one. Raises UserError if that call had another
        seed, other servers or another model."""
        if not path.is_file():
            return cls(path, seed, servers, model)
        progress = cls(path, **json.loads(path.read_text(encoding="utf-8")))
        begun = {
            "servers": ("the built-in servers", f"--servers {progress.servers}", servers),
            "seed": ("", f"seed {progress.seed}, not {seed}", seed),
            "model": ("the embedded model", f"--model {progress.model}", model),
        }
        for name, (if_none, said, now) in begun.items():
            before = getattr(progress, name)
            if before != now:
                raise UserError(
                    f"this quickstart was begun with {if_none if before is None else said}",
                    where=str(path.parent),
                    remedy="use the same, or another --out",
                )
        return progress


@dataclass(frozen=True)
class QuickstartJob:
    """One quickstart: where it is, its configurations, and who is told."""

    out: Path
    seed: int
    warm: TrainConfig
    grpo: TrainConfig
    ledger: Path
    progress: Progress
    stages: Stages
    explored: ExploredServers | None = None  # whose tasks come from exploring; None: the built-in ones
    pretrained: Pretrained | None = None  # None: the embedded model
    counts: Mapping[str, int] = field(default_factory=lambda: SPLITS)  # tasks of each split, at most

    @property
    def model_name(self) -> str:
        """Return the name of the model in titles."""
        return "the embedded model" if self.pretrained is None else Path(self.pretrained.model).name

    @property
    def with_a_model(self) -> str:
        """Return the command that does the same with a pretrained model."""
        return "mcpagent quickstart --model MODEL" if self.explored is None else self.explored.with_a_model

    def tasks_of(self, split: str) -> Path:
        """Return the file of the tasks of a split."""
        return self.out / "data" / f"{split}.jsonl"

    @property
    def home(self) -> Path:
        """The folder of the run that is evaluated and reported: that of GRPO, or of the warm start alone."""
        return self.out / "warm_start" if self.progress.skips_grpo else self.out

    @property
    def warm_steps(self) -> int:
        return self.warm.total_steps(n_tasks=self.counts["train"])

    @property
    def warm_checkpoint(self) -> Path:
        """The checkpoint that the warm start leaves."""
        return self.out / "warm_start" / "checkpoints" / step_name(self.warm_steps)

    @contextmanager
    def stage(
        self, name: str, title: str, total: int | None, *, resumes: bool = False, shows: bool = True
    ) -> Iterator[Any]:
        """Times a stage and, if it `shows`, opens a bar. A stage that was cut off is done again as a
        whole, so the servers' ledger is rolled back to where it began; one that `resumes` does that itself,
        to its checkpoint."""
        begun = self.progress.ledger_bytes.setdefault(name, _size(self.ledger))
        self.progress.save()
        if not resumes:
            from mcpagent.train.actor import roll_back  # and with it torch, which a check does without

            roll_back(self.ledger, begun)
        started, began = time.process_time(), time.monotonic()
        with self.stages.begin(title, total) if shows else nullcontext() as advance:
            yield advance
        self.progress.cpu_s[name] = self.progress.cpu_s.get(name, 0.0) + time.process_time() - started
        self.progress.wall_s[name] = self.progress.wall_s.get(name, 0.0) + time.monotonic() - began
        self.progress.save()

    def refitted(self) -> QuickstartJob:
        """Return the job with its settings as the pace of this machine makes them."""
        warm, grpo = _configs(self.out, self.seed, self.explored, self.pretrained, self.progress.fitted)
        job = replace(self, warm=warm)
        return replace(job, grpo=grpo.with_settings(model={"name": str(job.warm_checkpoint)}))


def parts(advance: Any) -> Callable[[str, int, int], None]:
    """Return what shows how far a part of a run is next to the bar of `advance` (`Watch.on_part`)."""
    return lambda what, done, total: advance(0, note=f"{what} {done}/{total}")


def check_folder(out: Path, *, seed: int, servers: str | None = None, model: str | None = None) -> Progress:
    """Return how far the quickstart in `out` has come; a new one if there is nothing yet. Raises UserError if
    `out` is something else, or was begun with another seed, other servers or another model."""
    if out.exists() and not out.is_dir():
        raise UserError("is a file, not a folder", where=f"--out {out}", remedy="name another one with --out")
    progress_file = out / _PROGRESS_NAME
    is_foreign = out.is_dir() and any(path.name != LOCK_NAME for path in out.iterdir())
    if is_foreign and not progress_file.is_file():
        raise UserError(
            "there is something here that is not a quickstart",
            where=str(out),
            remedy="name another folder with --out",
        )
    return Progress.at(progress_file, seed=seed, servers=servers, model=model)


def open_job(
    out: Path,
    *,
    seed: int,
    stages: Stages,
    explored: ExploredServers | None = None,
    pretrained: Pretrained | None = None,
) -> QuickstartJob:
    """Return a new quickstart in the folder `out`, or the one that is there: on the built-in servers, or on
    those that are to be `explored`; with the embedded model, or a `pretrained` one. Raises UserError if `out`
    holds something else or was begun otherwise, or the tools have changed since."""
    servers = explored and named_servers(str(explored.tools.servers), explored.heldout_servers)
    model = None if pretrained is None else pretrained.model
    progress = check_folder(out, seed=seed, servers=servers, model=model)
    warm, grpo = _configs(out, seed, explored, pretrained, progress.fitted)
    with open_tools(grpo.tools, on_note=stages.note) as opened:
        current = opened.pool.catalog_hash
    if progress.catalog_hash not in ("", current):
        raise UserError(
            "the tools have changed since this quickstart was begun, and its tasks, tokenizer and model are "
            "of those of then",
            where=str(out),
            remedy="begin another one with --out",
        )
    progress.catalog_hash = current
    progress.save()
    named = os.environ.get("MCPAGENT_CALL_LEDGER")
    job = QuickstartJob(
        out,
        seed,
        warm,
        grpo,
        Path(named or out / LEDGER_NAME),
        progress,
        stages,
        explored,
        pretrained,
        SPLITS if pretrained is None else of_pretrained.SPLITS,
    )
    return job.refitted()


def _configs(
    out: Path,
    seed: int,
    explored: ExploredServers | None,
    pretrained: Pretrained | None,
    fitted: Mapping[str, Sequence[str]] | None,
) -> tuple[TrainConfig, TrainConfig]:
    """The settings of the warm start and of GRPO."""
    # It evaluates by itself, before and after GRPO, greedily and not.
    data = f"data.train={json.dumps(str(out / 'data' / 'train.jsonl'))}"
    settings = [f"seed={seed}", data, "training.eval_samples=0"]
    if pretrained is not None:
        warm, grpo = pretrained.configs(settings, fitted or {})
    else:
        of_warm, of_grpo = ([], []) if explored is None else (_EXPLORED_WARM_START, _EXPLORED_GRPO)
        warm = load_train_config([resource_path("configs/warm_start.yaml")], [*settings, *of_warm]).config
        grpo = load_train_config([resource_path("configs/quickstart.yaml")], [*settings, *of_grpo]).config
    if explored is not None:
        warm, grpo = (config.model_copy(update={"tools": explored.tools}) for config in (warm, grpo))
    return warm, grpo


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
