"""SkyRL adapters: an Episode behind `skyrl_gym`'s synchronous `BaseTextEnv`, MCP tools as a `ToolGroup`.

This is the only module that imports skyrl_gym (half a CPU second). SkyRL calls `init`, `step` and `close`
from a pool of threads and ends a whole generation at the first exception, so the episodes run on one I/O
thread of this process, and a failing episode ends as an unscored one instead of raising.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry
from skyrl_gym.tools.core import ToolGroup

from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.registry import ToolFormat
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.core.trajectory import RewardTerm
from mcpagent.env.episode import Episode, EpisodeLimits, StepOutput, prompt_messages, search_turns
from mcpagent.env.offer import Discovery
from mcpagent.errors import EpisodeError, UserError
from mcpagent.reward.rule import total_reward
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.limits import CallLimits
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import builtin_servers, load_servers

ENV_ID = "MCPToolEnv"


class EnvConfig(Record):
    """The `env_config` of SkyRL (`environment.skyrl_gym.MCPToolEnv`). `servers` is the path of an `mcp.json`;
    None runs the built-in servers in this process, `limited` with their small tool sets. `tool_format` is the
    dialect in which the model is told to call tools; `discovery` and `pinned` are those of the section
    `tools`."""

    servers: str | None = None
    limited: bool = True
    tool_timeout_s: float = 30.0
    episode_timeout_s: float | None = None
    max_tool_calls: int = 64
    tool_format: ToolFormat = "auto"
    discovery: Literal["all", "search"] = "all"
    pinned: tuple[str, ...] = ()


def register() -> None:
    """Make `env_class: MCPToolEnv` known to skyrl_gym. On Ray, call it inside the remote task. Idempotent."""
    if ENV_ID not in registry:
        skyrl_gym.register(id=ENV_ID, entry_point=f"{__name__}:MCPToolEnv")


class MCPToolEnv(BaseTextEnv):
    """One episode of one dataset record. The whole reward is given at the last step."""

    def __init__(self, env_config: object = None, extras: Mapping[str, Any] | None = None) -> None:
        """`extras` are the record's other columns; SkyRL adds its own `max_turns`. Raises UserError."""
        super().__init__()
        self._config = _parse_config(env_config)
        self._extras = dict(extras or {})
        self._runtime: _Runtime | None = None
        self._episode: Episode | None = None
        self._terms: tuple[RewardTerm, ...] = ()
        self._errors: list[str] = []
        self._counts = {"turns": 0, "tool_calls": 0, "tool_errors": 0, "parse_failures": 0, "searches": 0}

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """The prompt, and the offered schemas under `tools`. Raises UserError for a record that can't be run;
        servers that fail are reported by the first step."""
        task = _task(prompt, self._extras)
        limits = EpisodeLimits(
            max_turns=self._extras.get("max_turns"),
            max_tool_calls=self._config.max_tool_calls,
            timeout_s=self._config.episode_timeout_s,
        )
        self.max_turns = min(task.truth.max_turns, limits.max_turns or task.truth.max_turns)
        discovery = None
        if self._config.discovery == "search":
            discovery = Discovery(pinned=self._config.pinned)
            self.max_turns += search_turns(task)
        messages = [_unmarked(message) for message in prompt_messages(task, limits.message_limit_chars)]
        self._runtime = _runtime(self._config)
        self._episode = Episode(
            task,
            self._runtime.pool,
            limits=limits,
            episode_id=f"{task.id}#skyrl",
            tool_format=self._config.tool_format,
            discovery=discovery,
        )
        try:
            start = self._runtime.io.run(self._episode.start())
        except EpisodeError as error:
            self._errors.append(str(error))
            return messages, {}
        return messages, {"tools": [_unmarked(schema) for schema in start.tool_schemas]}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Never raises: whatever fails ends the episode with reward 0.0 and `metadata["unscored"]`."""
        self.turns += 1
        if self._runtime is None or self._episode is None or self._errors:
            return self._unscored()
        try:
            output = self._runtime.io.run(self._episode.step(action))
            self._count(output)
            if not output.done:
                return _output(output, reward=0.0, metadata={"unscored": False})
            self._terms = self._runtime.io.run(self._episode.grade())
        except Exception as error:  # noqa: BLE001 - boundary: one exception would abort every other episode
            self._errors.append(f"{type(error).__name__}: {error}")
            return self._unscored()
        self._errors += self._episode.errors
        reward = total_reward(self._terms)
        metadata = {
            "unscored": reward is None,
            "stop_reason": str(output.stop_reason),
            "terms": {term.name: term.value for term in self._terms},
            "errors": list(self._errors),
        }
        return _output(output, reward=0.0 if reward is None else reward, metadata=metadata)

    def close(self) -> None:
        """End the episode's own server instances."""
        if self._runtime is not None and self._episode is not None:
            self._runtime.io.run(self._episode.close())

    def get_metrics(self) -> dict[str, Any]:
        """Numbers of the episode: counts, reward terms that ran, and whether it was scored."""
        scored = total_reward(self._terms) is not None
        terms = {term.name: term.value for term in self._terms if term.value is not None}
        # A mean over episodes has those alone that report the number: `success` that of the scored ones.
        success = {"success_all": terms.get("success", 0.0) if scored else 0.0}
        return {**self._counts, **terms, **success, "unscored": float(not scored)}

    def _count(self, output: StepOutput) -> None:
        self._counts["turns"] += 1
        results = [result for result in output.tool_results if not result.is_search]
        self._counts["tool_calls"] += len(results)
        self._counts["searches"] += len(output.tool_results) - len(results)
        self._counts["tool_errors"] += sum(result.is_error for result in results)
        self._counts["parse_failures"] += len(output.parse_failures)

    def _unscored(self) -> BaseTextEnvStepOutput:
        errors = self._errors or ["step was called before init"]
        return BaseTextEnvStepOutput(
            observations=[],
            reward=0.0,
            done=True,
            metadata={"unscored": True, "errors": errors},
            postprocessed_action=None,
        )


