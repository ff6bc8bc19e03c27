"""A run on SkyRL as a run folder: its records as SkyRL reads them, its metrics, its checkpoints."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import ENV_ID, Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.summary import UNTRAINED, summarise
from mcpagent.run.episodes import evaluated_file
from mcpagent.storage.atomic import write_text
from mcpagent.storage.checkpoints import ADAPTER_FILE, STATE_FOLDER, sealed_dir
from mcpagent.storage.datasets import write_jsonl
from mcpagent.storage.lineage import write_lineage
from mcpagent.storage.packages import provenance
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.grpo import episode_metrics, success_rate, success_rate_of_all
from mcpagent.train.start import Start, lineage_of
from mcpagent.train.trackers import TrackedRun, open_trackers

FOLDER = "skyrl"  # in the run folder: what SkyRL reads and writes
_STEP = re.compile(r"global_step_(\d+)")
# The names that native runs have for what SkyRL measures.
_METRICS = {
    "policy/policy_loss": "loss",
    "policy/policy_kl": "kl",
    "policy/policy_entropy": "entropy",
    "policy/raw_grad_norm": "grad_norm",
    "policy/loss_metrics/clip_ratio": "clip_fraction",
    "policy/rollout_train_logprobs_abs_diff_mean": "logprob_drift_mean",
    "policy/rollout_train_logprobs_abs_diff_max": "logprob_drift_max",
    "critic/critic_loss": "value_loss",
    "loss/avg_kl": "kl",
    "trained_samples": "trained_samples",
}


def write_records(path: Path, tasks: Iterable[Task]) -> None:
    """Write the dataset as SkyRL reads it, a record a line."""
    write_jsonl(path, map(_record, tasks))


def _record(task: Task) -> JsonObject:
    """The ground truth is JSON text: SkyRL's reader gives every record of a file the same columns with the
    same types, and ours have neither."""
    record = task.model_dump(mode="json", exclude_none=True)
    spec = record["reward_spec"]
    return {
        "data_source": record["data_source"],
        "env_class": ENV_ID,
        "prompt": [{"role": m["role"], "content": m["content"]} for m in record["prompt"]],
        "reward_spec": {
            "method": spec["method"],
            "ground_truth": json.dumps(spec["ground_truth"], ensure_ascii=False),
        },
        "extra_info": json.dumps(record.get("extra_info", {}), ensure_ascii=False),
    }


class RunRecorder:
    """A tracker in SkyRL's words: each step becomes a line of metrics.jsonl and a file of trajectories, with
    the names that native runs use. `take` gives the episodes played since it was last asked, by phase."""

    backend = "mcpagent"  # SkyRL asks

    def __init__(
        self,
        run: RunFolder,
        config: TrainConfig,
        *,
        take: Callable[[str], list[Trajectory]],
        state: Callable[[], JsonObject],
    ) -> None:
        self._run, self._config, self._take, self._state = run, config, take, state
        self._trackers = open_trackers(
            config.tracking.backends,
            TrackedRun.of(config, run),
            note=logging.getLogger("mcpagent").info,
        )

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool = False, **_: Any) -> None:
        """The end of a step; step 0 is the evaluation of the untrained model."""
        del commit
        episodes, evaluated = self._take("train"), self._take("eval")
        if not step:
            if evaluated:
                self._write_untrained(evaluated)
            return
        record: JsonObject = {"step": step, **episode_metrics(episodes), **_renamed(data), **self._state()}
        if evaluated:
            scored = [t for t in evaluated if t.is_success is not None]
            record |= {
                "validation_success": success_rate(scored) if scored else None,
                "validation_success_all": success_rate_of_all(evaluated),
                "validation_unscored": len(evaluated) - len(scored),
            }
        record["skyrl"] = {name: value for name, value in data.items() if _is_number(value)}
        write_trajectories(self._run.trajectory_stem(step), episodes)
        self._run.append_metrics(record)
        self._trackers.log(step, record, episodes)

    def log_exception(self, error: BaseException, step: int | None = None) -> None:
        """SkyRL raises the error again; the driver says it."""
        del error, step

    def finish(self) -> None:
        """Take note that nothing more will come."""
        self._trackers.close()

    def _write_untrained(self, evaluated: list[Trajectory]) -> None:
        path = evaluated_file(self._config)
        facts = {**provenance(), "step": 0, "split": "validation", "samples": 1, "temperature": 0.0}
        facts["dataset"] = {"path": str(path), "tasks": len({t.task_id for t in evaluated})}
        result = summarise(evaluated).with_provenance(facts)
        path = self._run.evaluations / f"{UNTRAINED}.json"
        write_text(path, result.model_dump_json(indent=1) + "\n")


def _renamed(data: Mapping[str, Any]) -> JsonObject:
    return {name: float(data[theirs]) for theirs, name in _METRICS.items() if _is_number(data.get(theirs))}


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(float(value))  # type: ignore[arg-type]


def last_saved_step(run: RunFolder) -> int:
    """Return the step that SkyRL goes on from; 0 if it saved none."""
    path = run.path / FOLDER / "ckpts" / "latest_ckpt_global_step.txt"
    return int(path.read_text(encoding="utf-8")) if path.is_file() else 0


def import_checkpoints(run: RunFolder, *, start: Start) -> list[Path]:
    """Make SkyRL's exports of models and of adapters checkpoints of the run; those that it has already stay.
    Adapters stand on the `start` of the run, whose tokenizer goes with them."""
    made: list[Path] = []
    for step, source in sorted(_exports(run.path / FOLDER).items()):
        target = run.checkpoint_dir(step)
        if target.exists():
            continue
        with sealed_dir(target) as draft:
            shutil.copytree(source, draft, dirs_exist_ok=True)
            is_adapter = (draft / ADAPTER_FILE).is_file()
            if is_adapter:
                _complete_adapter(draft, base=start.base.place)
            write_lineage(draft, lineage_of(start, target, is_adapter=is_adapter))
            state = {"step": step, "best_step": _best_step(run, until=step)}
            folder = draft / STATE_FOLDER
            folder.mkdir(exist_ok=True)
            document = json.dumps({"engine": "skyrl", "state": state}) + "\n"
            (folder / "state.json").write_text(document, encoding="utf-8")
        made.append(target)
    return made


def _exports(folder: Path) -> dict[int, Path]:
    """Return, by step, the folder with a model or, if only adapters were trained, with those."""
    exports: dict[int, Path] = {}
    for place, inner in (("ckpts", "policy/lora_adapter"), ("exports", "policy")):
        for path in (folder / place).glob("global_step_*"):
            match = _STEP.fullmatch(path.name)
            weights = path / inner
            if match and list(weights.glob("*.safetensors")):
                exports[int(match[1])] = weights
    return exports


def _complete_adapter(draft: Path, *, base: str) -> None:
    path = draft / ADAPTER_FILE
    document = json.loads(path.read_text(encoding="utf-8"))
    document["base_model_name_or_path"] = base
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if not (draft / "tokenizer_config.json").exists():
        from mcpagent.models.load import load_tokenizer

        load_tokenizer(base).save_pretrained(draft)


def _best_step(run: RunFolder, *, until: int) -> int | None:
    """Return the step of the best evaluation so far that has a checkpoint."""
    kept = _exports(run.path / FOLDER)
    scores = [
        (record["validation_success_all"], -record["step"])
        for record in run.metrics()
        if "validation_success_all" in record and record["step"] <= until and record["step"] in kept
    ]
    return -max(scores)[1] if scores else None
