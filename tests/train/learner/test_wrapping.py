"""Several processes, each with all weights or with shards of them, make the update that one process makes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import LoraConfig, TrainConfig
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.errors import UserError
from mcpagent.models.load import use_checkpointing
from mcpagent.storage.packages import requirements
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.forecast import forecast, shape_of
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.reference import ShadowReference
from mcpagent.train.learner.wrapping import Fsdp, Shards, refuse_sharding, sharding
from mcpagent.train.learner.zero3 import Zero3, read_options
from mcpagent.train.load import load
from mcpagent.train.objective.advantages import CreditSettings
from mcpagent.train.objective.loss import Objective
from mcpagent.train.objective.value import named_parameters, new_value_head
from mcpagent.train.update import UpdateSettings, update_policy
from tests.models.adapters import adapted
from tests.train.learner.test_lost_process import needs_deepspeed
from tests.train.learner.test_processes import in_processes
from tests.train.world import VOCABULARY, given, make_learner, some_samples, tiny_model

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
    "no reference, and processes of one and of many micro-batches": {"kl": 0.0, "micro": 60, "telling": 3},
    "logits in chunks": {"max_logits": VOCABULARY * 5},
    "checkpointing": {"is_checkpointed": True},
    "a process without samples": {"telling": 1},
    "minibatches": {"epochs": 2, "minibatches": 2},
    "muon": {"kind": "muon"},
    "half precision": {"dtype": torch.bfloat16},
    "half precision with a value head": {"dtype": torch.bfloat16, "advantage": "gae"},
}
TOLERANCE = {"muon": 1e-3, "half precision": 8e-3, "half precision with a value head": 8e-3}
REPEATED = ("full grpo", "a reference that follows adapters")  # with shards in groups of their own (HSDP)
OFFLOADED = ("unequal micro-batches", "a reference that follows adapters")  # with shards in the host's memory
# Of whole weights in each process.
OF_REPLICATE = (
    *("full grpo", "unequal micro-batches", "gae with its value head", "a process without samples"),
    *("a reference that follows adapters", "minibatches"),
)
NOT_OF_ZERO3 = ("muon", "half precision with a value head")
OF_ZERO3 = [
    *(name for name in CASES if name not in NOT_OF_ZERO3),
    *(f"{name}, offloaded" for name in OFFLOADED),
]
QUICK = ("unequal micro-batches", "logits in chunks")  # what is asked of ZeRO-3 in every run of the tests
MODELS = ("plain", "odd")  # folders: what is trained as it is, and what is not
SAVED: dict[str, dict[str, Any]] = {
    "saved": {"advantage": "gae", "is_ema": True},
    "saved in half precision": {"is_ema": True, "dtype": torch.bfloat16},
}
HEAD = "adapters of the head"
HELD = ("held", "held in half precision", "held with offload")
ADVANTAGES = [1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.8, -0.8, 0.3, -0.3]
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def make(
    processes: Processes,
    wrapping: Fsdp | Zero3 | None,
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
        model = adapted(model)
    if is_checkpointed:
        use_checkpointing(model)
    torch.manual_seed(3)
    head = new_value_head(model) if advantage == "gae" else None
    scorer = TokenScorer(model, value_head=head, max_logits=max_logits)
    if wrapping is not None:
        wrapping.wrap(scorer)
    reference = None
    if is_ema or is_frozen:
        every = 1 if is_ema else None
        reference = ShadowReference(model.named_parameters(), every=every, decay=0.5, wrapping=wrapping)
    return make_learner(
        model,
        kind=kind,
        learning_rate=0.003,
        gradient_clip=1.0,
        processes=processes,
        reference=reference,
        value_head=head,
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
    kl: float = 0.1,
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
            learner, graded, settings=settings, kl_coef=kl, first_optimizer_step=number, seed=step
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


def outcome(processes: Processes, wrapping: Fsdp | Zero3 | None, case: Mapping[str, Any]) -> tuple[Any, Any]:
    of_train = {"loss", "micro", "epochs", "minibatches", "telling", "kl"}
    learner = make(processes, wrapping, **{k: v for k, v in case.items() if k not in of_train})
    return weights(learner), (train(learner, **case), weights(learner))


def resumed(processes: Processes, wrapping: Fsdp | Zero3 | None, folder: Path, name: str, *, to: str) -> Any:
    """The checkpoint of that name, read and written again, and what the next step comes to."""
    learner = make(processes, wrapping, **SAVED[name])
    state = learner.restore(folder / name)
    learner.save(folder / f"{name} {to}", state=state)
    train(learner, steps=(3,), **SAVED[name])
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
    for name, model in zip(MODELS, (tiny_model(), odd_model()), strict=True):
        model.save_pretrained(folder / name)
        train_tokenizer([], vocab_size=0, catalog_hash="").save_pretrained(folder / name)


def loaded(processes: Processes, parallel: str, model: Path) -> Any:
    """The weights of a model in a folder, loaded into shards; what is said where it is refused."""
    odd_model()
    settings = {"model.name": str(model), "finetune.mode": "full", "training.parallel": parallel}
    settings |= {"rollout.backend": "vllm", "vllm.servers": '["http://127.0.0.1:1"]'}
    run = config(settings)
    try:
        parts = load(run, processes=processes)
        return weights(build_learner(parts, run, total_optimizer_steps=3, processes=processes))
    except UserError as error:
        return error.message


def saved(processes: Processes, wrapping: Fsdp | Zero3 | None, folder: Path, name: str) -> Any:
    """Leaves a checkpoint after two steps; what the third one comes to."""
    learner = make(processes, wrapping, **SAVED[name])
    train(learner, steps=(1, 2), **SAVED[name])
    learner.save(folder / name, state={"step": 2})
    train(learner, steps=(3,), **SAVED[name])
    return weights(learner)


def refused_head(processes: Processes) -> str:
    """What is said of adapters of the output head."""
    model = adapted(tiny_model(), targets=["lm_head"])
    with pytest.raises(UserError) as refused:
        Zero3(processes, device=CPU).wrap(TokenScorer(model))
    return refused.value.message


def held(processes: Processes, case: str) -> dict[str, float]:
    """Bytes by part that a process with shards of ZeRO-3 holds after a step, each piece of memory once, and
    the most that were gathered at once."""
    half: dict[str, Any] = {"dtype": torch.bfloat16} if "half" in case else {}
    wrapping = Zero3(processes, device=CPU, cpu_offload="offload" in case)
    learner = make(processes, wrapping, **half)
    gathered: list[int] = []

    def look(*_: Any) -> None:
        whole = (p for p in learner.model.parameters() if p.ds_status == ZeroParamStatus.AVAILABLE)
        gathered.append(sum(p.numel() * p.element_size() for p in whole))

    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    learner.model.get_decoder().norm.register_forward_hook(look)
    train(learner, steps=(1,))
    zero: Any = wrapping._engine.optimizer
    stretches = [p.ds_tensor for p in learner.model.parameters()]
    of_host = [flat.grad for flat in zero.fp32_partitioned_groups_flat]
    states = [v for s in zero.optimizer.state.values() for v in s.values() if v.ndim]
    parts = {
        "weights": stretches,
        "optimiser": [*states, *zero.fp32_partitioned_groups_flat],
        "gradients": [zero.grad_partitions_flat_buffer, *(g for g in of_host if g is not None)],
        "buffer": [bucket.buffer for bucket in zero.ipg_buckets.values()],
    }
    seen: set[int] = set()
    sizes: dict[str, float] = {}
    for name, tensors in parts.items():
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        sizes[name] = sum(size for place, size in storages.items() if place not in seen)
        seen |= storages.keys()
    return sizes | {"gathered": max(gathered) + sizes["buffer"]}


def in_shards(processes: Processes, parallel: str, **options: Any) -> Fsdp | Zero3 | None:
    if parallel == "replicate":
        return None
    return (Zero3 if parallel == "zero3" else Fsdp)(processes, device=CPU, **options)


def work(folder: Path) -> None:
    """Of one process among several: leaves what the job in the folder came to."""
    torch.set_num_threads(1)
    processes = Processes.join(CPU)
    job = json.loads((folder / "job.json").read_text())
    results: dict[str, Any] = {}
    for name in job["names"]:
        if name == HEAD:
            results[name] = refused_head(processes)
            continue
        if name in HELD:
            results[name] = held(processes, name)
            continue
        if name in MODELS:
            results[name] = loaded(processes, job["parallel"], folder / name)
            continue
        case, _, how = name.partition(", ")
        if case in SAVED:
            wrapping = in_shards(processes, how or job["parallel"])
            results[name] = (
                resumed(processes, wrapping, folder, case, to=how)
                if how
                else saved(processes, wrapping, folder, case)
            )
            continue
        options = {"repeated": {"shard_size": 1}, "offloaded": {"cpu_offload": True}}
        case, _, how = name.rpartition(", ") if name.endswith(tuple(options)) else (name, "", "")
        wrapping = in_shards(processes, job["parallel"], **options.get(how, {}))
        results[name] = outcome(processes, wrapping, CASES[case])
    torch.save(results, folder / f"{job['into']}-{processes.index}.pt")
    torch.distributed.destroy_process_group()


def asked(folder: Path, parallel: str, names: Sequence[str], *, count: int = 2) -> list[dict[str, Any]]:
    """What each of `count` processes came to."""
    job = {"parallel": parallel, "names": list(names), "into": f"of {count}"}
    (folder / "job.json").write_text(json.dumps(job))
    in_processes(folder, count=count, module=__name__)
    return [torch.load(folder / f"of {count}-{rank}.pt", weights_only=False) for rank in range(count)]


def distance(weights: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """How far each weight is from the other's."""
    return torch.cat(
        [(weights[name].float() - other.float()).abs().flatten() for name, other in others.items()]
    )


