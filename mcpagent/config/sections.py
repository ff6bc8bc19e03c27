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
    """A Chat Completions API; used where the policy is `openai:NAME`. Its key is OPENAI_API_KEY, from the
    environment or `.env`."""

    base_url: str | None = None  # of an OpenAI-compatible server; None: OpenAI's own
    max_in_flight: PositiveInt = 8  # requests at once
    calls_per_minute: PositiveFloat | None = None  # spaced evenly; None: no limit
    timeout_s: PositiveFloat = 120.0  # deadline of one attempt
    attempts: PositiveInt = 6  # at one request, the waits that the server asks for between them
    price_in: NonNegativeFloat | None = None  # dollars per million tokens
    price_out: NonNegativeFloat | None = None


class JudgeConfig(Section):
    """A model that judges episodes of tasks whose `reward_spec.method` is `judge` or `rule+judge`, behind a
    Chat Completions API; its key is OPENAI_API_KEY, and `api` says how fast it is asked."""

    model: str | None = None  # None: no judge
    base_url: str | None = None  # of an OpenAI-compatible server; None: OpenAI's own
    votes: PositiveInt = 3  # at temperature 0; more than half of them must agree
    # A verdict that is the same under a rubric which demands the opposite is unscored: one more request an
    # episode.
    controls: bool = True
    timeout_s: PositiveFloat = 120.0  # of one episode, all votes; past it the term is unscored
    attempts: PositiveInt = 3  # at one request
    max_output_tokens: PositiveInt = 1024  # of one vote
    prompts: str | None = None  # a file such as templates/prompts/judge.yaml; None: that
    journal: str | None = None  # folder of all that was asked and answered; None: output_dir/judge
    # Caps on all that a journal holds, earlier runs included; of several processes each has its own journal.
    max_cost: PositiveFloat | None = None  # dollars; None: no cap
    max_requests: PositiveInt | None = None
    price_in: NonNegativeFloat | None = None  # dollars per million tokens; None: as known of the model
    price_out: NonNegativeFloat | None = None
    # Training needs a record of eval judge-check on its tasks, with a kappa of at least this.
    min_kappa: Annotated[float, Field(ge=-1, le=1)] = 0.6
    check: str | None = None  # that record


class AnsweringConfig(Section):
    """A model that answers what servers ask in the middle of a call and no rule of `tools.answers` does,
    behind a Chat Completions API; its key is OPENAI_API_KEY."""

    model: str | None = None  # None: no model
    base_url: str | None = None  # of an OpenAI-compatible server; None: OpenAI's own
    # All that it knows of the user when it fills in a form: what may be agreed to, and what may be said.
    instructions: str = ""
    servers: StringTuple = ("*",)  # names or patterns of the servers that it answers
    max_output_tokens: PositiveInt = 512  # of one answer; a server that wants a text may ask for fewer
    timeout_s: PositiveFloat = 20.0  # of one answer, within the deadline of the call; past it is refused
    attempts: PositiveInt = 3  # at one request
    max_in_flight: PositiveInt = 8  # requests at once
    journal: str | None = None  # folder of what was asked and answered; None: kept as long as the servers run
    # Caps on all that a journal holds, earlier runs included.
    max_cost: PositiveFloat | None = None  # dollars; None: no cap
    max_requests: PositiveInt | None = None
    price_in: NonNegativeFloat | None = None  # dollars per million tokens; None: as known of the model
    price_out: NonNegativeFloat | None = None


class BudgetConfig(Section):
    """Hard caps on a whole run, its resumed parts counted together; None: no cap. The first that is reached
    ends the run with a checkpoint; `--resume` with a higher one goes on."""

    wall_s: PositiveFloat | None = None
    cpu_s: PositiveFloat | None = None  # of this process, all threads
    steps: PositiveInt | None = None  # unlike training.max_steps it leaves the learning rate's schedule alone
    tool_calls: PositiveInt | None = None
    cost_usd: PositiveFloat | None = None  # of the calls, by usd_per_call
    usd_per_call: dict[str, NonNegativeFloat] = {}  # price by server, or by server.tool


