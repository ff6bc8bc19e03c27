"""Every setting of a training run. Names that end in `_s` are seconds, `_tokens` tokens, `_chars` characters.

Familiar spellings that are not field names (`grpo.lambda`, `training.learning_rate`, `tools.retry_attempts`,
...) are mapped to these by `config.resolve`; rules that join several settings live in `config.checks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mcpagent.config.sections import (
    ApiConfig,
    BudgetConfig,
    Count,
    HealthConfig,
    JudgeConfig,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Section,
    Share,
    SkyrlConfig,
    StringTuple,
    TrackingConfig,
)
from mcpagent.core.registry import AdvantageName, BackendName, KLName, LossName, ToolFormat


def _spelled(names: Mapping[str | bool, str]) -> BeforeValidator:
    """Take other spellings of a choice; YAML reads a bare `no` or `off` as false."""
    return BeforeValidator(lambda value: names.get(value, value) if isinstance(value, str | bool) else value)


def _target_modules(value: Any) -> Any:
    if value == "all-linear":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    raise ValueError("it must be all-linear or a list of module names")


class ModelConfig(Section):
    """The model that is trained, and how it is held."""

    # A hub id, a path, or a model that mcpagent builds itself, for machines without a hub (`named_parts`).
    name: str = "Qwen/Qwen3-0.6B"
    # auto: bfloat16 on an accelerator, and on a CPU that is faster in it; else float32.
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        _spelled(
            {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
        ),
    ] = "auto"
    # None: what transformers picks, sdpa if the model has it. eager and flex_attention do not pack.
    attn_implementation: Annotated[
        Literal["sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "eager"] | None,
        _spelled({"flex": "flex_attention"}),
    ] = None
    # Less memory for activations, a third more computation; None: on an accelerator yes, on a CPU for passes
    # longer than training.micro_batch_tokens alone.
    gradient_checkpointing: bool | None = None
    trust_remote_code: bool = False
    tokenizer: str | None = None  # None: the model's own

    def checkpoints_on(self, kind: str, *, can: bool = True) -> bool:
        """Return whether a model that `can` checkpoint does so on a device of this kind (cpu, cuda, mps)."""
        return kind != "cpu" and can if self.gradient_checkpointing is None else self.gradient_checkpointing


class FinetuneConfig(Section):
    """The weights that are trained: adapters next to frozen weights (in 4 bits with qlora, on CUDA), or every
    weight."""

    mode: Literal["lora", "qlora", "full"] = "lora"


class LoraConfig(Section):
    """Low-rank adapters in `model.dtype`; used when `finetune.mode` is lora or qlora."""

    r: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[str | tuple[str, ...], BeforeValidator(_target_modules)] = "all-linear"


class VllmConfig(Section):
    """Settings of the vllm engine; used when `rollout.backend` is vllm."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.6  # at most: less if less is free
    enforce_eager: bool = False
    tensor_parallel_size: PositiveInt = 1  # GPUs that one engine is spread over
    servers: StringTuple = ()  # base URLs of running servers; none: an engine here


