"""Several processes with shards of the weights make the update that one process with all of them makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mcpagent.config.loader import load_train_config
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.errors import UserError
from mcpagent.models.load import LoraShape, attach_lora, use_checkpointing
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.build import build_learner, load
from mcpagent.train.learner.learner import EmaReference, Learner
from mcpagent.train.learner.optim import Precision, Schedule, build_optimizers, linear_schedule
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Fsdp, refuse_sharding, sharding
from mcpagent.train.objective.advantages import CreditSettings
from mcpagent.train.objective.loss import Objective
from mcpagent.train.objective.value import named_parameters, new_value_head
from mcpagent.train.update import UpdateSettings, update_policy
from tests.train.learner.test_processes import in_processes
from tests.train.world import VOCABULARY, given, some_samples, tiny_model

pytestmark = pytest.mark.system

CPU = torch.device("cpu")
# What is different from GRPO on all weights, by name.
CASES: dict[str, dict[str, Any]] = {
    "full grpo": {},
    "unequal micro-batches": {"loss": "dapo", "micro": 60},
    "adapters, which are off in the reference": {"lora": True},
    "gae with its value head": {"advantage": "gae"},
    "a reference that follows": {"is_ema": True},
    "a reference that follows adapters": {"is_ema": True, "lora": True},
    "a frozen reference": {"is_frozen": True},
    "logits in chunks": {"max_logits": VOCABULARY * 5},
    "checkpointing": {"is_checkpointed": True},
    "a process without samples": {"telling": 1},
    "minibatches": {"epochs": 2, "minibatches": 2},
    "muon": {"kind": "muon"},
    "half precision": {"dtype": torch.bfloat16},
}
TOLERANCE = {"muon": 1e-3, "half precision": 8e-3}  # bfloat16 has 8 bits: sums in another order differ
REPEATED = ("full grpo", "a reference that follows adapters")  # with shards in groups of their own (HSDP)
SAVED: dict[str, Any] = {"advantage": "gae", "is_ema": True}
ADVANTAGES = [1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.8, -0.8, 0.3, -0.3]
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def make(
    processes: Processes,
    wrapping: Fsdp | None,
    *,
    lora: bool = False,
    advantage: str = "given",
    is_ema: bool = False,
    is_frozen: bool = False,
    max_logits: int = 1 << 25,
    is_checkpointed: bool = False,
    kind: str = "adamw",
    dtype: torch.dtype = torch.float32,
) -> Learner:
    """A learner, in shards where there is a wrapping for it."""
    model = tiny_model(dtype=dtype)
    if lora:
        shape = LoraShape(r=4, alpha=8, dropout=0.0, target_modules="all-linear")
        model = attach_lora(model, shape, seed=0)
    if is_checkpointed:
        use_checkpointing(model)
    torch.manual_seed(3)
    head = new_value_head(model) if advantage == "gae" else None
    scorer = TokenScorer(model, value_head=head, max_logits=max_logits)
    reference: Any = TokenScorer(tiny_model(seed=1).requires_grad_(False)) if is_frozen else None
    if wrapping is not None:
        wrapping.wrap(scorer)
        if reference is not None:
            wrapping.wrap(reference)
    if is_ema:
        reference = EmaReference(model.named_parameters(), every=1, decay=0.5, wrapping=wrapping)
    optimizers = build_optimizers(
        [*model.named_parameters(), *named_parameters(head)],
        kind=kind,
        learning_rate=0.003,
        muon_learning_rate=0.003,
        betas=(0.9, 0.98),
        weight_decay=0.1,
    )
    return Learner(
        model,
        train_tokenizer([], vocab_size=0, catalog_hash=""),
        schedule=Schedule(optimizers, linear_schedule(total=10)),
        gradient_clip=1.0,
        processes=processes,
        reference=reference,
        value_head=head,
        precision=Precision(),
        wrapping=wrapping,
        scorer=scorer,
    )


def train(
    learner: Learner,
    *,
    steps: tuple[int, ...] = (1, 2, 3),
    loss: str = "grpo",
    advantage: Any = "given",
    micro: int = 150,
    epochs: int = 1,
    minibatches: int = 1,
    telling: int = 9,
    **_: Any,
) -> list[dict[str, float]]:
    """The statistics of each step. A group tells nothing, nor do those from `telling` on."""
    rewards = [a + 0.3 for a in ADVANTAGES] if advantage == "gae" else ADVANTAGES
    graded = given(some_samples(10), rewards, groups=GROUPS)
    groups = (replace(g, has_signal=g.group_id != "2" and int(g.group_id) < telling) for g in graded.groups)
    graded = replace(graded, groups=tuple(groups), settings=CreditSettings(advantage=advantage))
    settings = UpdateSettings(
        objective=Objective(loss=loss), micro_batch_tokens=micro, epochs=epochs, minibatches=minibatches
    )
    summaries: list[dict[str, float]] = []
    number = 1 + (steps[0] - 1) * epochs * minibatches
    for step in steps:
        stats = update_policy(
            learner, graded, settings=settings, kl_coef=0.1, first_optimizer_step=number, seed=step
        )
        number += stats.optimizer_steps
        learner.end_step(step)
        summaries.append(stats.summary())
    return summaries


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Whole, by name, those of the value head with them."""
    head = learner.scorer.value_head
    named = {**dict(learner.model.named_parameters()), **dict(named_parameters(head))}
    return {n: t.detach().clone() for n, t in learner.wrapping.gathered(named, everywhere=True).items()}


