"""That a workload is served soundly, however its steps are grouped."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.fuzz.shadow import ShadowExecutor
from tests.engine.fuzz.trail import Trail
from tests.engine.fuzz.workload import Workload


def check_workload(workload: Workload, seed: int = 0) -> Trail:
    """Run step by step, with full horizons and with random groupings: all must be sound and agree on everything.

    Where stop conditions are met, which a group of steps learns of at its end, they need only be sound. Decodes that
    are told what drafts bring, as in a simulation, and those that are not, as in an engine, agree as well.
    """
    foreseen = all(case.stop_after is None for case in workload.cases)
    stepped = ShadowExecutor(workload, max_steps=1).run()
    for max_steps in (10**9, None):
        grouped = ShadowExecutor(workload, max_steps, seed).run()
        assert grouped.requests.keys() == stepped.requests.keys(), "a request got lost"
        if foreseen:
            assert grouped.requests == stepped.requests, "grouping steps changes the requests"
            assert grouped.decisions == stepped.decisions, "grouping steps changes the decisions"
            assert grouped.num_steps == stepped.num_steps
        longest = max(stepped.counts["longest plan"], grouped.counts["longest plan"])
        stepped.counts["longest plan"] = longest
        if grouped.counts["longest plan"] == 1:  # there is nothing to group
            break
    assert len(stepped.requests) == len(workload.cases), "a request got lost"
    if workload.num_drafts and workload.plans_ahead:
        asked = ShadowExecutor(workload, max_steps=1, asks_anew=True).run()
        assert asked.decisions == stepped.decisions, "the head of the queue waits though it fits"
    if workload.num_drafts is not None and not workload.options.async_scheduling:
        unforeseen = ShadowExecutor(replace(workload, unforeseen=True), max_steps=1).run()
        assert unforeseen.requests == stepped.requests, "what drafts will bring changes the requests"
        assert unforeseen.decisions == stepped.decisions, "what drafts will bring changes the decisions"
    return stepped