class GrpoConfig(Section):
    """The objective. `gamma`, `lambda_gae` and the `value_` settings belong to the `gae` advantage, which
    learns a value head; no other advantage discounts."""

    # group: against the mean of the group; rloo: against the mean of its others; reinforce++: against the
    # mean of the whole batch; turn: each turn's own credit with the outcome; gae: against a learned value.
    advantage: AdvantageName = "group"
    # Divide by the standard deviation of the group, or of the batch; None: yes, but not for dr_grpo.
    normalize_advantages: bool | Literal["batch"] | None = None
    # grpo: mean of sample means; dr_grpo: sums over a fixed length; dapo: mean over all tokens; gspo: one
    # ratio a sample; cispo: bounded weights instead of clipped tokens.
    loss: LossName = "grpo"
    clip_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_ratio_high: PositiveFloat | None = None  # None: the same as clip_ratio
    # At a negative advantage the loss of a token counts as if its ratio were this at most; None: unbounded.
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    mask_truncated: bool = False  # attempts that were cut off are not trained on
    # Reward lost by an episode of rollout.max_new_tokens in each turn; it grows over the last fifth of them.
    overlong_penalty: NonNegativeFloat = 0.0
    kl_coef: NonNegativeFloat = 0.01
    # k1: taken off the reward, since its gradient in a loss is zero on average; k2, k3: added to the loss.
    kl_estimator: KLName = "k3"
    target_kl: PositiveFloat | None = None  # nats a token that kl_coef is steered to; None: it stays
    reference: Literal["frozen", "ema", "none"] = "frozen"  # ema: follows what is trained
    reference_update_every: PositiveInt = 100  # steps
    # Of the importance weights against the sampler; None: no weights. auto: 2.0 if another engine or dtype
    # samples than trains; no weights if one and the same does both.
    tis_cap: PositiveFloat | Literal["auto"] | None = "auto"
    entropy_coef: NonNegativeFloat = 0.0
    epochs_per_batch: PositiveInt = 1
    minibatches: PositiveInt = 1  # optimiser steps a batch and epoch, on equal shares of the prompts
    gamma: Share | None = None  # discount a turn; None: 0.99
    lambda_gae: Share | None = None  # None: 0.95
    value_loss_coef: NonNegativeFloat = 0.5
    value_learning_rate: PositiveFloat | None = None  # of the head; None: optimization.learning_rate

    @property
    def clip_high(self) -> float:
        """The upper clip range in force."""
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high

    @property
    def gae_gamma(self) -> float:
        """The discount in force if the advantage is gae."""
        return 0.99 if self.gamma is None else self.gamma

    @property
    def gae_lambda(self) -> float:
        """The lambda in force if the advantage is gae."""
        return 0.95 if self.lambda_gae is None else self.lambda_gae

    @property
    def advantage_scale(self) -> Literal["group", "batch", "none"]:
        """Return the set of rewards whose deviation divides the advantages."""
        if self.normalize_advantages is None:
            return "none" if self.loss == "dr_grpo" else "group"
        if self.normalize_advantages == "batch":
            return "batch"
        return "group" if self.normalize_advantages else "none"


class OptimizationConfig(Section):
    """The optimiser, which steps after `training.batch_size` prompts (with `grpo.minibatches` after that
    share of them); the loss is normalised over all of them. How many go through the model at once is set by
    `training.micro_batch_tokens` alone, and changes memory, not meaning."""

    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: torch.optim.Muon on 2-D weights, AdamW on the rest
    learning_rate: PositiveFloat = 1e-5
    weight_decay: NonNegativeFloat = 0.0
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.999)
    gradient_clip: PositiveFloat | None = 1.0  # global norm; None: no clipping


ENGINE_CONTEXT = 4096  # tokens
MAX_PASS_TOKENS = 8192


