"""Checkpoints that others made: a pickle is never loaded, and weights that are cut short or of other
sizes than config.json says are one error, whichever command meets them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mcpagent.errors import UserError
from mcpagent.models.load import load_model
from mcpagent.run.evaluate import evaluate_model
from mcpagent.run.export import export
from mcpagent.run.rollout import collect_rollouts
from mcpagent.run.train import plan_run, run_training
from tests.run.test_sealed import configured
from tests.run.world import TRAIN, fresh_adapters
from tests.running import in_turn

CPU = torch.device("cpu")


class Bomb:
    """What unpickles to a new file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def without_weights(folder: Path) -> Path:
    for file in folder.glob("*.safetensors"):
        file.unlink()
    return folder


def edited(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _pickle_alone(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, without_weights(folder) / "pytorch_model.bin")


def _bomb(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (without_weights(folder) / name).write_bytes(pickle.dumps(Bomb(folder / "exploded")))

    return make


def _index_of_pickles(folder: Path) -> None:
    names = list(load_file(folder / "model.safetensors"))
    _bomb("shard.bin")(folder)
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "shard.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _named_pickle(folder: Path) -> None:
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(folder / "exploded")))
    edited(folder, transformers_weights="adapter_model.bin")


def _elsewhere(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "outside.safetensors")
    edited(folder, transformers_weights="../outside.safetensors")


