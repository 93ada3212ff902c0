"""Tokenizers made on the spot, and a model folder with random weights and one of them: needs torch and transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = ["the quick brown fox jumps over the lazy dog", "größer, schöner, süßer", "漢字 and 🙂 too", "stop. Stop!"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{% if shout %}!{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
VOCAB_SIZE = 330
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 64, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 4096, "initializer_range": 0.3,
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def byte_level_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """As in Qwen and Llama 3: any text; characters beyond ASCII are spread over several tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=310, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return _wrapped(backend)


def sentence_piece_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """As in Llama 2: words begin with a mark for a space, and unknown characters are bytes."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.!"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(backend)


def _wrapped(backend: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    backend.add_special_tokens(SPECIAL)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_folder(folder: Path, generation: dict[str, Any] | None = None) -> Path:
    """A Qwen3 with random weights, a byte-level tokenizer and, as `generation_config.json`, `generation`."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SIZES, rope_parameters={"rope_theta": 1e6})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    return folder
