"""Bad input of the commands that judge: each is one error (what, where, what to do) with exit code 2,
and nothing is written or lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.loader import dump_config
from mcpagent.run.evaluate import evaluate_model
from mcpagent.storage.run_folder import RunFolder
from tests.evaluate.run_folder import write_run
from tests.run.world import SHORT, config, dataset, fresh_adapters, samples
from tests.running import Answer, in_turn

pytestmark = pytest.mark.system


def _result(folder: Path, name: str, **changes: Any) -> None:
    document = json.loads((folder / "good.json").read_text())
    (folder / name).write_text(json.dumps(document | changes))


@pytest.fixture(scope="module")
def world(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files beside the ones that are damaged, each in its own way."""
    folder = tmp_path_factory.mktemp("world")
    data = dataset(folder / "tasks.jsonl", samples(count=3))
    dataset(folder / "others.jsonl", samples(count=6)[3:])
    first = samples(count=1)[0]
    dataset(folder / "doubled.jsonl", [first, first])
    evaluate_model(config(), model="empty", data=data, out=folder / "good.json")
    text = (folder / "good.json").read_text()
    (folder / "cut.json").write_text(text[: len(text) // 2])
    (folder / "nothing.json").write_text("")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "word.json").write_text('"evaluation"')
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00\x80")
    (folder / "nan.json").write_text(text.replace('"n_tasks": 3', '"n_tasks": NaN', 1))
    _result(folder, "version.json", schema_version=99)
    _result(folder, "lonely.json")
    _result(folder, "type.json", metrics=[])
    evaluate_model(config(), model="empty", data=folder / "others.jsonl", out=folder / "elsewhere.json")
    episodes = folder / "good.jsonl.zst"
    from mcpagent.storage.trajectories import read_trajectories

    plain = [t.model_dump_json() for t in read_trajectories(episodes)]
    (folder / "plain.jsonl").write_text("\n".join(plain) + "\n")
    (folder / "cut.jsonl").write_text("\n".join(plain)[:-200])
    (folder / "middle.jsonl").write_text("\n".join([plain[0][:80], *plain[1:]]) + "\n")
    (folder / "twice.jsonl").write_text("\n".join([*plain, plain[0]]) + "\n")
    (folder / "empty.jsonl").write_text("")
    (folder / "numbers.jsonl").write_text("1\n2\n")
    (folder / "cut.jsonl.zst").write_bytes(episodes.read_bytes()[:-40])
    (folder / "bare").mkdir()
    shutil.copytree(tiny_checkpoint, folder / "model")
    adapters = folder / "adapters"
    _other_adapters(tiny_checkpoint, adapters)
    run = RunFolder.create(
        folder / "run",
        config_yaml=dump_config(config(SHORT, f"model.name={tiny_checkpoint}", f"data.train={data}")),
        manifest={},
    )
    shutil.copytree(tiny_checkpoint, run.checkpoint_dir(4))
    RunFolder.create(folder / "begun", config_yaml=dump_config(config()), manifest={})
    write_run(folder / "reported", tasks=2)
    shutil.copytree(folder / "reported", folder / "torn")
    (folder / "torn" / "eval" / "trained.json").write_text(text[: len(text) // 2])
    return folder


def _other_adapters(base: Path, folder: Path) -> None:
    """Adapters of a model with other widths, which say that they are for this one."""
    from safetensors.torch import load_file, save_file

    weights = fresh_adapters(base, folder) / "adapter_model.safetensors"
    save_file({name: value.repeat(2, 2) for name, value in load_file(weights).items()}, weights)


# What is typed -> what the answer must hold. {w} is the world.
CASES = {
    # a model
    "eval checkpoint {w}/bare --data {w}/tasks.jsonl": ["bare", "neither a checkpoint"],
    "eval checkpoint {w}/begun --data {w}/tasks.jsonl": ["begun", "neither a checkpoint"],
    "eval checkpoint {w}/absent --data {w}/tasks.jsonl": ["absent", "no such checkpoint"],
    "eval checkpoint {w}/good.json --data {w}/tasks.jsonl": ["good.json", "is a file"],
    "eval checkpoint {w}/adapters --data {w}/tasks.jsonl --out {w}/new.json": ["adapters"],
    "eval checkpoint {w}/run@7 --data {w}/tasks.jsonl": ["step 7"],
    # results
    "eval compare {w}/cut.json {w}/good.json": ["cut.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/nothing.json": ["nothing.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/list.json": ["list.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/word.json": ["word.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/binary.json": ["binary.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/nan.json": ["nan.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/version.json": ["version.json", "99"],
    "eval compare {w}/good.json {w}/type.json": ["type.json", "is not an evaluation"],
    "eval compare {w}/good.json {w}/absent.json": ["absent.json", "no such file"],
    "eval compare {w}/good.json {w}/run": ["run", "is a folder"],
    "eval compare {w}/good.json {w}/elsewhere.json": ["share no task"],
    "eval compare {w}/good.json {w}/cut.jsonl": ["cut.jsonl:3"],
    "eval compare {w}/good.json {w}/middle.jsonl": ["middle.jsonl:1"],
    "eval compare {w}/good.json {w}/twice.jsonl": ["twice.jsonl", "twice"],
    "eval compare {w}/good.json {w}/empty.jsonl": ["empty.jsonl"],
    "eval compare {w}/good.json {w}/numbers.jsonl": ["numbers.jsonl:1"],
    "eval compare {w}/good.json {w}/cut.jsonl.zst": ["cut.jsonl.zst"],
    "eval compare {w}/good.json {w}/tasks.jsonl": ["tasks.jsonl:1"],
    "eval regrade {w}/cut.json --out {w}/new.json": ["cut.json", "is not an evaluation"],
    "eval regrade {w}/version.json": ["version.json", "99"],
    "eval regrade {w}/lonely.json --out {w}/new.json": ["lonely", "episodes are missing"],
    "eval regrade {w}/good.json --data {w}/others.jsonl --out {w}/new.json": ["others.jsonl", "no task"],
    "eval regrade {w}/plain.jsonl": ["plain.jsonl", "--data FILE"],
    "eval regrade {w}/twice.jsonl --data {w}/tasks.jsonl --out {w}/new.json": ["twice.jsonl", "twice"],
    "eval regrade {w}/middle.jsonl --data {w}/tasks.jsonl": ["middle.jsonl:1"],
    "eval regrade {w}/run": ["run", "is a folder"],
    "eval regrade {w}/good.json --out {w}/good.json": ["would be replaced"],
    "eval regrade {w}/good.json --set reward.terms=[nowhere:nothing]": ["nowhere"],
    "eval regrade {w}/good.json --set reward.weights.nothing=1": ["nothing"],
    "eval regrade {w}/good.json --set reward.weights.partial=.nan": ["reward.weights"],
    # tasks and options
    "eval model gold --data {w}/doubled.jsonl": ["doubled.jsonl", "twice"],
    "eval model gold --data {w}/good.json": ["good.json"],
    "eval model gold --data {w}/bare": ["bare"],
    "eval model gold --data {w}/tasks.jsonl --samples 0": ["--samples"],
    "eval model gold --data {w}/tasks.jsonl --samples -1": ["--samples"],
    "eval model gold --data {w}/tasks.jsonl --temperature -1": ["--temperature"],
    "eval model gold --data {w}/tasks.jsonl --temperature nan": ["temperature"],
    "eval model gold --data {w}/tasks.jsonl --temperature inf": ["temperature"],
    "eval model gold --data {w}/tasks.jsonl --seed -1": ["--seed"],
    "eval model gold --data {w}/tasks.jsonl --shard 3/2": ["--shard"],
    "eval model gold --data {w}/tasks.jsonl --shard 9/9": ["--shard"],
    "eval model gold --data {w}/tasks.jsonl --set data.max_tasks=0": ["max_tasks"],
    "eval model gold --data {w}/tasks.jsonl --out {w}/good.json": ["would be replaced"],
    "eval model gold --data {w}/tasks.jsonl --out {w}/good.json/x.json": ["good.json", "--out"],
    "eval model gold --data {w}/tasks.jsonl --resume": ["--out"],
    "eval model gold --data {w}/tasks.jsonl --out {w}/cut.json --resume": ["cut.json"],
    "eval model gold --data {w}/tasks.jsonl --out {w}/lonely.json --resume": ["lonely"],
    "eval judge-check --data {w}/tasks.jsonl --episodes {w}/middle.jsonl --set judge.model=m": [
        "middle.jsonl:1"
    ],
    "eval judge-check --data {w}/others.jsonl --episodes {w}/plain.jsonl --set judge.model=m": [
        "plain.jsonl"
    ],
    "eval judge-check --data {w}/tasks.jsonl --episodes {w}/bare --set judge.model=m": ["bare"],
    "eval judge-check --data {w}/tasks.jsonl --set judge.model=m --set judge.votes=3": ["judge.votes"],
    "eval judge-check --data {w}/tasks.jsonl --set judge.model=m --set judge.min_kappa=.nan": [
        "judge.min_kappa"
    ],
    # reports
    "report {w}/good.json": ["good.json"],
    "report {w}/bare": ["bare", "holds no metrics.jsonl with a step", "mcpagent train"],
    "report {w}/torn": ["trained.json"],
    "report {w}/model": ["model"],
    "view {w}/good.json": ["good.json"],
}


def is_one_error(answer: Answer, parts: list[str]) -> bool:
    is_usage = "Usage: mcpagent" in answer.err  # Typer's own form of an option's value
    text = " ".join(answer.err.split())
    return (
        (answer.code, answer.out, answer.err.count("Error: " if is_usage else "error: ")) == (2, "", 1)
        and "Traceback" not in answer.err
        and all(part in text for part in parts)
    )


def test_bad_input_is_one_error_and_nothing_is_written(world: Path) -> None:
    before = _files(world)
    answers = in_turn([typed.format(w=world).split() for typed in CASES], cwd=world)
    told = zip(CASES.items(), answers, strict=True)
    assert [(typed, answer) for (typed, parts), answer in told if not is_one_error(answer, parts)] == []
    assert _files(world) == before


def _files(folder: Path) -> dict[str, bytes | None]:
    """Folders too; not the locks, which only say who wrote last."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not path.name.endswith("lock")
    }
