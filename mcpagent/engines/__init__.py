"""What trains a run: engines by name, and whether the one that is named can run here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.registry import Family
from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.run.lifecycle import TrainOutcome, Watch


class Engine(Protocol):
    """One way to train. `name` is that of `ENGINES`; `notes` are what a person is to know of a run on it."""

    name: str
    notes: Sequence[str]

    def why_not(self) -> UserError | None:
        """Return what is missing here to run it; None if nothing is."""
        ...

    def resolved(self, config: TrainConfig, *, run_dir: Path) -> JsonObject:
        """Return the run in the engine's own settings, all of them. Raises UserError."""
        ...

    def run(self, config: TrainConfig, *, resume: bool, watch: Watch) -> TrainOutcome:
        """Train to the end, into a run folder. Raises UserError before anything is written."""
        ...


class NativeEngine:
    """mcpagent's own trainer."""

    name = "native"
    notes: Sequence[str] = ()  # the plan says it all

    def why_not(self) -> UserError | None:
        """Needs the packages of the extra hf."""
        from mcpagent.storage.packages import missing, missing_error

        return missing_error(["hf"], use="training") if missing("hf") else None

    def resolved(self, config: TrainConfig, *, run_dir: Path) -> JsonObject:
        """Return the configuration itself."""
        del run_dir
        return config.model_dump(mode="json")

    def run(self, config: TrainConfig, *, resume: bool = False, **more: Any) -> TrainOutcome:
        """Run it in this process, or in those of torchrun."""
        from mcpagent.run.train import run_training

        return run_training(config, resume=resume, **more)


NATIVE = NativeEngine()
ENGINES = Family(
    "engine",  # engine: instances of `Engine`
    {
        "native": f"{__name__}:NATIVE",  # this process, or those of torchrun
        "skyrl": f"{__name__}.skyrl.engine:ENGINE",  # SkyRL on a Ray cluster
    },
)


def choose(config: TrainConfig, *, is_dry_run: bool = False) -> Engine:
    """Return the engine that `engine` names. Raises UserError if it cannot run here, unless the run is only
    to be shown."""
    engine: Engine = ENGINES.load(config.engine)
    if not is_dry_run and (problem := engine.why_not()) is not None:
        raise problem
    return engine
