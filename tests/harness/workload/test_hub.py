"""Traces in data sets of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import CsvTrace
from harness.errors import TraceError
from harness.workload.hub import fetched
from harness.workload.readers import load_trace

CSV = "num_prompt_tokens,num_output_tokens\n5,2\n"


def test_a_file_of_the_hub_is_read_from_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the real library, offline, and the folders that it keeps for what it has downloaded."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    revision = "0123456789abcdef0123456789abcdef01234567"
    stored = tmp_path / "datasets--owner--traces"
    (stored / "snapshots" / revision / "a").mkdir(parents=True)
    (stored / "snapshots" / revision / "a" / "b.csv").write_text(CSV)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(revision)
    for path in ("hf://owner/traces/a/b.csv", f"hf://datasets/owner/traces@{revision}/a/b.csv"):
        trace = load_trace(CsvTrace(path=path), seed=0)
        assert trace.table["num_prompt_tokens"].tolist() == [5]
        assert trace.notes == (f"{path} is of revision {revision[:12]}",)
    with pytest.raises(TraceError, match="cannot be reached, and the file is not in its cache"):
        fetched("hf://owner/traces/c.csv")


@pytest.mark.parametrize("path", ["hf://owner", "hf://owner/name", "hf://owner/name@main"])
def test_names_have_an_owner_and_a_file(path: str) -> None:
    with pytest.raises(TraceError, match="must be hf://<owner>/<data set>"):
        fetched(path)


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("harness.workload.hub.import_module", missing)
    with pytest.raises(TraceError, match=r"huggingface_hub is not installed \(pip install -e '.\[hub\]'\)"):
        fetched("hf://owner/name/file")