class HealthLimits(Section):
    """Where a run stops being healthy; None: not looked at. `*_rise` is a multiple of the lowest level that
    the run had, `*_fall` a share of the highest; levels are means of three steps. What is counted by episodes
    is measured on the last 64 or more, everything else on one step."""

    approx_kl: PositiveFloat | None = None  # nats a token, from the sampling policy to the updated one
    kl: PositiveFloat | None = None  # nats a token, to the reference
    clip_fraction: Share | None = None  # of tokens whose gradient was clipped away
    logprob_drift: PositiveFloat | None = None  # nats, largest difference of sampler and trainer on a token
    sampler_kl: PositiveFloat | None = None  # nats a token, KL(sampler || trainer) at the same weights
    entropy_rise: PositiveFloat | None = None
    entropy_fall: Share | None = None
    grad_norm_rise: PositiveFloat | None = None
    uniform_share: Share | None = None  # of groups without a gradient
    success_fall: Share | None = None
    calls_rise: PositiveFloat | None = None  # calls an episode: spam
    calls_fall: Share | None = None  # calls an episode: tools are abandoned
    loop_share: Share | None = None  # of episodes that make the same call three times or more
    tokens_rise: PositiveFloat | None = None  # sampled tokens an episode
    tokens_fall: Share | None = None
    # Rise of what a reward term adds, before its weight, since success was highest, while success fell.
    term_against_success: Share | None = None


class WarnLimits(HealthLimits):
    """Past them the run says so, once."""

    approx_kl: PositiveFloat | None = 0.1
    kl: PositiveFloat | None = 2.0
    clip_fraction: Share | None = 0.4
    logprob_drift: PositiveFloat | None = 1.0
    sampler_kl: PositiveFloat | None = 0.05
    entropy_rise: PositiveFloat | None = 10.0
    entropy_fall: Share | None = 0.05
    grad_norm_rise: PositiveFloat | None = 30.0
    uniform_share: Share | None = 0.9
    success_fall: Share | None = 0.5
    calls_rise: PositiveFloat | None = 4.0
    calls_fall: Share | None = 0.4
    loop_share: Share | None = 0.3
    tokens_rise: PositiveFloat | None = 4.0
    tokens_fall: Share | None = 0.25
    term_against_success: Share | None = 0.05


class StopLimits(HealthLimits):
    """Past them for `health.patience` steps in a row the run ends, with the reason."""

    approx_kl: PositiveFloat | None = 3.0
    kl: PositiveFloat | None = 10.0
    entropy_rise: PositiveFloat | None = 50.0
    success_fall: Share | None = 0.1
    calls_fall: Share | None = 0.1
    loop_share: Share | None = 0.9


class HealthConfig(Section):
    """What is watched during GRPO (`train.health`)."""

    enabled: bool = True
    patience: PositiveInt = 3  # steps in a row past a limit of `stop`
    stop_epochs_kl: PositiveFloat | None = None  # nats a token: past it a batch's other updates are left out
    warn: WarnLimits = WarnLimits()
    stop: StopLimits = StopLimits()


class TrackingConfig(Section):
    """Where metrics go besides metrics.jsonl. A backend that fails never stops the run. Where a key is not
    set, the environment or `.env` may say it, as each names."""

    backends: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()
    project: Annotated[str, Field(min_length=1)] = "mcpagent"  # or WANDB_PROJECT
    entity: str | None = None  # the team or user of wandb and weave, or WANDB_ENTITY; None: the key's own
    weave_project: str | None = None  # or WEAVE_PROJECT; None: project
    name: str | None = None  # None: the name of the run
    mode: Literal["offline", "online"] = "offline"  # or WANDB_MODE; offline: nothing leaves this machine


class SkyrlConfig(Section):
    """The SkyRL engine (`engine: skyrl`), which trains on GPUs of a Ray cluster. Everything else of a run is
    what the other sections say, mapped onto SkyRL's configuration."""

    num_nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 1
    address: str | None = None  # of a running Ray cluster; None: what RAY_ADDRESS names, else one of its own
    env_workers: PositiveInt = 32  # threads in which environments are called
    # The largest share of a batch's episodes that may fail and are left out; past it the run ends.
    max_failed_share: Share = 0.5
    bake_tools: bool = False  # tool schemas are written into the records, for generators other than ours
    # Settings of SkyRL itself, such as trainer.policy.fsdp_config.cpu_offload=true; not those that a setting
    # of mcpagent decides.
    overrides: tuple[Annotated[str, Field(pattern=r"^[a-z][\w.]*=")], ...] = Field(default=(), strict=False)