Two = Callable[[str, bool], tuple[Path, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    """What two processes came to, with the folder that they left: asked once."""
    answers: dict[tuple[str, bool], Any] = {}

    def of(parallel: str, is_quick: bool) -> tuple[Path, list[dict[str, Any]]]:
        if (parallel, is_quick) not in answers:
            if parallel == "fsdp":
                names = [*CASES, *(f"{name}, repeated" for name in REPEATED), "saved", *MODELS]
            elif parallel == "zero3":
                names = [*(QUICK if is_quick else (*OF_ZERO3, *SAVED)), *MODELS]
            else:
                names = list(OF_REPLICATE)
            folder = tmp_path_factory.mktemp(parallel)
            write_models(folder)
            answers[parallel, is_quick] = folder, asked(folder, parallel, names)
        return answers[parallel, is_quick]

    return of


@pytest.mark.parametrize(
    ("parallel", "name", "is_quick"),
    [
        *(("replicate", name, False) for name in OF_REPLICATE),
        *(("fsdp", name, False) for name in (*CASES, *(f"{name}, repeated" for name in REPEATED))),
        *(pytest.param("zero3", name, True, marks=needs_deepspeed) for name in QUICK),
        *(pytest.param("zero3", name, False, marks=[needs_deepspeed, pytest.mark.slow]) for name in OF_ZERO3),
    ],
)
def test_two_processes_make_the_update_of_one(parallel: str, name: str, is_quick: bool, two: Two) -> None:
    case = name.removesuffix(", repeated").removesuffix(", offloaded")
    began, (steps, after) = outcome(Processes(), None, CASES[case])
    for results in two(parallel, is_quick)[1]:
        their_beginning, (their_steps, theirs) = results[name]
        assert theirs.keys() == after.keys()
        assert all(torch.equal(their_beginning[n], p) for n, p in began.items())
        apart, way = distance(theirs, after), distance(began, after)
        if "half precision" in case:
            # bfloat16 has 8 bits, and sums in another order differ: if a gradient is all but 0, AdamW takes
            # that weight as far the other way, on some processors and not on others.
            assert (apart > TOLERANCE[case]).float().mean() <= 1e-3
            assert apart.norm() <= 0.2 * way.norm()
        else:
            assert apart.max() <= TOLERANCE.get(case, 1e-5)
        for step, other in zip(steps, their_steps, strict=True):
            rel, least = (0.05, 5e-3) if case in TOLERANCE else (1e-3, 1e-5)
            assert other == pytest.approx(step, rel=rel, abs=least)
    assert distance(began, after).max() > 3e-3, "there is something to compare"


BOTH = pytest.mark.parametrize("parallel", ["fsdp", pytest.param("zero3", marks=needs_deepspeed)])


@BOTH
def test_a_model_that_is_loaded_into_shards_is_the_one_in_the_folder(parallel: str, two: Two) -> None:
    folder, both = two(parallel, parallel == "zero3")
    stored = load_file(folder / "plain" / "model.safetensors")
    for results in both:
        assert results["plain"].keys() == stored.keys()
        assert all(torch.equal(results["plain"][name], tensor) for name, tensor in stored.items())


@BOTH
def test_logits_that_no_setting_tells_are_refused_in_shards_too(parallel: str, two: Two) -> None:
    for results in two(parallel, parallel == "zero3")[1]:
        assert "changes its logits after the output head in a way of its own" in results["odd"]


def files(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Every tensor of a checkpoint, by file; the random state is of the process that wrote it."""
    paths = [path for path in checkpoint.rglob("*.safetensors") if path.name != "rng.safetensors"]
    return {path.relative_to(checkpoint).as_posix(): load_file(path) for path in paths}


FILES = {
    "saved": {"optimizer", "reference", "value_head"},
    "saved in half precision": {"optimizer", "reference", "master_weights"},
}


@pytest.mark.parametrize(
    ("parallel", "name"),
    [
        ("fsdp", "saved"),
        *(pytest.param("zero3", name, marks=[needs_deepspeed, pytest.mark.slow]) for name in SAVED),
    ],
)
def test_what_two_processes_save_is_the_same_for_one_and_for_four(parallel: str, name: str, two: Two) -> None:
    """By whatever they hold the weights."""
    folder, (first, _) = two(parallel, False)
    alone = resumed(Processes(), None, folder, name, to="alone")
    others = ("fsdp",) if parallel == "fsdp" else ("zero3", "fsdp")
    four = asked(folder, parallel, [f"{name}, {other}" for other in others], count=4)[0]
    state = {f"trainer_state/{file}.safetensors" for file in FILES[name]}
    before = files(folder / name)
    assert set(before) == {"model.safetensors", *state}
    for other in ("alone", *others):
        again = files(folder / f"{name} {other}")
        assert again.keys() == before.keys()
        for file, tensors in again.items():
            assert tensors.keys() == before[file].keys()
            assert all(torch.equal(tensor, tensors[n]) for n, tensor in before[file].items())
    unbroken, tolerance = first[name], TOLERANCE["half precision"] if "half" in name else 1e-5
    for after in (alone, *four.values()):
        assert (
            max(float((after[n].float() - p.float()).abs().max()) for n, p in unbroken.items()) <= tolerance
        )


@needs_deepspeed
@pytest.mark.slow
def test_the_forecast_of_zero3_is_what_two_processes_hold(tmp_path: Path) -> None:
    shape = shape_of(tiny_model().config, LoraConfig())
    options: dict[str, Any] = {"shards": 2, "zero3": {}, "backend": "vllm", "device_bytes": None}
    every = asked(tmp_path, "zero3", HELD)
    for name in HELD:
        itemsize, is_offloaded = 2 if "half" in name else 4, "offload" in name
        run = config({"finetune.mode": "full", "grpo.kl_coef": "0.0"})
        made = forecast(run, shape, itemsize=itemsize, **options)
        for counted in (results[name] for results in every):
            for part in ("weights", "optimiser", "gathered"):
                assert counted[part] == pytest.approx(made.parts[part], rel=0.02), (name, part)
            # What is flattened for the optimiser is let go after the step, but on the host.
            times = 1 if is_offloaded else 2
            assert times * counted["gradients"] == pytest.approx(made.parts["gradients"], rel=0.02), name


@pytest.mark.parametrize("parallel", ["fsdp", "zero3"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"finetune.mode": "qlora"}, "4 bits"),
        ({"training.mixed_precision": "fp16"}, "fp16"),
        ({"rollout.backend": "hf"}, "hf backend"),
        ({"rollout.backend": "auto"}, "hf backend"),
    ],
)
def test_what_cannot_be_done_in_shards_is_refused_by_name(
    settings: dict[str, str], said: str, parallel: Shards
) -> None:
    with pytest.raises(UserError, match=said):
        refuse_sharding(config(settings), parallel=parallel, device=CPU)


def config(settings: Mapping[str, str]) -> TrainConfig:
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return load_train_config([], overrides, for_training=False).config


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"optimization.optimizer": "muon"}, "Muon"), ({"training.shard_size": "1"}, "training.shard_size")],
)
def test_what_zero3_alone_cannot_do_is_refused_by_name(settings: dict[str, str], said: str) -> None:
    sft = config({"algorithm": "sft", **settings})
    refuse_sharding(sft, parallel="fsdp", device=CPU)
    with pytest.raises(UserError, match=said):
        refuse_sharding(sft, parallel="zero3", device=CPU)


@needs_deepspeed
def test_zero3_refuses_a_value_head_beside_weights_in_half_precision() -> None:
    settings = {"grpo.advantage": "gae", "rollout.backend": "vllm", "vllm.servers": '["http://127.0.0.1:1"]'}
    half, whole = (config({**settings, "model.dtype": dtype}) for dtype in ("bfloat16", "float32"))
    refuse_sharding(half, parallel="fsdp", device=CPU)
    refuse_sharding(whole, parallel="zero3", device=CPU)
    with pytest.raises(UserError, match="is float32 and the weights are bfloat16") as refused:
        refuse_sharding(half, parallel="zero3", device=CPU)
    assert refused.value.where == "model.dtype"


@needs_deepspeed
@pytest.mark.slow
def test_zero3_refuses_adapters_of_the_output_head(tmp_path: Path) -> None:
    for results in asked(tmp_path, "zero3", [HEAD]):
        assert results[HEAD] == "ZeRO-3 cannot train adapters of the output head"


HIDES_DEEPSPEED = """
import sys
from importlib.machinery import PathFinder
class Hides(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "deepspeed" else super().find_spec(name, path, target)
sys.meta_path = [Hides if finder is PathFinder else finder for finder in sys.meta_path]
from mcpagent.cli.main import run
run()
"""


@pytest.mark.slow
@pytest.mark.skipif(not requirements("deepspeed"), reason="mcpagent was installed before it had this extra")
def test_zero3_without_deepspeed_names_the_package_and_its_extra(tmp_path: Path) -> None:
    words = (
        "train",
        "--config",
        str(resource_path("configs/zero3.yaml")),
        "--num-processes",
        "2",
        "--dry-run",
    )
    samples = str(resource_path("data/samples"))
    more = ("--set", "vllm.servers=[http://127.0.0.1:1]", "--device", "cpu", "--data", samples)
    done = subprocess.run(
        [sys.executable, "-c", HIDES_DEEPSPEED, *words, *more], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "training.parallel zero3 needs a package that is not installed: deepspeed" in said
    assert "'mcpagent[deepspeed]'" in said and list(tmp_path.iterdir()) == []


TWO = Processes(index=0, count=2)


def test_weights_lie_as_the_run_says_else_as_its_launcher_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharding(config({}), TWO) is None
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert sharding(config({}), TWO) == "zero3"
    assert sharding(config({"training.parallel": "fsdp"}), TWO) == "fsdp"
    assert sharding(config({"training.parallel": "replicate"}), TWO) is None
    assert sharding(config({}), Processes()) is None


def test_settings_of_deepspeed_come_from_its_file_else_from_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu")
    options = read_options(None, dtype=torch.float32)
    assert options == {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    file = tmp_path / "zero.json"
    file.write_text(
        json.dumps({"gradient_clipping": "auto", "bf16": {"enabled": True}, "wall_clock_breakdown": True})
    )
    assert read_options(str(file), dtype=torch.bfloat16) == {
        "bf16": {"enabled": True},
        "wall_clock_breakdown": True,
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zero_optimization": {"stage": 2}}, "stage is 2"),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"bf16": {"enabled": True}}, "model.dtype makes the weights float32"),
        ({"gradient_clipping": 1.0}, "optimization.gradient_clip decides"),
        ({"optimizer": {"type": "AdamW"}}, "section optimization"),
        ([], "JSON object"),
    ],
)
def test_settings_of_deepspeed_that_contradict_the_run_are_refused(
    settings: Any, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=said):
        read_options(str(file), dtype=torch.float32)


@needs_deepspeed
def test_the_shipped_settings_are_deepspeeds() -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    file = resource_path("configs/deepspeed/zero3.json")
    options = read_options(str(file), dtype=torch.bfloat16)
    parsed = DeepSpeedConfig({**options, "train_micro_batch_size_per_gpu": 1})
    assert parsed.zero_optimization_stage == 3 and parsed.bfloat16_config.enabled
    zero: Any = parsed.zero_config
    assert zero.offload_param.device == zero.offload_optimizer.device == "cpu"
    preset = load_train_config([resource_path("configs/zero3.yaml")], []).config
    assert read_options(str(file), dtype=getattr(torch, preset.model.dtype)) == options


@pytest.mark.parametrize("text", ["{", None])
def test_settings_of_deepspeed_that_cannot_be_read_are_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        read_options(str(file), dtype=torch.float32)
