"""The profile format: what is written is read back, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from simulator.profile.profile import Profile, ProfileError
from simulator.profile.profile_folder import load_profile, save_profile
from tests.simulator.builders import META, OPTIONAL_TABLES, profile, with_tables


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_profile(profile(token_buckets=(1, 2, 4), source={"date": "2026-01-01"}), tmp_path)
    return tmp_path


CALLS = "calls:\n  qkv_proj: 3\n  o_proj: 3\n  gate_up_proj: 3\n  down_proj: 3\n  lm_head: 1\n"


TIME = r"must be a number >= 0.001 and <= 6e\+07; times are in microseconds"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_round_trip(folder: Path) -> None:
    saved = profile(token_buckets=(1, 2, 4), source={"date": "2026-01-01"})
    loaded = load_profile(folder)
    assert loaded.meta == saved.meta
    for name, table in saved.tables.items():
        pd.testing.assert_frame_equal(loaded.tables[name], table.round(3), check_dtype=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    save_profile(loaded, folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_saving_removes_tables_that_are_gone(folder: Path) -> None:
    (folder / "copies.csv").write_text("num_blocks,time_us\n1,2.0\n")
    save_profile(profile(), folder)
    assert not (folder / "copies.csv").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tokens.csv", "time_us", "time_ms", "no column time_us .there: operator, num_tokens, time_ms"),
        ("tokens.csv", "qkv_proj", "query", "tokens: no qkv_proj .there: down_proj, gate_up_proj, o_proj, query"),
        ("tokens.csv", "down_proj", "down", "tokens: no down_proj .there"),
        ("tokens.csv", "gate_up_proj", "gate_proj", "tokens: no gate_up_proj .there"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,-14.0", f"tokens: time_us=-14.0 in row 2: {TIME}"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,140000000000", f"time_us=140000000000.0 in row 2: {TIME}"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,1,14.0", "operator=down_proj, num_tokens=1 is there twice"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8.5,14.0", "num_tokens=8.5 in row .* must be an integer >= 1"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,slow", "time_us=slow in row .* must be a number"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,0,14.0", "num_tokens=0 in row .* must be an integer >= 1"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,0", "time_us=0.0 in row .* must be a number >= 0.001"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,", "time_us=nan in row .* must be a number"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,inf", "time_us=inf in row .* must be a number"),
        ("tokens.csv", "down_proj,8,14.0", f"down_proj,{10**400},14.0", "num_tokens=1000.* must be an integer"),
        ("tokens.csv", "down_proj,8,14.0", ",8,14.0", "operator=nan in row 2: must be text"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj\0,8,14.0", r"operator='down_proj\\x00' in row 2: must be text"),
        ("tokens.csv", "down_proj,8,14.0", "down_proj,8,14.0,1,2", "tokens.csv: not a CSV table"),
        ("sequences.csv", "lm_head", "7", "sequences: operator=7 in row 1: must be text"),
        ("attention.csv", "0,0,4,16,", "0,0,4,0,", "num_decodes=4, decode_context=0 is no step"),
        ("attention.csv", "0,0,4,16,", "0,0,0,0,", "num_decodes=0, decode_context=0 is no step"),
        ("attention.csv", "0,0,4,16,", "0,7,4,16,", "prefill_context=7, num_decodes=4, .* is no step"),
        ("attention.csv", "16,0,0,0,", "16,0,0,9,", "num_decodes=0, decode_context=9 is no step"),
        ("sequences.csv", "lm_head", "head", "sequences: no lm_head"),
        ("meta.yaml", "format_version: 1", "format_version: 7", "format_version 7"),
        ("meta.yaml", "time: us", "time: ms", "times must be in microseconds"),
        ("meta.yaml", "device: device", "devise: device", "unknown key devise"),
        ("meta.yaml", "num_layers: 3\n", "", "no num_layers"),
        ("meta.yaml", "lm_head: 1", "sampler: 1", "calls of lm_head missing"),
        ("meta.yaml", "lm_head: 1", "lm_head: 1\n  rotary: 3", "rotary: in the calls of meta.yaml, but not measured"),
        ("meta.yaml", "  lm_head: 1", "  lm_head: 0", "calls.lm_head: .* greater than or equal to 1, not 0"),
        ("meta.yaml", "  lm_head: 1", "  lm_head: once", "calls.lm_head: .* valid integer, not 'once'"),
        ("meta.yaml", CALLS, "calls: null\n", "meta.yaml: calls: .* dictionary, not None"),
        ("meta.yaml", "source:\n  date: 2026-01-01", "source: null", "source: .* dictionary, not None"),
        ("meta.yaml", "num_layers: 3", "num_layers: three", "num_layers: .* integer, not 'three'"),
        ("meta.yaml", "block_size: null", "block_size: 0", "block_size: .* greater than or equal to 1, not 0"),
        ("meta.yaml", "- 1\n- 2\n- 4", "- 1\n- 4\n- 2", "token_buckets: .* must be ascending"),
        ("meta.yaml", "token_buckets:\n- 1\n- 2\n- 4", "token_buckets: 4", "token_buckets: .* tuple, not 4"),
        ("meta.yaml", "padded_steps: decode", "padded_steps: al", "padded_steps: .* 'decode' or 'all', not 'al'"),
        ("meta.yaml", "round_up_tokens: false", "round_up_tokens: 8", "round_up_tokens: .* boolean"),
        ("meta.yaml", "dtype: bfloat16", "7: bfloat16", "unknown key 7"),
        ("meta.yaml", "meta", "meta", None),
    ],
)
def test_what_is_wrong_is_named(folder: Path, file: str, old: str, new: str, message: str | None) -> None:
    if message is None:
        (folder / file).write_text("[1, 2")
        message = "not YAML"
    else:
        edit(folder / file, old, new)
    with pytest.raises(ProfileError, match=message):
        load_profile(folder)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("steps", "time_us", -1e-3), ("steps", "num_tokens", 0), ("steps", "kind", None), ("copies", "num_blocks", 0),
        ("copies", "time_us", 0), ("copies", "spread_us", -1.0), ("all_reduce", "num_bytes", 0),
        ("all_reduce", "time_us", True), ("uneven", "gain", -0.1), ("uneven", "gain", 1e4),
        ("deviations", "deviation_pct", 0), ("deviations", "num_decodes", 0), ("deviations", "decode_context", 0),
    ],
)  # fmt: skip
def test_impossible_numbers_in_any_table_are_refused(name: str, column: str, value: Any) -> None:
    table = OPTIONAL_TABLES[name]
    with_tables(profile(), **{name: table})
    with pytest.raises(ProfileError, match=f"^{name}: .*{column}={value}|^{name}: .*{column}={str(value)[:2]}"):
        with_tables(profile(), **{name: table.astype({column: object}).assign(**{column: value})})


def test_a_step_may_take_no_time_beyond_its_operators() -> None:
    with_tables(profile(), steps=OPTIONAL_TABLES["steps"].assign(time_us=0.0))


@pytest.mark.parametrize("text", ["", "\n", "operator,num_tokens,time_us\n", "a\0b", '"', "\ufeff"])
def test_an_empty_table_is_refused(folder: Path, text: str) -> None:
    (folder / "tokens.csv").write_text(text)
    with pytest.raises(ProfileError, match="^tokens"):
        load_profile(folder)


def test_what_is_no_file_is_refused(folder: Path) -> None:
    (folder / "steps.csv").mkdir()
    with pytest.raises(ProfileError, match="steps.csv: cannot be read: Is a directory"):
        load_profile(folder)


def test_values_that_are_there_twice_are_written_and_read(folder: Path) -> None:
    visits = {"least": 1}
    save_profile(profile(source={"decode": visits, "prefill": visits}), folder)
    assert load_profile(folder).meta.source == {"decode": visits, "prefill": visits}


def test_missing_parts_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no folder"):
        load_profile(tmp_path / "nowhere")
    (folder / "attention.csv").unlink()
    with pytest.raises(ProfileError, match="no attention table .there: tokens, sequences"):
        load_profile(folder)
    (folder / "meta.yaml").unlink()
    with pytest.raises(ProfileError, match="no meta.yaml .*there: sequences.csv, tokens.csv"):
        load_profile(folder)


def test_decodes_alone_and_prefills_alone_must_be_measured() -> None:
    tables = profile().tables
    attention = tables["attention"]
    for other in ("prefill_tokens", "num_decodes"):
        with pytest.raises(ProfileError, match=f"no rows with {other}=0"):
            Profile(META, {**tables, "attention": attention[attention[other] > 0]})


def test_holes_are_named() -> None:
    whole = profile()
    assert whole.holes() == []
    attention = whole.tables["attention"]
    gone = (attention["num_decodes"] == 16) & (attention["decode_context"] == 256) & (attention["prefill_tokens"] == 0)
    holes = Profile(META, {**whole.tables, "attention": attention[~gone]}).holes()
    assert holes == ["1 of 12 points of num_decodes x decode_context, the first at num_decodes=16, decode_context=256"]


def test_profiles_in_the_repository_load() -> None:
    root = Path(__file__).parents[3] / "simulator" / "profiles"
    for meta in root.rglob("meta.yaml"):
        found = load_profile(meta.parent)
        assert meta.parent.name == f"tp{found.meta.tensor_parallel_size}"
        assert sum(path.stat().st_size for path in meta.parent.iterdir()) < 2_000_000
        assert yaml.safe_load(meta.read_text())["source"]["date"]