class TrainingConfig(Section):
    """The length of training, in steps. A step is what is collected with the same weights, from `batch_size`
    prompts, and the updates made from it."""

    # Prompts, each of them attempted rollout.group_size times; in supervised training demonstrations.
    batch_size: PositiveInt = 16
    max_epochs: PositiveInt = 1
    max_steps: PositiveInt | None = None  # None: until the dataset was seen max_epochs times
    save_frequency: PositiveInt = 10  # steps between checkpoints
    # So many of the latest stay, and with them the best and the last seen healthy; None: all.
    keep_checkpoints: PositiveInt | None = 3
    # Steps between evaluations on data.validation, of which the first comes before training; 0: never.
    eval_every: Count = 10
    # Attempts at each held-out task (validation task, if there is no heldout.jsonl next to the training
    # set) with the untrained model and, at the end, with the best: greedy with one, at temperature 1 with
    # more; 0: none.
    eval_samples: Count = 1
    # How many of those tasks, evenly from the first to the last; None: 16, or as many more as make both
    # evaluations a fifth of the run's episodes.
    eval_tasks: PositiveInt | None = None
    patience: PositiveInt | None = None  # evaluations without a better one that end the run; None: no end
    dynamic_sampling: Count = 0  # rounds of fresh prompts, at most, in place of groups that are uniform
    warmup_steps: Count = 0  # steps of linear learning-rate warm-up
    # Tokens of one forward and backward pass; None: as many as the forecast has room for, 8192 at most.
    micro_batch_tokens: PositiveInt | None = None
    # Of several processes: after so many seconds without an answer, or without a sign of life while the
    # others wait for its episodes, a process counts as lost, and all end. Episodes may take longer.
    collective_timeout_s: PositiveFloat = 600.0
    # How several processes hold the weights. replicate: each all of them; fsdp: in shards (FSDP2); zero3: in
    # shards by DeepSpeed (the extra deepspeed); auto: what the launcher asks for, else replicate.
    parallel: Literal["auto", "replicate", "fsdp", "zero3"] = "auto"
    # Of fsdp: processes that hold the weights once between them, repeated over groups of so many; None: all
    # of them; 1: each holds all, and gradients are summed a layer at a time, during the backward pass.
    shard_size: PositiveInt | None = None
    cpu_offload: bool = False  # of fsdp and zero3: shards and moments stay in the memory of the host
    deepspeed_config: str | None = None  # of zero3: a JSON file with settings of DeepSpeed's own
    # model.dtype is what weights are held in; this is what the trainer's matrix products compute in, if it
    # is another. fp16 (for GPUs without bfloat16) also scales the loss.
    mixed_precision: Annotated[
        Literal["no", "bf16", "fp16"], _spelled({False: "no", "bfloat16": "bf16", "float16": "fp16"})
    ] = "no"

    @property
    def pass_tokens(self) -> int:
        """Tokens of one forward and backward pass, also if no forecast was asked."""
        return self.micro_batch_tokens or MAX_PASS_TOKENS


class RolloutConfig(Section):
    """The way in which episodes are sampled."""

    backend: BackendName = "auto"
    num_envs: PositiveInt = 64  # episodes at once
    group_size: PositiveInt = 8  # attempts at each prompt
    max_steps_per_episode: PositiveInt = 8  # model turns; a task's own max_turns may be lower
    max_new_tokens: PositiveInt = 512  # tokens a turn
    temperature: NonNegativeFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    # None: what the model holds, or 4096 with vLLM and SkyRL, which set memory aside for the longest context.
    max_context_tokens: PositiveInt | None = None
    # How the model calls tools. auto: as its chat template writes calls, unless its weights are at hand and
    # cannot; another one is taught in the system message in the template's place.
    tool_format: ToolFormat = "auto"
    # The model that says the later messages of a task of several turns, at api.base_url, in its own words,
    # checked to tell no more and no less than the task's own message; None: those are said as they are.
    user_model: str | None = None

    @property
    def engine_context(self) -> int:
        """Tokens of the longest context that an engine sets memory aside for."""
        return self.max_context_tokens or ENGINE_CONTEXT


class ResetCall(Section):
    """One call of a reset."""

    tool: str
    arguments: dict[str, Any] = {}


class ResetSection(Section):
    """A reset of a server to the state that episodes begin in: the command, then the calls."""

    command: StringTuple = ()  # a program and its arguments
    calls: Annotated[tuple[ResetCall, ...], Field(strict=False)] = ()  # of the server's own tools
    timeout_s: PositiveFloat = 60.0  # of the command


START_TIMEOUT_S = 60.0