def outcome(processes: Processes, wrapping: Fsdp | None, case: Mapping[str, Any]) -> tuple[Any, Any]:
    of_train = {"loss", "micro", "epochs", "minibatches", "telling"}
    learner = make(processes, wrapping, **{k: v for k, v in case.items() if k not in of_train})
    return weights(learner), (train(learner, **case), weights(learner))


def resumed(processes: Processes, wrapping: Fsdp | None, folder: Path, *, to: str) -> Any:
    """The checkpoint, read and written again, and what the next step comes to."""
    learner = make(processes, wrapping, **SAVED)
    state = learner.restore(folder / "checkpoint")
    learner.save(folder / to, state=state)
    train(learner, steps=(3,), **SAVED)
    return weights(learner)


class OddConfig(Qwen3Config):
    model_type = "odd_qwen3"


class Odd(Qwen3ForCausalLM):
    """Does to its logits what no setting says."""

    config_class = OddConfig

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output: Any = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output


def odd_model() -> Any:
    """A tiny model of a family that transformers is told of here."""
    AutoConfig.register("odd_qwen3", OddConfig, exist_ok=True)
    AutoModelForCausalLM.register(OddConfig, Odd, exist_ok=True)
    return Odd(OddConfig(**tiny_model().config.to_diff_dict() | {"model_type": "odd_qwen3"}))


def write_models(folder: Path) -> None:
    """One that is trained as it is, and one that is not."""
    for name, model in {"plain": tiny_model(), "odd": odd_model()}.items():
        model.save_pretrained(folder / name)
        train_tokenizer([], vocab_size=0, catalog_hash="").save_pretrained(folder / name)


def loaded(processes: Processes, model: Path) -> Any:
    """The weights of a model in a folder, loaded into shards; what is said where it is refused."""
    odd_model()
    settings = {"model.name": model, "finetune.mode": "full", "training.parallel": "fsdp", "threads": 1}
    settings |= {"rollout.backend": "vllm", "vllm.servers": '["http://127.0.0.1:1"]'}
    config = load_train_config([], [f"{k}={v}" for k, v in settings.items()], for_training=False).config
    try:
        parts = load(config, processes=processes)
        return weights(build_learner(parts, config, total_optimizer_steps=3, processes=processes))
    except UserError as error:
        return error.message


