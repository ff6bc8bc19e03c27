"""What runs inside SkyRL's Ray task: its experiment and trainer on a run folder of mcpagent."""
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

import ray
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.config.config import EnvironmentConfig, SkyRLGymConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.utils import validate_cfg

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import ENV_ID
from mcpagent.core.trajectory import Trajectory
from mcpagent.engines.skyrl.credit import credit_batch, weigh_advantages
from mcpagent.engines.skyrl.env import register
from mcpagent.engines.skyrl.generator import MCPGenerator
from mcpagent.engines.skyrl.record import RunRecorder
from mcpagent.env.tool_format import open_renderer
from mcpagent.errors import UserError
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.objective.grading import GradeSettings
from mcpagent.train.settings import grade_settings, update_settings
from mcpagent.train.update import UpdateSettings

# SkyRL reads the types of its fields from the classes, not from text: hence no class statements here.
GymConfig = make_dataclass(
    "GymConfig", [(ENV_ID, dict[str, Any], field(default_factory=dict))], bases=(SkyRLGymConfig,)
)
_EnvSection = make_dataclass(
    "EnvSection", [("skyrl_gym", GymConfig, field(default_factory=GymConfig))], bases=(EnvironmentConfig,)
)
_TrainConfig: Any = make_dataclass(
    "TrainConfig",
    [("environment", _EnvSection, field(default_factory=_EnvSection))],
    bases=(SkyRLTrainConfig,),
)


def skyrl_config(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Any:
    """SkyRL's configuration of `settings` (dotted names) over its defaults, with `environment` for
    `MCPToolEnv`. Raises UserError for what SkyRL does not take."""
    try:
        config = _TrainConfig.from_cli_overrides(dict(settings))
    except Exception as error:
        raise UserError(f"SkyRL does not take these settings: {error}", where="skyrl.overrides") from error
    setattr(config.environment.skyrl_gym, ENV_ID, dict(environment))
    return config


def checked_config(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Any:
    """`skyrl_config`, accepted by SkyRL's own `validate_cfg`. Raises UserError."""
    config = skyrl_config(settings, environment)
    try:
        validate_cfg(config)
    except (AssertionError, ValueError, NotImplementedError) as error:
        raise UserError(f"SkyRL refuses this run: {error}", where="engine: skyrl") from error
    return config


class MCPTrainer(RayPPOTrainer):
    """SkyRL's trainer with native credit and native weights of tokens: episodes that failed, and groups whose
    attempts are all alike, are neither in a sum nor in what it is divided by."""

    native_grading: GradeSettings
    native_update: UpdateSettings

    def convert_to_training_input(self, generator_output: Any, uids: list[str]) -> Any:
        """SkyRL's batch; which rows failed or were cut goes along."""
        reasons = list(generator_output["stop_reasons"])
        batch = super().convert_to_training_input(generator_output, uids)
        batch.metadata["stop_reasons"] = reasons
        return batch

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """Native credit, and no loss if there is none."""
        credited = credit_batch(data, self.native_grading)
        self.all_metrics.update(credited)
        return data

    def _normalize_advantages(
        self, data: Any, mini_batch_boundaries: Sequence[tuple[int, int]], prompt_boundaries: Any = None
    ) -> Any:
        weigh_advantages(data, mini_batch_boundaries, self.native_update)
        return data


class MCPExperiment(BasePPOExp):
    """SkyRL's experiment on a run folder of mcpagent."""

    def __init__(self, cfg: Any, config: TrainConfig, run: RunFolder) -> None:
        self._config, self._run = config, run
        self._generator: MCPGenerator | None = None
        super().__init__(cfg)

    def _dataset(self, files: Sequence[str]) -> PromptDataset:
        # One process: SkyRL's eight would each import torch to filter a few thousand prompts.
        longest = self.cfg.trainer.max_prompt_length
        return PromptDataset(
            datasets=list(files), tokenizer=self.tokenizer, max_prompt_length=longest, num_workers=1
        )

    def get_train_dataset(self) -> PromptDataset:
        """Return the records that mcpagent wrote."""
        return self._dataset(self.cfg.data.train_data)

    def get_eval_dataset(self) -> PromptDataset | None:
        """Return the validation records; None if nothing is evaluated."""
        is_evaluating = self.cfg.trainer.eval_interval > 0 and self.cfg.data.val_data
        return self._dataset(self.cfg.data.val_data) if is_evaluating else None

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> MCPGenerator:
        """Ours."""
        config = self._config
        renderer = open_renderer(tokenizer, name=config.model.name, tool_format=config.rollout.tool_format)
        self._generator = MCPGenerator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
            renderer=renderer,
            max_open=config.rollout.num_envs,
            penalty_after_success=config.reward.penalty_after_success,
            seed=config.seed,
        )
        return self._generator

    def get_trainer(self, *args: Any, **kwargs: Any) -> MCPTrainer:
        """Ours."""
        trainer = MCPTrainer(*args, **kwargs)
        trainer.native_grading = grade_settings(self._config)
        trainer.native_update = update_settings(self._config)
        return trainer

    def get_tracker(self) -> RunRecorder:
        """Writes the run folder's records; it is made before the generator, which it asks later."""
        return RunRecorder(self._run, self._config, take=self._take, state=self._state)

    def _take(self, phase: str) -> list[Trajectory]:
        if self._generator is None:
            return []
        taken, self._generator.played[phase] = self._generator.played[phase], []
        return taken

    def _state(self) -> JsonObject:
        is_active = self._generator is not None and self._generator.penalty_active
        return {"penalty_active": is_active}


@ray.remote(num_cpus=1)
def train_task(cfg: Any, run_dir: str) -> None:
    """The run, on the node that Ray gives it: environments are registered where they are made."""
    register()
    run = RunFolder.open(Path(run_dir))
    config = load_train_config(inherited=run.config_path).config
    MCPExperiment(cfg, config, run).run()
