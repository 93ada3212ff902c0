"""Traces and models of the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.config import CsvTrace
from harness.config.command_lines.importing import expand
from harness.config.huggingface.configs import resolve_model
from harness.errors import ConfigError, TraceError
from harness.hub import fetched
from harness.workload.readers import load_trace

REVISION = "0123456789abcdef0123456789abcdef01234567"
MODEL = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
FP8 = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
CSV = "num_prompt_tokens,num_output_tokens\n5,2\n"


def store(folder: Path, file: str, text: str) -> None:
    """A file in a folder of the Hub's cache, as of a revision that is `main`."""
    path = folder / "snapshots" / REVISION / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(REVISION)


def test_a_file_of_the_hub_is_read_from_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the real library, offline, and the folders that it keeps for what it has downloaded."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    store(tmp_path / "datasets--owner--traces", "a/b.csv", CSV)
    for path in ("hf://owner/traces/a/b.csv", f"hf://datasets/owner/traces@{REVISION}/a/b.csv"):
        trace = load_trace(CsvTrace(path=path), seed=0)
        assert trace.table["num_prompt_tokens"].tolist() == [5]
        assert trace.notes == (f"{path} is of revision {REVISION[:12]}",)
    with pytest.raises(TraceError, match="cannot be reached, and the file is not in its cache"):
        fetched("hf://owner/traces/c.csv")


def test_a_model_of_the_hub_is_read_from_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    store(tmp_path / "models--owner--small", "config.json", json.dumps(MODEL))
    assert expand(["model=hf://owner/small"]).overrides == ["model=hf", "model.config='hf://owner/small'"]
    model = resolve_model({"config": "hf://owner/small", "hf_overrides": {}})
    assert (model["name"], model["num_layers"], model["quantization"]) == ("owner/small", 2, "none")
    store(tmp_path / "models--owner--small", "hf_quant_config.json", json.dumps(FP8))
    assert resolve_model({"config": f"hf://owner/small@{REVISION}"})["quantization"] == "fp8"
    for path, reason in (("hf://owner/other", "cannot be reached"), ("hf://owner/a/b", "must be hf://<owner>/<model>")):
        with pytest.raises(ConfigError, match=f"^model.config={path}: .*{reason}"):
            resolve_model({"config": path})


@pytest.mark.parametrize("path", ["hf://owner", "hf://owner/name", "hf://owner/name@main"])
def test_names_have_an_owner_and_a_file(path: str) -> None:
    with pytest.raises(TraceError, match="must be hf://<owner>/<data set>"):
        fetched(path)


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("harness.hub.import_module", missing)
    with pytest.raises(TraceError, match=r"huggingface_hub is not installed \(pip install -e '.\[hub\]'\)"):
        fetched("hf://owner/name/file")