class ServerSection(Section):
    """The way in which one server is called; None is what `tools` says for all."""

    timeout_s: PositiveFloat | None = None  # hard deadline of one call
    # Of one start (a cold npx or uvx takes up to 13 s on an idle machine); also how long a call waits, in
    # all, for its server to be up again.
    start_timeout_s: PositiveFloat = START_TIMEOUT_S
    max_in_flight: PositiveInt | None = None  # calls at once; None: 64
    calls_per_minute: PositiveFloat | None = None  # spaced evenly; None: no limit
    # episode: each has an instance of its own. None: what the server says of itself, else shared.
    isolation: Literal["shared", "episode"] | None = None
    safe_to_retry: StringTuple = ()  # tools that may be repeated although the server does not say so
    survives_restart: bool = False  # a new process knows what the old one was told
    # SQL that is more than one plain SELECT is sent too, and `gen-data --explore` may try what writes in an
    # instance of its own, though that may work on data that all share.
    allow_writes: bool = False
    # Forms (elicitation) that it wants filled in the middle of a call. defaults: with what the form itself
    # proposes; declined if a field that must be filled has no default.
    forms: Literal["refuse", "defaults"] = "refuse"
    workspace: str | None = None  # a folder or file of which each episode gets a copy
    reset: ResetSection | None = None  # before each episode, which then run one after another


class ToolsConfig(Section):
    """The MCP servers and how they are called."""

    servers: str | None = None  # path of an mcp.json; None: the built-in servers
    # Which of them; the model of the demonstration is made for these four, so python is added by name.
    builtin: StringTuple = ("polygon", "fmp", "tavily", "slack")
    limited: bool = True  # the small tool set of the built-in servers
    upstream: Literal["embedded", "live"] = "embedded"  # of the built-in servers; live needs your keys
    timeout_s: PositiveFloat = 30.0  # hard deadline of one call
    retry: Count = 3  # repeats of a call that is safe to repeat
    allow_list: StringTuple | None = None  # server.tool or server names; None: everything
    read_only: StringTuple = ()  # server.tool or server: only reads, though it does not say so
    # all: every tool of a task is offered at once; search: a tool finds them, for sets of hundreds of tools.
    discovery: Literal["all", "search"] = "all"
    pinned: StringTuple = ()  # server.tool or server: offered from the start, next to the search
    result_limit_chars: PositiveInt = 8000  # longer results are cut in the middle
    per_server: dict[str, ServerSection] = {}
    # If the tools are not those that the dataset, or the run so far, was made with.
    on_catalog_change: Literal["warn", "refuse"] = "warn"
    cassette: str | None = None  # folder in which answers of tools are recorded; None: every call is live
    # replay: what is recorded is replayed, the rest is called and recorded; strict: no server is started.
    cassette_mode: Annotated[Literal["record", "replay", "strict", "off"], _spelled({False: "off"})] = (
        "replay"
    )


class DataConfig(Section):
    """Datasets; None looks for data/processed/{train,validation}.json or .jsonl, then in data/inputs/; that
    of validation lies next to `train` first, if that is set."""

    train: str | None = None
    validation: str | None = None
    max_tasks: PositiveInt | None = None  # the first so many only


_METHOD_WEIGHTS = ("success", "partial", "penalty")
FunctionName = Annotated[str, Field(pattern=r"^\w+(\.\w+)*:\w+$")]  # package.module:function


class RewardConfig(Section):
    """The reward in training and evaluation; when penalties begin, and controls, are of training alone."""

    # By term: success (0.6), partial (0.4) and penalty (-1), if other weights are wanted, and functions of
    # `terms`, which are measured without weight if they have none here.
    weights: dict[str, float] = {}
    # Functions of a task and an ended episode that give 0 to 1, as package.module:function (reward.terms).
    terms: Annotated[tuple[FunctionName, ...], Field(strict=False)] = ()
    # Penalties begin once sampled success passes this share: before, they teach silence. 0: from the start.
    penalty_after_success: Share = 0.25
    # Control experiments: random draws rewards without information; rejection trains on successes alone;
    # negated rewards what fails, and must make things worse.
    control: Literal["none", "random", "rejection", "negated"] = "none"

    @property
    def penalty_weight(self) -> float:
        """Return the weight of the penalty while it is in force."""
        return self.weights.get("penalty", -1.0)

    @property
    def weightless(self) -> list[str]:
        """Names in `weights` that no term has."""
        return [name for name in self.weights if name not in (*_METHOD_WEIGHTS, *self.term_names)]

    @property
    def term_names(self) -> list[str]:
        """Return the names of the functions of `terms` in records: their own."""
        return [place.partition(":")[2] for place in self.terms]


