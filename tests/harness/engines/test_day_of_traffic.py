"""A day out of a longer file, replayed on a fleet that grows and shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import run

DAY = 86_400


def azure_2024(path: Path) -> None:
    """Three days in Azure's format of 2024: each day 30 requests in its first minute, then one an hour."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for day in (10, 11, 12):
        lines += [f"2024-05-{day} 00:00:{2 * second:02d}.000000+00:00,400,1500" for second in range(30)]
        lines += [f"2024-05-{day} {hour:02d}:00:00+00:00,{day},2" for hour in range(1, 24)]
    path.write_text("\r\n".join(lines))


def burstgpt(path: Path) -> None:
    """The same load as BurstGPT writes it."""
    rows = [DAY * day + 2 * second for day in range(3) for second in range(30)]
    rows += [DAY * day + 3600 * hour for day in range(3) for hour in range(1, 24)]
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    path.write_text("\n".join([*lines, *(f"{each},GPT-4,400,1500,1900,API log" for each in sorted(rows))]))


@pytest.mark.parametrize(("kind", "write"), [("azure", azure_2024), ("burstgpt", burstgpt)])
def test_a_day_is_served_by_as_many_servers_as_it_needs(kind: str, write: object, tmp_path: Path) -> None:
    path = tmp_path / "week.csv"
    assert callable(write)
    write(path)
    found = run(
        f"trace={kind}", f"trace.path={path}", f"trace.window=[{DAY},{2 * DAY}]", "arrival=trace", "plots=false",
        "router=least_requests", "autoscaler.metric=requests", "autoscaler.target=2", "autoscaler.most=3",
        "autoscaler.interval_s=60", "autoscaler.hold_s=300", "autoscaler.start_up_s=5", "frontend=none",
    )  # fmt: skip
    summary = found.summary
    assert summary["completed"] == 30 + 23 and found.requests["arrival_time"].max() == 23 * 3600
    if kind == "azure":
        assert set(found.requests["num_prompt_tokens"]) == {400, 11}  # of the second day only
    assert summary["max_paid_servers"] > 1 and summary["mean_paid_servers"] < 1.2
    assert summary["gpu_hours"] < 1.2 * summary["run_time_s"] / 3600
