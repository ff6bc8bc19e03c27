"""The SkyRL engine: a run of mcpagent trained by SkyRL on a Ray cluster, into a run folder like any other."""
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpagent.config.loader import dump_config
from mcpagent.config.schema import ToolsConfig, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import ENV_ID
from mcpagent.engines.skyrl.config import translate
from mcpagent.engines.skyrl.record import FOLDER, import_checkpoints, last_saved_step, write_records
from mcpagent.errors import RunError, UserError
from mcpagent.reward.terms import load_reward
from mcpagent.run.episodes import evaluated_file, open_tasks
from mcpagent.run.lifecycle import TrainOutcome, Watch, check_same_grader, logged, outcome_of
from mcpagent.run.policies import pinned_model
from mcpagent.run.train import open_session
from mcpagent.storage.checkpoints import choose_checkpoint
from mcpagent.storage.datasets import find_dataset
from mcpagent.storage.packages import installed_version, missing, missing_error
from mcpagent.storage.run_folder import RunFolder, run_log, step_of
from mcpagent.tools.setup import open_tools
from mcpagent.train.start import settle_start

if TYPE_CHECKING:
    from mcpagent.storage.runs import RunSession

OLDEST_PYTHON = (3, 12)
_NO_GPU = "no SkyRL trainer step runs without a GPU"
AT_LEAST_ONCE = (
    "after a lost worker, episodes are played again: calls are made at least once, so servers with lasting "
    "effects want isolation episode"
)


class SkyrlEngine:
    """SkyRL on Ray. Its trainer needs CUDA devices; its configuration, episodes and credit need none."""

    name = "skyrl"
    notes: Sequence[str] = (f"{_NO_GPU}; {AT_LEAST_ONCE}",)

    def why_not(self) -> UserError | None:
        """SkyRL itself, and a GPU here or a cluster to join."""
        if (missing := why_not_installed()) is not None:
            return missing
        import torch

        if not torch.cuda.is_available() and "RAY_ADDRESS" not in os.environ:
            return UserError(
                f"{_NO_GPU}, and this machine shows none",
                where="engine: skyrl",
                remedy="set RAY_ADDRESS to a cluster with GPUs, or use engine native",
            )
        return None

    def resolved(self, config: TrainConfig, *, run_dir: Path) -> JsonObject:
        """SkyRL's whole configuration; without SkyRL here, the part that mcpagent sets."""
        settings = self._settings(config, run_dir=run_dir)
        environment = env_settings(config, run_dir=run_dir)
        if why_not_installed() is not None:
            return {**settings, f"environment.skyrl_gym.{ENV_ID}": environment}
        from dataclasses import asdict

        from mcpagent.engines.skyrl.task import checked_config

        return asdict(checked_config(settings, environment))

    def run(self, config: TrainConfig, *, resume: bool = False, watch: Watch | None = None) -> TrainOutcome:
        """Train on Ray. The run folder must be one that every node of the cluster sees."""
        watch = watch or Watch()
        config = pinned_model(config, on_note=watch.note)
        translate(config)
        for note in self.notes:
            watch.note(note)
        if (missing := self.why_not()) is not None:
            raise missing
        with open_session(config, None, resume=resume, beside=()) as session:
            run = RunFolder(session.folder)
            watch.on_folder(run.path)
            with run_log(run.path) as log:
                watch = logged(watch, log)
                config = config.model_copy(update={"output_dir": str(run.path.parent), "name": run.path.name})
                tasks = self._prepare(config, run, session, resume=resume, watch=watch)
                watch.on_start(len(run.metrics()), config.total_steps(n_tasks=tasks))
                start = settle_start(config, run.path, goes_on=False, on_note=watch.note)
                try:
                    model = config.model.model_copy(update={"name": start.base.place})
                    self._train(config.model_copy(update={"model": model}), run)
                finally:
                    import_checkpoints(run, start=start)
                steps = len(run.metrics())
                if not run.all_checkpoints():
                    raise RunError("SkyRL wrote no checkpoint", where=str(run.path / FOLDER))
                for record in run.metrics():
                    watch.on_step(record)
                session.end("completed")
                return _outcome(run, steps)

    def _settings(self, config: TrainConfig, *, run_dir: Path) -> JsonObject:
        folder = run_dir.resolve() / FOLDER
        validation = [] if not config.training.eval_every else [str(folder / "validation.jsonl")]
        return {
            **translate(config),
            "data.train_data": [str(folder / "train.jsonl")],
            "data.val_data": validation,
            "trainer.ckpt_path": str(folder / "ckpts"),
            "trainer.export_path": str(folder / "exports"),
            "trainer.log_path": str(run_dir.resolve() / "logs"),
            "trainer.project_name": config.tracking.project,
            "trainer.run_name": run_dir.name,
        }

    def _prepare(
        self, config: TrainConfig, run: RunFolder, session: RunSession, *, resume: bool, watch: Watch
    ) -> int:
        """Return the folder and the records as SkyRL is to find them; how many tasks there are to train
        on."""
        source, held = find_dataset(config.data.train, split="train"), evaluated_file(config)
        with (
            open_tasks(config, source, on_note=watch.note) as tasks,
            open_tools(config.tools, on_note=watch.note) as tools,
        ):
            if len(tasks) < config.training.batch_size:
                raise UserError(
                    f"a step takes {config.training.batch_size} prompts, and there are {len(tasks)} tasks",
                    where="training.batch_size",
                    remedy="lower it, or make more tasks",
                )
            if not resume:
                manifest = {
                    "seed": config.seed,
                    "engine": {"name": self.name, "version": installed_version("skyrl")},
                    "data": {"train": str(source), "tasks": len(tasks), "sha256": tasks.sha256},
                    **tools.as_json(),
                    "reward": load_reward(config.reward).as_json(),
                }
                RunFolder.create(run.path, config_yaml=dump_config(config), manifest=manifest)
            else:
                check_same_grader(run)
                run.truncate_after(last_saved_step(run))
            session.begin(config.total_steps(n_tasks=len(tasks)))
            folder = run.path / FOLDER
            folder.mkdir(exist_ok=True)
            write_records(folder / "train.jsonl", tasks)
            if held is not None:
                with open_tasks(config, held) as measured:
                    write_records(folder / "validation.jsonl", measured)
            return len(tasks)

    def _train(self, config: TrainConfig, run: RunFolder) -> None:
        import ray
        from skyrl.train.utils.utils import initialize_ray

        from mcpagent.engines.skyrl.task import checked_config, train_task

        task: Any = train_task
        settings = self._settings(config, run_dir=run.path)
        cfg = checked_config(settings, env_settings(config, run_dir=run.path))
        initialize_ray(cfg)
        try:
            ray.get(task.remote(cfg, str(run.path.resolve())))
        except ray.exceptions.RayTaskError as error:
            raise RunError(f"the training task failed: {error.cause}", where=str(run.logs)) from error
        finally:
            ray.shutdown()