class SftConfig(Section):
    """Supervised training on gold trajectories; how long, and how fast, say `training` and `optimization`."""

    # A function that makes samples next to the demonstrations, as package.module:function. It is called with
    # the renderer, the number of samples and a seed (train.sft.MakeSamples).
    curriculum: FunctionName | None = None
    curriculum_steps: Count = 0  # steps on its samples alone, before the first demonstration
    curriculum_mix: Count = 0  # samples of it that join each batch of demonstrations afterwards
    # Share of multi-step demonstrations that are cut short, for a mixed-quality start.
    stop_early: Share = 0.0
    wrong_tool: Share = 0.0  # share of one-step demonstrations that use a sister tool
    # How often each task is demonstrated: flaws are drawn anew each time.
    demonstrations_per_task: PositiveInt = 1
    max_tasks: PositiveInt | None = None  # demonstrated, each class and server in its share; null: all
    # A function that makes what rewrites the demonstrations each time they are trained on, as
    # package.module:function. It is called with the demonstrations and the catalog (train.sft.Augmentation).
    augmentation: FunctionName | None = None


class TrainConfig(Section):
    """The whole of a run. Build it with `config.loader.load_train_config`, which also checks it."""

    algorithm: Literal["grpo", "sft"] = "grpo"
    # What trains: native is this process and torchrun's others, skyrl a Ray cluster (section skyrl).
    engine: Literal["native", "skyrl"] = "native"
    seed: Count = 0
    output_dir: str = "outputs"
    # The run folder is output_dir/name; None: a name of its own, such as train-2026-11-22-a.
    name: Annotated[str, Field(min_length=1)] | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # or DEVICE_TYPE
    model: ModelConfig = ModelConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    lora: LoraConfig = LoraConfig()
    vllm: VllmConfig = VllmConfig()
    grpo: GrpoConfig = GrpoConfig()
    optimization: OptimizationConfig = OptimizationConfig()
    training: TrainingConfig = TrainingConfig()
    budget: BudgetConfig = BudgetConfig()
    health: HealthConfig = HealthConfig()
    tracking: TrackingConfig = TrackingConfig()
    rollout: RolloutConfig = RolloutConfig()
    api: ApiConfig = ApiConfig()
    tools: ToolsConfig = ToolsConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    judge: JudgeConfig = JudgeConfig()
    sft: SftConfig = SftConfig()
    skyrl: SkyrlConfig = SkyrlConfig()

    @property
    def method(self) -> Literal["grpo", "ppo", "sft"]:
        """The algorithm by the name that `--algo` has for it: ppo is GRPO's loop with a value head."""
        return "ppo" if self.algorithm == "grpo" and self.grpo.advantage == "gae" else self.algorithm

    def with_settings(self, **sections: Mapping[str, object]) -> TrainConfig:
        """Return the configuration with these settings of these sections replaced, unchecked."""
        return self.model_copy(
            update={name: getattr(self, name).model_copy(update=dict(new)) for name, new in sections.items()}
        )

    def total_steps(self, *, n_tasks: int) -> int:
        """Return the steps of the whole run on a dataset of `n_tasks` prompts. Those of the curriculum are
        among `training.max_steps`, and come before `training.max_epochs`."""
        training = self.training
        if training.max_steps is not None:
            return training.max_steps
        curriculum = self.sft.curriculum_steps if self.algorithm == "sft" else 0
        per_epoch = max(1, math.ceil(n_tasks / training.batch_size))
        return training.max_epochs * per_epoch + curriculum
