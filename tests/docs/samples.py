"""Small files under the names that commands of the documentation use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.docs.pages import ROOT
from tests.harness.measured.builders import ROW, bench, write_lines

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 7, "hidden_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 2048, "vocab_size": 50_000,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def write_tokenizer(folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_samples(folder: Path) -> None:
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/config.json").write_text(json.dumps(SHAPE))
    (folder / "path/to/DeepSeek-V2-Lite").mkdir()
    (folder / "path/to/DeepSeek-V2-Lite/config.json").write_text(json.dumps(SHAPE))
    turn = {"input_length": 1000, "output_length": 50, "hash_ids": [0, 1]}
    write_lines(folder / "conversation_trace.jsonl", [{"timestamp": 500 * row, **turn} for row in range(8)])
    chats = [{"chat_id": row, "parent_chat_id": row - 1, "timestamp": 100 * row, **turn} for row in range(8)]
    blocks = {"input_length": 20, "hash_ids": [0, 1]}
    write_lines(folder / "qwen_traceA_blksz_16.jsonl", [chat | blocks for chat in chats])
    hashed = {"input_tokens": 8, "output_tokens": 2, "block_size": 8, "total_hashes": [1], "provided_session_id": "a"}
    requests = [{"timestamp_start_unix_ms": 900 * row, "duration_e2e_ms": 500.0, **hashed} for row in range(8)]
    pd.DataFrame(requests).to_parquet(folder / "trace.parquet")
    messages = [{"role": "user", "content": "a b a"}, {"role": "assistant", "content": "b"}]
    write_lines(folder / "chats.jsonl", [{"messages": messages, "max_tokens": 5}] * 8)
    write_tokenizer(folder / "path/to/Qwen3-8B")
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
