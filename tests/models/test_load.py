"""Loading, adapting and saving models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file

from mcpagent.demo.warm_start import EmbeddedShape, build_model, train_tokenizer
from mcpagent.errors import UserError
from mcpagent.models import weights
from mcpagent.models.adapters import causal_lm
from mcpagent.models.load import (
    empty_model,
    load_config,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    save_model,
    use_checkpointing,
)
from mcpagent.models.weights import tensors_in
from tests.models.adapters import adapted, move_adapters
from tests.models.families import FAMILIES, tiny
from tests.running import BOUND_S, Python

CPU = torch.device("cpu")
IDS = torch.arange(9, 40)[None]


def load(folder: Path) -> Any:
    return load_model(str(folder), dtype=torch.float32, device=CPU)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits


def test_a_saved_model_gives_the_same_logits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = load(tiny_checkpoint)
    save_model(model, load_tokenizer(str(tiny_checkpoint)), tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again")), logits(model))
    assert not list((tmp_path / "again").glob("*.bin"))


def test_an_adapter_folder_loads_as_its_base_with_the_adapter_merged(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    # In float32 the sum of two products and the product with a sum are 1e-5 apart, more on some processors.
    trained = adapted(load(tiny_checkpoint).double()).double()
    move_adapters(trained)
    save_model(trained, load_tokenizer(str(tiny_checkpoint)), tmp_path / "adapter")
    merged = load_model(str(tmp_path / "adapter"), dtype=torch.float64, device=CPU)
    assert not hasattr(merged, "peft_config")
    assert torch.allclose(logits(merged), logits(trained), atol=1e-10)
    assert not torch.allclose(logits(merged), logits(load(tiny_checkpoint)).double(), atol=1e-2)


def test_adapters_depend_on_their_seed_alone_and_leave_the_global_stream_alone(tiny_checkpoint: Path) -> None:
    def halves(seed: int) -> list[torch.Tensor]:
        model = adapted(load(tiny_checkpoint), seed=seed)
        return [p.detach() for n, p in model.named_parameters() if "lora_A" in n]

    torch.manual_seed(1)
    first = halves(7)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    assert all(torch.equal(a, b) for a, b in zip(first, halves(7), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, halves(8), strict=True))


def test_the_model_inside_an_adapter_model_is_found(tiny_checkpoint: Path) -> None:
    model = load(tiny_checkpoint)
    assert causal_lm(model) is model
    assert causal_lm(adapted(model)) is model


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(UserError, match="/no/such/folder"):
        load(Path("/no/such/folder"))


def test_a_folder_without_a_model_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot load") as caught:
        load(tmp_path)
    assert caught.value.remedy


def test_a_run_folder_is_read_as_the_checkpoint_that_it_means(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for step in (3, 7):
        shutil.copytree(tiny_checkpoint, tmp_path / "run" / "checkpoints" / f"step-{step:06d}")
    (tmp_path / "run" / "checkpoints" / "step-000003" / "config.json").write_text("{}")
    expected = load(tiny_checkpoint).state_dict()
    for name in (tmp_path / "run", tmp_path / "run@7", tmp_path / "run@latest"):
        assert all(torch.equal(value, expected[key]) for key, value in load(name).state_dict().items())
        assert len(load_tokenizer(str(name))) == 512
        assert load_config(str(name)).hidden_size == 16
    with pytest.raises(UserError, match="no checkpoint of step 5"):
        load_config(str(tmp_path / "run@5"))


def test_an_adapter_of_no_model_is_the_users_error_and_asks_no_hub(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    save_model(adapted(load(tiny_checkpoint)), load_tokenizer(str(tiny_checkpoint)), tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": None}))
    for read in (load, lambda folder: load_config(str(folder))):
        with pytest.raises(UserError, match="does not name its model") as caught:
            read(tmp_path)
        assert caught.value.where == f"{tmp_path}/adapter_config.json"


def test_a_device_that_is_missing_is_an_error_and_auto_is_none() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="cuda is not available"):
            resolve_device("cuda")
    assert resolve_device("cpu") == CPU
    assert resolve_dtype("auto", CPU) is resolve_dtype("auto", CPU, width=64) is torch.float32
    if not torch.cpu.get_capabilities().get("avx512_bf16"):
        assert resolve_dtype("auto", CPU, width=1024) is torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert resolve_dtype("float16", CPU) is torch.float16


def test_the_embedded_model_depends_on_its_seed_alone() -> None:
    tokenizer = train_tokenizer([], vocab_size=0, catalog_hash="")
    shape = EmbeddedShape(hidden_size=16, layers=1, heads=2, intermediate_size=32)
    torch.manual_seed(0)
    first = build_model(tokenizer, shape=shape, seed=3)
    drawn = torch.rand(2)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(2))
    again, other = (build_model(tokenizer, shape=shape, seed=s) for s in (3, 4))
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))
    assert first.get_output_embeddings().weight is first.get_input_embeddings().weight


def test_a_schema_that_the_tokenizer_was_trained_on_costs_a_few_tokens() -> None:
    schema = '{"type": "function", "function": {"name": "get_quote", "parameters": {"symbol": "string"}}}'
    tokenizer = train_tokenizer([schema] * 8, vocab_size=600, catalog_hash="")
    # 95 characters. Words and punctuation merge across spaces, so the whole of it is one or two tokens.
    assert len(tokenizer.encode(schema)) <= 2
    assert tokenizer.decode(tokenizer.encode(schema)) == schema


def test_adapters_are_in_the_dtype_that_the_model_computes_in(tiny_checkpoint: Path) -> None:
    """Of others PEFT casts every input, and a backward pass keeps those copies. The optimiser has float32
    weights of its own; what the adapters begin with does not depend on the dtype."""
    half = adapted(load_model(str(tiny_checkpoint), dtype=torch.bfloat16, device=CPU))
    exact = dict(adapted(load(tiny_checkpoint)).named_parameters())
    trained = {n: p for n, p in half.named_parameters() if p.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.bfloat16}
    assert all(torch.equal(p, exact[n].to(torch.bfloat16)) for n, p in trained.items())


def test_target_modules_that_fit_nothing_are_named_with_those_that_would(tiny_checkpoint: Path) -> None:
    with pytest.raises(UserError, match="q_projection") as caught:
        adapted(load(tiny_checkpoint), targets=["q_projection"])
    assert "q_proj, " in (caught.value.remedy or "")


def test_four_bits_are_for_cuda_and_the_error_names_the_alternative(tiny_checkpoint: Path) -> None:
    with pytest.raises(UserError, match="qlora needs a CUDA GPU") as caught:
        load_model(str(tiny_checkpoint), dtype=torch.float32, device=CPU, in_4bit=True)
    assert "finetune.mode=lora" in (caught.value.remedy or "")


def test_an_attention_that_cannot_run_here_is_the_users_error(tiny_checkpoint: Path) -> None:
    with pytest.raises(UserError, match="flash_attention_2 is not available here") as caught:
        load_model(
            str(tiny_checkpoint), dtype=torch.float32, device=CPU, attn_implementation="flash_attention_2"
        )
    assert "sdpa" in (caught.value.remedy or "")


def test_checkpointing_changes_no_gradient(tiny_checkpoint: Path) -> None:
    def gradients(*, checkpointing: bool) -> list[torch.Tensor]:
        model = adapted(load(tiny_checkpoint))
        move_adapters(model)
        if checkpointing:
            use_checkpointing(model)
        model.train()
        model(input_ids=IDS, use_cache=False).logits.square().mean().backward()
        return [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]

    plain, recomputed = gradients(checkpointing=False), gradients(checkpointing=True)
    assert len(plain) == len(recomputed) > 0
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, recomputed, strict=True))


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_what_the_heap_kept_is_given_back_before_a_model_is_loaded(tiny_checkpoint: Path) -> None:
    script = (
        "import sys, psutil, torch\n"
        "from mcpagent.models.load import load_model\n"
        "mib = lambda: psutil.Process().memory_info().rss / 2**20\n"
        "blocks = [bytearray(100_000) for _ in range(4000)]\n"
        "last = bytearray(100_000)\n"  # holds the top of the heap, which cannot shrink by itself
        "del blocks\n"
        "before = mib()\n"
        "load_model(sys.argv[1], dtype=torch.float32, device=torch.device('cpu'))\n"
        "print(before - mib())\n"
    )
    with Python("-c", script, tiny_checkpoint, stdout=subprocess.PIPE, text=True) as process:
        given_back, _ = process.communicate(timeout=BOUND_S)
    assert float(given_back) > 200  # of 381


@pytest.mark.skipif(sys.platform != "linux", reason="reads what is mapped from /proc")
def test_what_was_read_of_a_file_of_weights_does_not_stay_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are converted were held twice until the last one was read."""
    monkeypatch.setattr(weights, "_MOST_MAPPED", 1 << 20)
    file = tmp_path / "model.safetensors"
    save_file({f"w{i:02}": torch.full((1 << 18,), float(i)) for i in range(16)}, file)  # 1 MiB each
    read = [tensor[...].bfloat16() for _, tensor in sorted(tensors_in(file).items())]
    mapped = sum(part.rss for part in psutil.Process().memory_maps() if part.path == str(file))
    assert mapped <= 4 << 20
    assert [float(values[-1]) for values in read] == [float(i) for i in range(16)]


@pytest.mark.parametrize("load_it", [load, lambda folder: empty_model(str(folder), dtype=torch.float32)])
def test_a_folder_need_not_say_how_to_generate(tmp_path: Path, load_it: Any) -> None:
    tiny(FAMILIES[0]).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").unlink()
    model = load_it(tmp_path / "model")
    assert model.generation_config is not None
    assert Path(model.config.name_or_path) == tmp_path / "model"
