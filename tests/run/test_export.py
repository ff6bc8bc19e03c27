"""`mcpagent export`: a folder that plain transformers loads, with the checkpoint's weights and a card."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mcpagent.config.environment import resource_path
from mcpagent.env.parsing import LOADED_DIALECTS, parse_action
from mcpagent.errors import UserError
from mcpagent.run.export import TOOL_PARSERS, export
from mcpagent.run.train import run_training
from mcpagent.storage.run_folder import RunFolder
from tests.run.world import TRAIN, short_run

pytestmark = pytest.mark.system

TOKENS = [[5, 9, 100, 17, 300, 8, 44, 2]]
# Nothing but transformers: no mcpagent, no PEFT.
PLAIN = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
chat = [{"role": "user", "content": "hello"}]
with torch.no_grad():
    logits = model(torch.tensor(json.loads(sys.argv[2]))).logits
print(json.dumps({
    "logits": logits.flatten().tolist(),
    "prompt": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
    "eos": model.generation_config.eos_token_id,
    "foreign": sorted({"mcpagent", "peft"} & set(sys.modules)),
}))
"""


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """Two steps with an evaluation after the second."""
    settings = (
        *(f"data.validation={TRAIN}", "data.max_tasks=2", "training.eval_every=2"),
        "optimization.learning_rate=0.1",
    )
    config = short_run(tiny_checkpoint, TRAIN, *settings, base=resource_path("configs/quickstart.yaml"))
    return run_training(config, run_dir=tmp_path_factory.mktemp("lora") / "run").run_dir


def load_plainly(folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder), json.dumps(TOKENS)],
        capture_output=True,
        check=True,
        cwd=folder,
    )
    return json.loads(done.stdout)


def logits_of(base: Path, adapter: Path | None) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(base)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))  # unmerged: added at every forward pass
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS)).logits.flatten()


def test_a_merged_export_is_the_trained_model_to_plain_transformers(
    lora_run: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    done = export(lora_run, tmp_path / "model", merge=True)
    assert done.kind == "model"
    loaded = load_plainly(tmp_path / "model")
    checkpoint = RunFolder.open(lora_run).checkpoint_dir(2)
    trained, base = logits_of(tiny_checkpoint, checkpoint), logits_of(tiny_checkpoint, None)
    assert not torch.allclose(trained, base, atol=1e-2), "the run must have changed the model"
    assert torch.allclose(torch.tensor(loaded["logits"]), trained, atol=1e-4)
    assert loaded["foreign"] == []
    assert "hello" in str(loaded["prompt"])
    assert loaded["eos"] == [2]
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"} <= names
    assert not any("trainer" in name or "adapter" in name or "sha256" in name for name in names)


def test_without_merge_the_adapters_are_exported(
    lora_run: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    done = export(RunFolder.open(lora_run).checkpoint_dir(2), tmp_path / "adapter")
    assert done.kind == "adapter"
    exported = logits_of(tiny_checkpoint, tmp_path / "adapter")
    assert torch.equal(exported, logits_of(tiny_checkpoint, RunFolder.open(lora_run).checkpoint_dir(2)))


def test_the_card_tells_data_settings_and_what_was_measured(lora_run: Path, tmp_path: Path) -> None:
    export(lora_run, tmp_path / "adapter")
    card = (tmp_path / "adapter" / "README.md").read_text()
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "peft"
    run = RunFolder.open(lora_run)
    assert run.manifest["data"]["sha256"] in body
    assert "2 tasks of `train.jsonl`" in body
    evaluation = json.loads((run.evaluations / "step-000002.json").read_text())
    success = evaluation["metrics"]["task_success"]
    row = (
        f"| task_success | {success['value']:.3f} | {success['ci_low']:.3f} to {success['ci_high']:.3f} | 2 |"
    )
    assert row in body
    record = run.metrics()[-1]
    assert f"kl {record['kl']:.4g}" in body
    assert "learning_rate: 0.1" in body
    assert str(lora_run.parent) not in card, "a card is published: no folder of this machine"
    assert "More Information Needed" not in card


def test_the_card_names_the_servers_with_versions_and_shows_a_call(lora_run: Path, tmp_path: Path) -> None:
    export(lora_run, tmp_path / "adapter")
    card = (tmp_path / "adapter" / "README.md").read_text()
    versions = RunFolder.open(lora_run).manifest["server_versions"]
    assert versions
    assert f"- servers: {', '.join(f'{name} {versions[name]}' for name in sorted(versions))}\n" in card
    shown = card.split("## Calls and answers")[1].split("```")[1]
    (call,) = parse_action(shown, tool_format="hermes").calls
    assert (call.tool, call.arguments) == ("get_weather", {"city": "Oslo"})
    assert "`Answer: ...`" in card


def test_what_is_typed_next_serves_the_adapter_on_its_base_with_the_parser_of_its_format(
    lora_run: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my adapter"
    done = export(lora_run, out)
    _, upload, serve = map(shlex.split, done.commands)
    assert upload == ["hf", "upload", "my-adapter", str(out)]
    assert serve[:3] == ["vllm", "serve", str(tiny_checkpoint)]
    told = dict(pairwise(serve))
    assert told["--lora-modules"] == f"my-adapter={out}"
    assert int(told["--max-lora-rank"]) >= json.loads((out / "adapter_config.json").read_text())["r"]
    assert told["--chat-template"] == str(out / "chat_template.jinja")
    assert told["--tool-call-parser"] == "hermes" and "--enable-auto-tool-choice" in serve
    merged = shlex.split(export(lora_run, tmp_path / "merged", merge=True).commands[2])
    assert merged[:3] == ["vllm", "serve", str(tmp_path / "merged")] and "--enable-lora" not in merged


def test_a_converter_on_the_path_is_one_more_command(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(export(tiny_checkpoint, tmp_path / "first").commands) == 3
    converter = tmp_path / "bin" / "convert_hf_to_gguf.py"
    converter.parent.mkdir()
    converter.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{converter.parent}:{os.environ['PATH']}")
    out = tmp_path / "second"
    assert export(tiny_checkpoint, out).commands[-1] == f"{converter.name} {out} --outfile second.gguf"


def test_every_format_with_marks_of_its_own_has_a_parser() -> None:
    """json and xml are text that only we read."""
    assert LOADED_DIALECTS.keys() - TOOL_PARSERS.keys() == {"json", "xml"}
    assert TOOL_PARSERS.keys() <= LOADED_DIALECTS.keys()


def test_a_full_checkpoint_is_a_model_either_way(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for merge in (False, True):
        out = tmp_path / f"merge-{merge}"
        assert export(tiny_checkpoint, out, merge=merge).kind == "model"
        assert (out / "model.safetensors").read_bytes() == (
            tiny_checkpoint / "model.safetensors"
        ).read_bytes()
        assert "nothing more is known" in (out / "README.md").read_text()


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(lora_run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(UserError, match="already exists"):
        export(lora_run, tmp_path / "taken")
    with pytest.raises(UserError, match="no such checkpoint"):
        export(tmp_path / "missing", tmp_path / "out")
    weights = RunFolder.open(lora_run).checkpoint_dir(2) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    try:
        with pytest.raises(UserError, match=r"adapter_model.safetensors is not what was written"):
            export(lora_run, tmp_path / "out")
    finally:
        weights.write_bytes(whole)
    assert not (tmp_path / "out").exists()
