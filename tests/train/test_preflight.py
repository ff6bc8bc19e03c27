"""What a run is refused for before anything is loaded, and what it takes: for this machine or another one."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from transformers import Qwen3Config

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import LoraConfig, TrainConfig
from mcpagent.errors import UserError
from mcpagent.models.architecture import find_architecture
from mcpagent.models.load import resolve_dtype
from mcpagent.train.forecast import forecast, shape_of
from mcpagent.train.plan import TargetDevice, check_run, target_device

GIB = 2**30
A100 = TargetDevice(kind="cuda", memory=80 * GIB, is_here=False)
SMALL_GPU = TargetDevice(kind="cuda", memory=24 * GIB, is_here=False)
# Parameters as the models' cards name them.
PUBLISHED = {
    "Qwen/Qwen3-0.6B": 0.6e9,  # whose head is its embeddings
    "Qwen/Qwen3-32B": 32.8e9,
}


def config(*settings: str) -> TrainConfig:
    return load_train_config([], settings).config


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_can_be_planned_where_they_are_not(name: str) -> None:
    shape = shape_of(find_architecture(name).config, LoraConfig())
    assert shape.parameters == pytest.approx(PUBLISHED[name], rel=0.02)


def test_a_folder_with_a_config_json_alone_is_planned(tmp_path: Path) -> None:
    Qwen3Config(hidden_size=64, num_hidden_layers=2, vocab_size=100).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    checked = check_run(config(f"model.name={tmp_path}"), A100)
    assert checked.shape is not None and checked.shape.layers == 2
    assert checked.fits is True


def test_a_model_that_nobody_can_be_asked_about_is_unknown_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checked = check_run(config("model.name=somebody/something"), A100)
    assert checked.forecast is None and checked.fits is None
    assert any("put that one file into a folder" in note for note in checked.notes)


def test_the_embedded_model_has_the_size_that_it_is_built_with() -> None:
    shape = check_run(config("model.name=embedded", "algorithm=sft", "finetune.mode=full"), A100).shape
    assert shape is not None
    # Tied embeddings 2048 x 96; of each of 3 layers four square projections, three of the feed-forward
    # network, two norms of 96 and two of a head's 32; the last norm.
    layer = 4 * 96 * 96 + 3 * 96 * 288 + 2 * 96 + 2 * 32
    assert shape.parameters == 2048 * 96 + 3 * layer + 96


def test_a_run_that_does_not_fit_is_told_its_largest_part_and_what_lowers_that() -> None:
    settings = ("model.name=Qwen/Qwen3-8B", "finetune.mode=qlora", "rollout.backend=hf")
    checked = check_run(config(*settings, "model.gradient_checkpointing=false"), SMALL_GPU)
    assert checked.fits is False
    (note,) = (note for note in checked.notes if note.startswith("memory: "))
    assert "the cuda device has 24.0 GiB, of which activations would take" in note
    assert "training.micro_batch_tokens (it is 8192: 4096)" in note
    assert "model.gradient_checkpointing (it is false: true)" in note
    assert "num_envs" not in note
    lower = check_run(config(*settings, "model.gradient_checkpointing=true"), SMALL_GPU)
    assert lower.fits is True and not any(note.startswith("memory: ") for note in lower.notes)


def test_a_run_whose_weights_alone_do_not_fit_is_refused_with_what_takes_less() -> None:
    settings = ("model.name=Qwen/Qwen3-8B", "finetune.mode=full")
    with pytest.raises(UserError) as refused:
        check_run(config(*settings), SMALL_GPU)
    # 8.19e9 weights of 2 bytes and a reference as large; gradients, two moments and masters of 4.
    assert "152.6 GiB of weights, gradients and optimiser state" in refused.value.message
    assert "finetune.mode (it is full: lora)" in (refused.value.remedy or "")


def test_a_model_that_no_device_holds_passes_where_processes_share_it() -> None:
    settings = ["model.name=Qwen/Qwen3-8B", "finetune.mode=full", "device=cuda"]
    settings += ["rollout.backend=vllm", 'vllm.servers=["http://127.0.0.1:1"]']
    for parallel, count in (("fsdp", 1), ("replicate", 4)):
        with pytest.raises(UserError, match="whatever its batches are"):
            check_run(config(*settings, f"training.parallel={parallel}"), A100, count=count)
    sharded = config(*settings, "training.parallel=fsdp")
    for each in (sharded, config(*settings, "training.parallel=zero3")):
        assert check_run(each, A100, count=4).fits is True
    # Groups of four hold what four hold, on however many devices.
    grouped = config(*settings, "training.parallel=fsdp", "training.shard_size=4")
    parts = [check_run(c, A100, count=n).forecast.parts for c, n in ((grouped, 8), (sharded, 4))]  # type: ignore[union-attr]
    assert parts[0] == parts[1]


def test_what_zero3_cannot_do_ends_a_run_before_its_weights_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_text('{"zero_optimization": {"stage": 2}}')
    settings = [
        "model.name=Qwen/Qwen3-0.6B",
        "finetune.mode=full",
        "algorithm=sft",
        "training.parallel=zero3",
    ]
    for more, said in (
        ("optimization.optimizer=muon", "Muon"),
        (f"training.deepspeed_config={file}", "stage"),
    ):
        assert check_run(config(*settings, more), A100, count=1)
        with pytest.raises(UserError, match=said):
            check_run(config(*settings, more), A100, count=2)


def test_an_engine_leaves_its_share_to_the_update() -> None:
    chosen = config("rollout.backend=auto")
    shape = shape_of(find_architecture("Qwen/Qwen3-4B").config, LoraConfig())
    made = forecast(chosen, shape, itemsize=2, backend="vllm", device_bytes=80 * GIB)
    own = sum(size for name, size in made.parts.items() if name != "vllm")
    assert made.parts["vllm"] == pytest.approx(0.6 * 80 * GIB)
    held_with_it = made.fixed + made.parts["vllm"]
    assert made.peak == max(own, held_with_it)


def test_a_named_gpu_need_not_be_here_for_a_plan() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    planned = target_device(config("device=cuda"), gpu_memory_gib=80)
    assert planned == A100
    assert target_device(config("device=auto"), gpu_memory_gib=80) == A100
    with pytest.raises(UserError, match="device cuda is not available here"):
        target_device(config("device=cuda"))
    with pytest.raises(UserError, match="but device is cpu"):
        target_device(config("device=cpu"), gpu_memory_gib=80)


def test_packages_are_not_asked_for_on_behalf_of_another_machine() -> None:
    wanted = config("finetune.mode=qlora", "rollout.backend=hf", "device=cuda")
    assert check_run(wanted, A100).fits is not None
    with_flash = config("model.attn_implementation=flash_attention_2", "rollout.backend=vllm", "device=cuda")
    checked = check_run(with_flash, A100)
    assert (checked.backend.backend, str(checked.dtype)) == ("vllm", "torch.bfloat16")
    assert any("which packages are installed there is not known" in note for note in checked.notes)


def test_this_machines_memory_is_what_it_has() -> None:
    here = target_device(config("device=cpu"))
    assert here.kind == "cpu" and here.is_here
    assert here.memory is not None and 0 < here.memory <= psutil.virtual_memory().total


def test_the_forecast_is_in_the_dtype_of_the_device() -> None:
    cpu, gpu = (
        check_run(
            config("rollout.backend=hf", "rollout.num_envs=4"), TargetDevice(kind=kind, memory=80 * GIB)
        )
        for kind in ("cpu", "cuda")
    )
    assert cpu.forecast is not None and gpu.forecast is not None
    assert cpu.dtype == resolve_dtype("auto", torch.device("cpu"), width=1024)
    caches = [
        f.parts["kv_cache"] / checked.dtype.itemsize for checked in (cpu, gpu) if (f := checked.forecast)
    ]
    assert caches[0] == caches[1] > 0


def test_a_pass_on_a_cpu_keeps_no_more_than_half_of_the_weights() -> None:
    """By hand, of Qwen3-0.6B: 596 million weights, of 2 bytes 1.11 GiB; about 1.1 MiB a token (28 layers of
    19,000 elements and 8,000 in float32), so that 256 tokens have room and 512 hardly."""
    target = TargetDevice(kind="cpu", memory=24 * GIB)
    chosen = load_train_config([], ["device=cpu", "model.dtype=bfloat16", "rollout.backend=hf"]).config
    checked = check_run(chosen, target)
    assert checked.forecast is not None
    assert checked.settled(chosen).training.micro_batch_tokens in (256, 512)
    assert checked.forecast.parts["activations"] <= checked.forecast.parts["weights"] / 2
    assert (
        checked.forecast.fixed + checked.forecast.parts["activations"]
        < 2.5 * checked.forecast.parts["weights"]
    )
    told = load_train_config([], ["device=cpu", "training.micro_batch_tokens=3000"]).config
    assert check_run(told, target).settled(told).training.micro_batch_tokens == 3000


def test_adapters_on_no_layer_are_refused_without_the_weights(tmp_path: Path) -> None:
    Qwen3Config(hidden_size=64, num_hidden_layers=2, vocab_size=100).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="fits no layer of the model") as refused:
        check_run(config(f"model.name={tmp_path}", "lora.target_modules=[query]"), A100)
    assert "q_proj" in str(refused.value.remedy)


def test_layers_are_checkpointed_by_default_on_an_accelerator_and_the_forecast_knows() -> None:
    def activations(kind: str, *settings: str) -> float:
        common = (f"device={kind}", "rollout.backend=hf", "training.micro_batch_tokens=4096")
        config = load_train_config([], [*common, *settings]).config
        target = TargetDevice(kind=kind, memory=None, is_here=kind == "cpu")
        expected = check_run(config, target).forecast
        assert expected is not None
        return expected.parts["activations"]

    off, on = (f"model.gradient_checkpointing={value}" for value in ("false", "true"))
    assert activations("cuda") == activations("cuda", on) < 0.2 * activations("cuda", off)
    assert activations("cpu") == activations("cpu", off) > activations("cpu", on)


def test_8b_in_4_bits_fits_24_gib_with_as_many_episodes_as_there_is_room_for() -> None:
    """By hand: 36 layers x 8 heads x 128 x 2 (keys and values) x 2 bytes = 147,456 bytes a token, 0.5625 GiB
    a context of 4,096: the 64 episodes of the preset are 36 GiB. Of 22.8 GiB (95%) the weights take 6.95e9 x
    0.516 bytes in 4 bits and 2 x 151,936 x 4,096 x 2 for embeddings and head: 5.7 GiB; adapters, their
    gradients, moments and masters 0.7."""
    presets = [Path("configs") / f"{name}.yaml" for name in ("model", "algo_grpo", "rollout", "qlora")]
    preset = load_train_config(presets, ["model.name=Qwen/Qwen3-8B", "device=cuda"]).config
    checked = check_run(preset, SMALL_GPU)
    assert checked.fits is True and checked.forecast is not None
    episodes = checked.forecast.episodes
    assert 25 <= episodes <= 31
    assert checked.forecast.parts["kv_cache"] == pytest.approx(episodes * 4096 * 147_456)
    assert any(f"{episodes} of 64 episodes are played at once" in note for note in checked.notes)
    larger = check_run(preset, A100)
    assert larger.forecast is not None and larger.forecast.episodes == larger.forecast.asked == 64
    on_cpu = check_run(
        config("rollout.max_context_tokens=32768"), TargetDevice(kind="cpu", memory=24 * GIB)
    ).forecast
    assert on_cpu is not None and on_cpu.episodes == on_cpu.asked  # there the settings count


def test_an_update_does_not_hold_the_cache_of_episodes_that_are_over() -> None:
    shape = shape_of(find_architecture("Qwen/Qwen3-4B").config, LoraConfig())
    chosen = config("rollout.backend=hf", "training.micro_batch_tokens=16384")
    made = forecast(chosen, shape, itemsize=2, backend="hf", device_bytes=None)
    update = made.fixed + made.parts["activations"] + made.parts["logits"]
    assert made.peak == pytest.approx(max(update, made.fixed + made.parts["kv_cache"]))
