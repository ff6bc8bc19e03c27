"""A trivial mistake is answered before anything heavy is imported: all of them in one process, which must
have neither torch nor openai at the end of any."""

from __future__ import annotations

from pathlib import Path

from tests.running import ROOT, in_turn

SAMPLES = ROOT / "data" / "samples"
# What is typed -> a part of the answer. {s} is a good dataset's folder, {w} the folder with the files below.
MISTAKES = {
    "train --set data.train=nope.jsonl": "there is no such dataset",
    "train --data nope.jsonl": "there is no such dataset",
    "train --data {w}/nothing": "the folder holds no dataset",
    "train --data {w}/empty.jsonl": "the dataset holds no task",
    "train --data {w}/broken.jsonl": "broken.jsonl:1",
    "train --data {s} --set data.validation={w}/empty.jsonl": "the dataset holds no task",
    "train --data {s} --set trainig.max_steps=3": "did you mean training",
    "train --data {s} --config nope.yaml": "nope.yaml",
    "train --data {s} --servers nope.json": "nope.json",
    "train --data {s} --servers {w}/wrong.json": "wrong.json",
    "train --data {s} --set tools.builtin=[fpm]": "'fpm'",
    "train --data {s} --model ./nope": "no such checkpoint",
    "train --data {s} --out {w}/full": "not empty",
    "train --data {s} --resume --out {w}/nothing": "run folder",
    "train --data {s} --mode lara": "finetune.mode",
    "train --dry-run --data nope.jsonl": "there is no such dataset",
    "quickstart --out {w}/empty.jsonl": "is a file",
    "quickstart --out {w}/full": "not a quickstart",
    "eval checkpoint nope --data {s}": "no such checkpoint",
    "eval model ./nope --data {s}": "no such checkpoint",
    "eval model a/b --data nope.jsonl": "there is no such file",
    "eval model a/b --data {s} --out {w}/x.parquet": "a .json file",
    "eval compare nope.json nope.json": "there is no such file",
    "eval judge-check --data {s}": "no judge is named",
    "rollout --policy gold --data {w}/empty.jsonl --out r": "the dataset holds no task",
    "rollout --policy gold --data {s} --out {w}/full/kept.jsonl": "would be replaced",
    "export nope --out {w}/new": "no such checkpoint",
    "report nope": "not a run folder",
    "view nope": "not a run folder",
    "smoke --model ./nope": "no such checkpoint",
    "smoke --backend tpu": "tpu",
    "env check --data nope.jsonl": "there is no such file",
    "data validate nope.jsonl": "there is no such file",
    "data show {s}/train.jsonl --id nope": "there is no task",
    "gen-data --servers nope.json --out {w}/new": "nope.json",
    "gen-data --templates nope --out {w}/new": "nope",
    "convert nope.json --out {w}/new": "there is no such file",
    "tools list --servers nope.json": "nope.json",
    "doctor --servers nope.json": "there is no such file",
    "serve postgres": "postgres",
}


def test_a_trivial_mistake_is_answered_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.jsonl").write_text("kept")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n')
    (tmp_path / "wrong.json").write_text('{"mcpServers": {"a": ')
    before = _files(tmp_path)
    typed = [line.format(s=SAMPLES, w=tmp_path).split() for line in MISTAKES]
    answers = in_turn(typed, cwd=tmp_path / "nothing", imports=True)
    wrong = [
        (line, answer)
        for (line, part), answer in zip(MISTAKES.items(), answers, strict=True)
        if answer.code != 2
        or part not in answer.out + answer.err
        or "Traceback" in answer.err
        or answer.heavy
    ]
    assert wrong == [], "\n".join(map(str, wrong))
    assert _files(tmp_path) == before, "nothing is written"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