def _truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _head_only(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10")


def _layer_less(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(n for n in weights if n.endswith("mlp.up_proj.weight"))
    save_file({n: w for n, w in weights.items() if n != name}, folder / "model.safetensors")


# What is done to a good model folder -> a part of what is said.
FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "pytorch_model.bin": (_pickle_alone, r"the weights are a pickle \(pytorch_model.bin\)"),
    "a .pt": (_bomb("model.pt"), r"the weights are a pickle \(model.pt\)"),
    "a .pkl": (_bomb("weights.PKL"), r"the weights are a pickle \(weights.PKL\)"),
    "an index of pickles": (_index_of_pickles, "it names the pickle shard.bin"),
    "config.json names a pickle": (_named_pickle, "it names the pickle adapter_model.bin"),
    "config.json names a file elsewhere": (_elsewhere, "not a safetensors file of this folder"),
    "no weights": (without_weights, "model.safetensors is missing"),
    "cut short": (_truncated, "the weights cannot be read"),
    "one byte": (_head_only, "the weights cannot be read"),
    "wider": (
        lambda f: edited(f, hidden_size=32, head_dim=8),
        r"is \d+ x 16 in the weights and \d+ x 32 by config.json",
    ),
    "a larger vocabulary": (
        lambda f: edited(f, vocab_size=10**9),
        "512 x 16 in the weights and 1000000000 x 16",
    ),
    "more layers": (
        lambda f: edited(f, num_hidden_layers=3, layer_types=None),
        r"the weights have 1 of .* asks for 3",
    ),
    "no layers": (
        lambda f: edited(f, num_hidden_layers=0, layer_types=[]),
        "the weights have 1 of .* asks for 0",
    ),
    "a weight less": (_layer_less, r"the weights lack model\.layers\.0\.mlp\.up_proj\.weight"),
    "heads that divide nothing": (lambda f: edited(f, num_attention_heads=0), "config.json|cannot load"),
    "a size in words": (lambda f: edited(f, hidden_size="sixteen"), "config.json|cannot load"),
}


@pytest.fixture
def model(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    return fresh_adapters(model, tmp_path / "adapter")


READERS: dict[str, Callable[[Path, Path], object]] = {
    "load": lambda model, _: load_model(str(model), dtype=torch.float32, device=CPU),
    "eval": lambda model, _: evaluate_model(configured("x"), model=str(model)),
    "rollout": lambda model, out: collect_rollouts(configured("x"), policy=str(model), out=out / "r.jsonl"),
    "train": lambda model, out: run_training(configured(model), run_dir=out / "run"),
    "export": lambda model, out: export(model, out / "exported"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_it_is_refused_in_the_same_words_by_every_reader_and_nothing_is_written(
    what: str, model: Path, tmp_path: Path
) -> None:
    make, said = FOREIGN[what]
    make(model)
    everyone = READERS if what in ("an index of pickles", "cut short", "wider") else {"load": READERS["load"]}
    for reader, read in everyone.items():
        with pytest.raises(UserError, match=said) as caught:
            read(model, tmp_path / "out")
        assert str(model) in str(caught.value), reader
        assert caught.value.remedy, reader
    assert not (model / "exploded").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt", "adapter.pkl"])
def test_adapters_in_a_pickle_are_refused(name: str, adapter: Path, tmp_path: Path) -> None:
    _bomb(name)(adapter)
    for read in (*READERS.values(), lambda m, out: export(m, out / "e", merge=True)):
        with pytest.raises(UserError, match=rf"the weights are a pickle \({name}\)"):
            read(adapter, tmp_path / "out")
    assert not (adapter / "exploded").exists()
    assert not (tmp_path / "out").exists()


def test_adapters_are_refused_whose_base_is_one(adapter: Path, model: Path, tmp_path: Path) -> None:
    _bomb("pytorch_model.bin")(model)
    for reader in ("load", "eval", "rollout", "train"):
        with pytest.raises(UserError, match="the weights are a pickle"):
            READERS[reader](adapter, tmp_path / "out")
    assert not (model / "exploded").exists()


def test_adapters_of_another_rank_or_with_some_missing_are_refused(adapter: Path) -> None:
    whole = load_file(adapter / "adapter_model.safetensors")
    half = dict(list(whole.items())[: len(whole) // 2])
    narrow = {n: (w[:2] if "lora_A" in n else w[:, :2]).contiguous() for n, w in whole.items()}
    for weights in (half, narrow):
        save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match="cannot load"):
            READERS["load"](adapter, adapter)


def test_pickles_beside_safetensors_are_neither_read_nor_exported(model: Path, tmp_path: Path) -> None:
    """transformers' own trainer leaves an optimizer.pt and a training_args.bin beside a model."""
    for name in ("optimizer.pt", "training_args.bin", "pytorch_model.bin"):
        (model / name).write_bytes(pickle.dumps(Bomb(model / "exploded")))
    READERS["load"](model, tmp_path)
    export(model, tmp_path / "out")
    assert not (model / "exploded").exists()
    assert not {path.suffix for path in (tmp_path / "out").iterdir()} & {".pt", ".bin"}


def test_no_library_unpickles_while_a_model_is_loaded(model: Path) -> None:
    """Whatever leads a library to a pickle, such as a repository of the hub with nothing else."""
    from mcpagent.models import load

    pickled = model / "other.bin"
    torch.save({}, pickled)
    with pytest.raises(UserError, match=r"other\.bin is a pickle"):
        load._from_pretrained(lambda _: torch.load(pickled), str(model))
    assert torch.load(pickled) == {}


def test_a_plan_needs_no_weights_but_refuses_what_the_run_refuses(model: Path) -> None:
    config = model / "config.json"
    before = config.read_text()
    edited(model, hidden_size=32, head_dim=8)
    with pytest.raises(UserError, match="sizes are not those of the weights"):
        plan_run(configured(model))
    config.write_text(before)
    assert plan_run(configured(without_weights(model)))
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="the weights are a pickle"):
        plan_run(configured(model))


def test_each_command_says_it_in_one_error(model: Path, tmp_path: Path) -> None:
    _bomb("pytorch_model.bin")(model)
    typed = [
        command.format(m=named, d=TRAIN, o=tmp_path / "out").split()
        for named in (model, model / "pytorch_model.bin")
        for command in (
            "eval checkpoint {m} --data {d} --out {o}/e.json",
            "train --model {m} --data {d} --out {o}/run --set training.eval_every=0",
            "export {m} --out {o}/exported",
            "rollout --policy {m} --data {d} --out {o}/r.jsonl",
            "smoke --model {m}",
        )
    ]
    pickled = "the weights are a pickle (pytorch_model.bin)"
    said = [*[pickled] * 5, *["is a file, and a model is a folder"] * 5]
    for answer, part in zip(in_turn(typed, cwd=tmp_path), said, strict=True):
        assert (answer.code, answer.out, answer.err.count("error: ")) == (2, "", 1)
        assert part in answer.err and "Traceback" not in answer.err
    assert not (tmp_path / "out").exists() and not (model / "exploded").exists()
