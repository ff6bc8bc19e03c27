"""Train and evaluate language-model agents on MCP tool servers. Its names are the Python API (docs/api.md).

A name is imported when it is first used, so that `import mcpagent` loads none of what is behind it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpagent.config.loader import load_train_config as load_train_config
    from mcpagent.config.schema import ServerSection as ServerSection
    from mcpagent.config.schema import ToolsConfig as ToolsConfig
    from mcpagent.config.schema import TrainConfig as TrainConfig
    from mcpagent.core.records import Metric as Metric
    from mcpagent.core.tasks import Task as Task
    from mcpagent.core.tools import ToolCall as ToolCall
    from mcpagent.core.tools import ToolResult as ToolResult
    from mcpagent.core.tools import ToolSpec as ToolSpec
    from mcpagent.core.trajectory import Completion as Completion
    from mcpagent.core.trajectory import RewardTerm as RewardTerm
    from mcpagent.core.trajectory import StopReason as StopReason
    from mcpagent.core.trajectory import Trajectory as Trajectory
    from mcpagent.core.trajectory import TrajectoryGroup as TrajectoryGroup
    from mcpagent.core.trajectory import Turn as Turn
    from mcpagent.env.episode import Episode as Episode
    from mcpagent.env.episode import EpisodeLimits as EpisodeLimits
    from mcpagent.errors import EpisodeError as EpisodeError
    from mcpagent.errors import MCPAgentError as MCPAgentError
    from mcpagent.errors import RunError as RunError
    from mcpagent.errors import UserError as UserError
    from mcpagent.evaluate.compare import compare as compare
    from mcpagent.evaluate.summary import EvalSummary as EvalSummary
    from mcpagent.evaluate.summary import summarise as summarise
    from mcpagent.policy.contract import CompletionRequest as CompletionRequest
    from mcpagent.policy.contract import Policy as Policy
    from mcpagent.policy.contract import Sampling as Sampling
    from mcpagent.policy.scripted import GoldPolicy as GoldPolicy
    from mcpagent.policy.scripted import ScriptedPolicy as ScriptedPolicy
    from mcpagent.rollout.collector import AgentSettings as AgentSettings
    from mcpagent.rollout.collector import Attempt as Attempt
    from mcpagent.rollout.collector import attempts as attempts
    from mcpagent.rollout.collector import collect as collect
    from mcpagent.rollout.collector import run_attempt as run_attempt
    from mcpagent.run.evaluate import evaluate_model
    from mcpagent.run.rollout import rollout as rollout
    from mcpagent.run.train import train as train
    from mcpagent.servers.provider import builtin_servers as builtin_servers
    from mcpagent.storage.datasets import read_tasks as read_tasks
    from mcpagent.storage.trajectories import read_trajectories as read_trajectories
    from mcpagent.storage.trajectories import write_trajectories as write_trajectories
    from mcpagent.tools.pool import ToolPool as ToolPool
    from mcpagent.tools.servers_config import load_servers as load_servers
    from mcpagent.train.health import Callback as Callback
    from mcpagent.train.health import StepReport as StepReport

    evaluate = evaluate_model

__version__ = "0.1.0"

# By module, the names that it gives to the API.
_HOMES = {
    "config.loader": ("load_train_config",),
    "config.schema": ("ServerSection", "ToolsConfig", "TrainConfig"),
    "core.records": ("Metric",),
    "core.tasks": ("Task",),
    "core.tools": ("ToolCall", "ToolResult", "ToolSpec"),
    "core.trajectory": ("Completion", "RewardTerm", "StopReason", "Trajectory", "TrajectoryGroup", "Turn"),
    "env.episode": ("Episode", "EpisodeLimits"),
    "errors": ("EpisodeError", "MCPAgentError", "RunError", "UserError"),
    "evaluate.compare": ("compare",),
    "evaluate.summary": ("EvalSummary", "summarise"),
    "policy.contract": ("CompletionRequest", "Policy", "Sampling"),
    "policy.scripted": ("GoldPolicy", "ScriptedPolicy"),
    "rollout.collector": ("AgentSettings", "Attempt", "attempts", "collect", "run_attempt"),
    "storage.datasets": ("read_tasks",),
    "storage.trajectories": ("read_trajectories", "write_trajectories"),
    "tools.pool": ("ToolPool",),
    "servers.provider": ("builtin_servers",),
    "tools.servers_config": ("load_servers",),
    "train.health": ("Callback", "StepReport"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

# These jobs share their name with the package of their parts. `mcpagent.train` is always that package,
# whatever was imported first, and calling the package runs the job.
_JOBS = {
    "train": ("run.train", "train"),
    "evaluate": ("run.evaluate", "evaluate_model"),
    "rollout": ("run.rollout", "rollout"),
}


class _Job(ModuleType):
    """A package that is called as the function in `_JOBS`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, function = _JOBS[self.__name__.rpartition(".")[2]]
        return getattr(import_module(f"{__name__}.{module}"), function)(*args, **kwargs)


for _package in _JOBS:
    import_module(f"{__name__}.{_package}").__class__ = _Job


def __getattr__(name: str) -> Any:
    """The name from its module, kept here afterwards."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
