"""Play turns with transformers alone: `plain_turns.py MODEL TURNS.json` prints the texts, a line each.

TURNS.json is a list of `{"context": token ids, "tokens": how many}`. Nothing of mcpagent is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str, turns: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for turn in json.loads(Path(turns).read_text()):
        ids = torch.tensor([turn["context"]])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=turn["tokens"],
            do_sample=False,
            repetition_penalty=1.0,
        )
        print(json.dumps(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)), flush=True)
    assert not any(name.startswith("mcpagent") for name in sys.modules)


if __name__ == "__main__":
    main(*sys.argv[1:])
