"""Archives of profiles: what is found in them, kernels that a server runs instead, and what the project ships."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile import archive
from simulator.profile.archive import Entry, entry_name, find_profile, write_archive
from simulator.profile.profile import ProfileError
from tests.simulator.builders import MODEL, OPTIONAL_TABLES, by_tokens, profile, resized

SHAPE = {"num_layers": MODEL.num_layers, "hidden_size": MODEL.hidden_size, "vocab_size": MODEL.vocab_size}
PROFILE = profile(shape=SHAPE, source={"quantization": "none", "kv_cache_dtype": "auto"})
SLOWER = {"marlin": {"tokens": by_tokens(0.9)}, "piecewise_graphs": {"steps": OPTIONAL_TABLES["steps"]}}
TOKENS = PROFILE.tables["tokens"]
IS_FIRST = TOKENS["operator"] == TOKENS["operator"].iloc[0]
PARTS = {
    "routing_kernels": TOKENS.assign(time_us=TOKENS["time_us"].where(~IS_FIRST, 7.0)),
    "tf32_router": TOKENS.assign(time_us=TOKENS["time_us"].where(IS_FIRST, 7.0)),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of `PROFILE` and of one more rank of it, with two more kernels."""
    monkeypatch.setattr(archive, "FOLDER", tmp_path)
    more = replace(PROFILE, meta=replace(PROFILE.meta, tensor_parallel_size=2))
    entries = {entry_name(MODEL, 1): Entry(PROFILE, SLOWER), entry_name(MODEL, 2): Entry(more, {})}
    write_archive(tmp_path / "made_up.zip", entries, "from nowhere")
    return tmp_path / "made_up.zip"


def test_an_archive_gives_back_its_profiles_and_no_other(path: Path) -> None:
    found = find_profile("made_up", MODEL, 1, max_num_seqs=8)
    assert found is find_profile("made_up", MODEL, 1, max_num_seqs=8) is not find_profile("made_up", MODEL, 1, 16)
    assert found is not None and max(found.meta.token_buckets) == 16
    for name, table in PROFILE.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], table.round(3), check_dtype=False)
    renamed = find_profile("made_up", replace(MODEL, name="x/my-finetune"), 1, max_num_seqs=8)
    assert renamed is not None and renamed.meta == found.meta, "equal sizes, equal times"
    others: list[tuple[str, dict[str, Any], int]] = [
        ("made_up", {}, 4), ("nowhere", {}, 1),
        ("made_up", {"name": "x/other", "vocab_size": 7}, 1), ("made_up", {"num_layers": 5}, 1),
        ("made_up", {"quantization": QUANTIZATIONS["fp8"]}, 1), ("made_up", {"kv_dtype": "fp8"}, 1),
    ]  # fmt: skip
    for system, changes, ranks in others:
        assert find_profile(system, resized(MODEL, **changes), ranks, 8) is None


def test_an_entry_that_is_read_alone_is_that_of_the_whole_index(path: Path) -> None:
    shipped = Path(archive.__file__).parents[1] / "profiles" / "gpu" / "a100_sxm.zip"
    for each in (path, shipped):
        entries = archive._entries(each, 0)
        assert {name: archive._entry(each, 0, name) for name in entries} == entries
        assert archive._entry(each, 0, "none") is None
    with zipfile.ZipFile(path) as written:
        members = {name: written.read(name).decode() for name in written.namelist()}
    members["index.json"] = json.dumps(json.loads(members["index.json"]), indent=1)
    with zipfile.ZipFile(path, "w") as other:
        for name, text in members.items():
            other.writestr(name, text)
    found = find_profile("made_up", MODEL, 1, max_num_seqs=8)
    assert found is not None and found.meta.model == PROFILE.meta.model, "an index written otherwise is read, too"


def test_equal_tables_are_stored_once_and_equal_profiles_make_an_equal_file(path: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(path).namelist()
    assert len([name for name in names if name.startswith("tables/")]) == len(PROFILE.tables) + len(SLOWER)
    content = path.read_bytes()
    more = replace(PROFILE, meta=replace(PROFILE.meta, tensor_parallel_size=2))
    entries = {entry_name(MODEL, 2): Entry(more, {}), entry_name(MODEL, 1): Entry(PROFILE, SLOWER)}
    write_archive(path, entries, "from nowhere")
    assert path.read_bytes() == content


def test_a_damaged_archive_is_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ProfileError, match="cannot be read"):
        find_profile("made_up", MODEL, 1, 8)


def test_other_kernels_change_their_tables_only(path: Path) -> None:
    plain = find_profile("made_up", MODEL, 1, 8)
    found = find_profile("made_up", MODEL, 1, 8, kernels=("marlin", "deepgemm"))
    assert plain is not None and found is not None
    assert found.meta.source["server"] == ["marlin"], "deepgemm changes nothing here"
    assert "server" not in plain.meta.source and "steps" not in found.tables
    assert found.tables["tokens"]["time_us"].max() == pytest.approx(10 + 0.9 * 512)
    pd.testing.assert_frame_equal(found.tables["attention"], plain.tables["attention"])


def test_two_kernels_change_their_operators_of_one_table(path: Path) -> None:
    changed = {name: {"tokens": table} for name, table in PARTS.items()}
    write_archive(path, {entry_name(MODEL, 1): Entry(PROFILE, changed)}, "from nowhere")
    for kernels in (("routing_kernels", "tf32_router"), ("tf32_router", "routing_kernels")):
        found = find_profile("made_up", MODEL, 1, 8, kernels=kernels)
        assert found is not None and set(found.tables["tokens"]["time_us"]) == {7.0}
        assert found.tables["tokens"]["operator"].tolist() == TOKENS["operator"].tolist()
    single = find_profile("made_up", MODEL, 1, 8, kernels=("routing_kernels",))
    assert single is not None
    pd.testing.assert_frame_equal(single.tables["tokens"], PARTS["routing_kernels"].round(3), check_dtype=False)


def test_the_largest_graph_is_that_of_the_server(path: Path) -> None:
    found = find_profile("made_up", MODEL, 1, 8, max_graph_tokens=2048)
    assert found is not None and found.meta.token_buckets[-3:] == (2016, 2032, 2048)