class MCPToolGroup(ToolGroup):
    """The MCP tools for other environments of skyrl_gym: `execute_tool(name, {"argument": value})` gives the
    text of the result. A session of its own; close it."""

    def __init__(self, env_config: object = None, *, name: str = "mcp") -> None:
        self._runtime = _runtime(_parse_config(env_config))
        self._session = self._runtime.pool.session()
        self._made = 0
        super().__init__(name)

    def _register_tools(self) -> None:
        for name, spec in self._runtime.pool.tools.items():
            self._tool_registry[name] = self._tool(spec)

    def _tool(self, spec: ToolSpec) -> Callable[[JsonObject], str]:
        def call(arguments: JsonObject) -> str:
            self._made += 1
            tool_call = ToolCall(
                id=f"c{self._made}", server=spec.server, tool=spec.name, arguments=dict(arguments)
            )
            return self._runtime.io.run(self._session.call(tool_call)).content

        return call

    def close(self) -> None:
        """Close the session; the servers keep running for the other environments of this process."""
        self._runtime.io.run(self._session.close())


@dataclasses.dataclass(frozen=True)
class _Runtime:
    """The I/O thread and the servers that all environments of this process share."""

    io: IOThread
    pool: ToolPool

    def close(self) -> None:
        self.io.run(self.pool.close())
        self.io.close()


_runtimes: dict[tuple[str | None, bool, float], _Runtime] = {}
_starting = threading.Lock()


def _runtime(config: EnvConfig) -> _Runtime:
    """Started at first use, ended with the process. Raises UserError where a server does not start."""
    key = (config.servers, config.limited, config.tool_timeout_s)
    with _starting:
        if key not in _runtimes:
            servers = (
                builtin_servers(limited=config.limited)
                if config.servers is None
                else load_servers(Path(config.servers)).servers
            )
            io = IOThread(name="mcpagent-skyrl")
            pool = ToolPool(servers, limits=CallLimits(timeout_s=config.tool_timeout_s))
            try:
                io.run(pool.__aenter__())
            except BaseException:
                io.close()
                raise
            runtime = _Runtime(io, pool)
            atexit.register(runtime.close)
            _runtimes[key] = runtime
        return _runtimes[key]


def _parse_config(env_config: object) -> EnvConfig:
    """SkyRL hands over a dict, an OmegaConf mapping or a dataclass. Raises UserError."""
    if dataclasses.is_dataclass(env_config) and not isinstance(env_config, type):
        env_config = dataclasses.asdict(env_config)
    try:
        return EnvConfig.model_validate(
            dict(env_config) if isinstance(env_config, Mapping) else env_config or {}
        )
    except pydantic.ValidationError as error:
        problems = "; ".join(describe(detail, root="env_config") for detail in error.errors())
        raise UserError(problems, where=f"environment.skyrl_gym.{ENV_ID}") from None


def _task(prompt: Sequence[Mapping[str, str]], extras: Mapping[str, Any]) -> Task:
    """The record that SkyRL took apart. A parquet file stores the ground truth as JSON text, or fills missing
    keys with nulls. Raises UserError."""
    reward_spec = dict(extras.get("reward_spec") or {})
    truth = reward_spec.get("ground_truth")
    try:
        reward_spec["ground_truth"] = _without_nulls(json.loads(truth) if isinstance(truth, str) else truth)
        record = {
            "prompt": [dict(message) for message in prompt],
            "reward_spec": reward_spec,
            "data_source": extras.get("data_source") or "unknown",
            "extra_info": _without_nulls(extras.get("extra_info") or {}),
        }
        return Task.model_validate(record)
    except pydantic.ValidationError as error:
        raise UserError(
            "; ".join(describe(detail) for detail in error.errors()), where=f"{ENV_ID} record"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"reward_spec.ground_truth is text, but not JSON: {error.msg}", where=f"{ENV_ID} record"
        ) from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def _unmarked(value: Any) -> Any:
    """A message or a schema whose texts hold no mark of a chat template: the tokenizer is not ours to ask."""
    if isinstance(value, str):
        return without_marks(value)
    if isinstance(value, dict):
        return {_unmarked(key): _unmarked(item) for key, item in value.items()}
    return [_unmarked(item) for item in value] if isinstance(value, list | tuple) else value


def _output(output: StepOutput, *, reward: float, metadata: dict[str, Any]) -> BaseTextEnvStepOutput:
    return BaseTextEnvStepOutput(
        observations=[_unmarked(message) for message in output.observations],
        reward=reward,
        done=output.done,
        metadata=metadata,
        postprocessed_action=None,
    )