def work(folder: Path) -> None:
    """Of one process among several: leaves what it came to in the folder. Four of them go on where two have
    saved."""
    torch.set_num_threads(1)
    processes = Processes.join(CPU)
    if processes.count == 4:
        after = resumed(processes, Fsdp(processes, device=CPU), folder, to="by four")
        if processes.is_first:
            torch.save(after, folder / "four.pt")
        torch.distributed.destroy_process_group()
        return
    learner = make(processes, Fsdp(processes, device=CPU), **SAVED)
    train(learner, steps=(1, 2), **SAVED)
    learner.save(folder / "checkpoint", state={"step": 2})
    train(learner, steps=(3,), **SAVED)
    after = weights(learner)
    if processes.is_first:
        torch.save(after, folder / "unbroken.pt")
    results = {n: outcome(processes, Fsdp(processes, device=CPU), case) for n, case in CASES.items()}
    for name in REPEATED:
        wrapping = Fsdp(processes, device=CPU, shard_size=1)
        results[f"{name}, repeated"] = outcome(processes, wrapping, CASES[name])
    results |= {name: loaded(processes, folder / name) for name in ("plain", "odd")}
    torch.save(results, folder / f"{processes.index}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left."""
    folder = tmp_path_factory.mktemp("two")
    write_models(folder)
    in_processes(folder, module=__name__)
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> list[Any]:
    """What each of two processes came to."""
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", [*CASES, *(f"{name}, repeated" for name in REPEATED)])
def test_two_processes_with_shards_make_the_update_of_one(name: str, two: list[Any]) -> None:
    case = name.removesuffix(", repeated")
    began, (steps, after) = outcome(Processes(), None, CASES[case])
    for results in two:
        their_beginning, (their_steps, theirs) = results[name]
        assert theirs.keys() == after.keys()
        assert all(torch.equal(their_beginning[n], p) for n, p in began.items())
        worst = max(float((theirs[n].float() - p.float()).abs().max()) for n, p in after.items())
        assert worst <= TOLERANCE.get(case, 1e-5)
        for step, other in zip(steps, their_steps, strict=True):
            rel, least = (0.05, 5e-3) if case in TOLERANCE else (1e-3, 1e-5)
            assert other == pytest.approx(step, rel=rel, abs=least)
    moved = max(float((began[n].float() - p.float()).abs().max()) for n, p in after.items())
    assert moved > 3e-3, "there is something to compare"


def test_a_model_that_is_loaded_into_shards_is_the_one_in_the_folder(folder: Path, two: list[Any]) -> None:
    stored = load_file(folder / "plain" / "model.safetensors")
    for results in two:
        assert results["plain"].keys() == stored.keys()
        assert all(torch.equal(results["plain"][name], tensor) for name, tensor in stored.items())


def test_logits_that_no_setting_tells_are_refused_in_shards_too(two: list[Any]) -> None:
    for results in two:
        assert "changes its logits after the output head in a way of its own" in results["odd"]


def files(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Every tensor of a checkpoint, by file; the random state is of the process that wrote it."""
    paths = [path for path in checkpoint.rglob("*.safetensors") if path.name != "rng.safetensors"]
    return {path.relative_to(checkpoint).as_posix(): load_file(path) for path in paths}


def test_what_two_processes_save_is_the_same_for_one_and_for_four(folder: Path) -> None:
    alone = resumed(Processes(), None, folder, to="by one")
    in_processes(folder, count=4, module=__name__)
    saved = files(folder / "checkpoint")
    assert set(saved) == {
        "model.safetensors",
        "trainer_state/optimizer.safetensors",
        "trainer_state/reference.safetensors",
        "trainer_state/value_head.safetensors",
    }
    for other in ("by one", "by four"):
        for name, tensors in files(folder / other).items():
            assert tensors.keys() == saved[name].keys()
            assert all(torch.equal(tensor, tensors[n]) for n, tensor in saved[name].items())
    unbroken = torch.load(folder / "unbroken.pt", weights_only=True)
    for after in (alone, torch.load(folder / "four.pt", weights_only=True)):
        assert max(float((after[n] - p).abs().max()) for n, p in unbroken.items()) <= 1e-5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"finetune.mode": "qlora"}, "4 bits"),
        ({"training.mixed_precision": "fp16"}, "fp16"),
        ({"rollout.backend": "hf"}, "hf backend"),
        ({"rollout.backend": "auto"}, "hf backend"),
    ],
)
def test_what_cannot_be_done_in_shards_is_refused_by_name(settings: dict[str, str], said: str) -> None:
    overrides = [f"{key}={value}" for key, value in {"training.parallel": "fsdp", **settings}.items()]
    config = load_train_config([], overrides, for_training=False).config
    with pytest.raises(UserError, match=said):
        refuse_sharding(config, device=CPU)


def test_a_launcher_that_asks_for_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UserError, match="DeepSpeed"):
        sharding(load_train_config([], [], for_training=False).config, Processes(index=0, count=2))