ENGINE = SkyrlEngine()


def why_not_installed() -> UserError | None:
    """Return what SkyRL lacks here, and the command that installs it; None if it is installed."""
    if sys.version_info < OLDEST_PYTHON:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return UserError(
            f"SkyRL needs Python 3.12 or later, and this is {version}",
            where="engine: skyrl",
            remedy="an environment of its own holds SkyRL and this package: docs/scale.md, SkyRL",
        )
    return missing_error(["skyrl"], use="SkyRL") if missing("skyrl") else None


def env_settings(config: TrainConfig, *, run_dir: Path) -> JsonObject:
    """`env_config` of `MCPToolEnv`: the whole section `tools`, with paths that mean the same elsewhere."""
    return {
        "tools": _absolute(config.tools).model_dump(mode="json"),
        "tool_format": config.rollout.tool_format,
        "log_dir": str(run_dir.resolve() / "logs"),
    }


def _absolute(tools: ToolsConfig) -> ToolsConfig:
    paths = {name: getattr(tools, name) for name in ("servers", "cassette")}
    update: dict[str, Any] = {
        name: str(Path(path).resolve()) for name, path in paths.items() if path is not None
    }
    update["per_server"] = {
        name: section.model_copy(update={"workspace": str(Path(section.workspace).resolve())})
        if section.workspace is not None
        else section
        for name, section in tools.per_server.items()
    }
    return tools.model_copy(update=update)


def _outcome(run: RunFolder, steps: int) -> TrainOutcome:
    last = run.all_checkpoints()[-1]
    best = choose_checkpoint(run.path).path
    return outcome_of(run, step_of(last) or steps, best_step=step_of(best), stop_reason="completed")
