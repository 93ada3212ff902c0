"""Small files under the names that commands of the documentation use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd

from tests.docs.pages import ROOT
from tests.harness.measured.builders import ROW, bench, write_lines

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 7, "hidden_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 2048, "vocab_size": 50_000,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def write_samples(folder: Path) -> None:
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/config.json").write_text(json.dumps(SHAPE))
    turn = {"input_length": 1000, "output_length": 50, "hash_ids": [0, 1]}
    write_lines(folder / "conversation_trace.jsonl", [{"timestamp": 500 * row, **turn} for row in range(8)])
    rows = [f"2023-11-16 18:15:4{row}.6805900,{374 + row},44" for row in range(8)]
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    (folder / "AzureLLMInferenceTrace_conv.csv").write_text("\n".join([header, *rows, ""]))
    shutil.copytree(ROOT / "simulator/profiles/amd-epyc/tiny/tp1", folder / "profiles/mine")
    bench(folder / "bench.json")
    measured = [
        {"model_path": "Qwen/Qwen3-235B-A22B-FP8", "system": "h200_sxm", "isl": 1000},
        {"model_path": "meta-llama/Llama-3.1-70B", "system": "b200_sxm", "precision": "fp4", "isl": 1024},
    ]
    public = [{**ROW, "id": str(number), **row} for number, row in enumerate(measured)]
    pd.DataFrame(public).to_csv(folder / "silicon_sample.csv", index=False)
