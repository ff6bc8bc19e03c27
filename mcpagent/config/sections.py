"""What every section of the configuration is made of; sections on models behind an API and on watching."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mcpagent.core.registry import TrackerName

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# YAML has lists only; everything else is checked strictly, so that "8" is not a number and true is not 1.
StringTuple = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ApiConfig(Section):
    """The way in which every model behind a Chat Completions API is asked: a policy `openai:NAME`, the judge,
    the user. The key is OPENAI_API_KEY, from the environment or `.env`. All that the judge and the user were
    asked and answered is kept in output_dir/api, so that nothing is asked twice. Caps are on what one of them
    is asked in all, earlier runs included."""

    base_url: str | None = None  # of an OpenAI-compatible server; None: OpenAI's own
    max_in_flight: PositiveInt = 8  # requests at once
    calls_per_minute: PositiveFloat | None = None  # spaced evenly; None: no limit
    timeout_s: PositiveFloat = 120.0  # deadline of one attempt, and of a judge's verdict on one episode
    attempts: PositiveInt = 6  # at one request, the waits that the server asks for between them
    price_in: NonNegativeFloat | None = None  # dollars per million tokens; None: as known of the model
    price_out: NonNegativeFloat | None = None
    max_cost: PositiveFloat | None = None  # dollars; None: no cap
    max_requests: PositiveInt | None = None


class JudgeConfig(Section):
    """A model that judges episodes of tasks whose `reward_spec.method` is `judge`, or `rule+judge` if their
    answer has no type; `api` says how it is asked."""

    model: str | None = None  # None: no judge
    base_url: str | None = None  # of an OpenAI-compatible server; None: OpenAI's own
    # Training needs a record of eval judge-check on its tasks, with a kappa of at least this.
    min_kappa: Annotated[float, Field(ge=-1, le=1)] = 0.6
    check: str | None = None  # that record


class BudgetConfig(Section):
    """Hard caps on a whole run, its resumed parts counted together; None: no cap. The first that is reached
    ends the run with a checkpoint; `--resume` with a higher one goes on."""

    wall_s: PositiveFloat | None = None
    cpu_s: PositiveFloat | None = None  # of this process, all threads
    tool_calls: PositiveInt | None = None


class HealthConfig(Section):
    """Limits that end a run: three steps in a row past one of them (`train.health`). None: not looked
    at. `*_rise` is a multiple of the lowest level that the run had, `*_fall` a share of the highest; levels
    are means of three steps. What is counted by episodes is measured on the last 64 or more."""

    enabled: bool = True
    approx_kl: PositiveFloat | None = 3.0  # nats a token, from the sampling policy to the updated one
    kl: PositiveFloat | None = 10.0  # nats a token, to the reference
    entropy_rise: PositiveFloat | None = 50.0
    success_fall: Share | None = 0.1
    # Calls an episode: tools are abandoned. Supervised: the demonstrations' calls that the model would begin.
    calls_fall: Share | None = 0.1
    loop_share: Share | None = 0.9  # of episodes that make the same call three times or more


class TrackingConfig(Section):
    """The trackers that metrics go to next to metrics.jsonl. A backend that fails never stops the run. If a
    key is not set, the environment or `.env` may say it, as each names; WANDB_ENTITY names the team."""

    backends: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()
    project: Annotated[str, Field(min_length=1)] = "mcpagent"  # or WANDB_PROJECT
    mode: Literal["offline", "online"] = "offline"  # or WANDB_MODE; offline: nothing leaves this machine


class SkyrlConfig(Section):
    """The SkyRL engine (`engine: skyrl`), which trains on GPUs of a Ray cluster: that which RAY_ADDRESS
    names, else one of its own. Everything else of a run is what the other sections say, mapped onto SkyRL's
    configuration."""

    num_nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 1
    # Settings of SkyRL itself, such as trainer.policy.fsdp_config.cpu_offload=true; not those that a setting
    # of mcpagent decides.
    overrides: tuple[Annotated[str, Field(pattern=r"^[a-z][\w.]*=")], ...] = Field(default=(), strict=False)
