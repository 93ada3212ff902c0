"""Faults in routers, the gateway and the drivers that tests of fleets must notice.

    python -m tests.simulator.fleets.mutants

Each is put into a copy of the tree, in which the tests then must fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
TESTS = (
    "tests/simulator/fleets/test_roster.py", "tests/engine/core/kv/test_store_by_hand.py",
    "tests/engine/core/routing", "tests/simulator/fleets/test_fleet.py", "tests/simulator/fleets/test_handover.py",
    "tests/simulator/fleets/test_handover_content.py",
    "tests/simulator/fleets/test_router.py", "tests/simulator/test_replica.py", "tests/simulator/test_transfers.py",
    "tests/simulator/drivers", "tests/simulator/costs/test_ranks.py",
    "tests/simulator/fleets/test_staffing.py", "tests/simulator/fleets/test_shared_store.py",
)  # fmt: skip


class FleetMutant(NamedTuple):
    """`old`, which occurs once in `file`, is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str


ROUTING, GATEWAY, DESK = "engine/core/routing", "simulator/fleets/gateway.py", "simulator/fleets/desk.py"
DRIVERS = "simulator/drivers"
ROSTER, STORE = "simulator/fleets/roster.py", "engine/core/kv/tiers/shared_store.py"
OFFLOAD = "engine/core/kv/offload.py"
HANDOVER, RUNNING = "simulator/fleets/handover.py", "engine/core/running/running_set.py"
MUTANTS = (
    FleetMutant("turns skip the first server", f"{ROUTING}/round_robin.py", "self._turn = -1", "self._turn = 0"),
    FleetMutant("the most requests", f"{ROUTING}/views/loads.py", "count < fewest", "count > fewest"),
    FleetMutant("the last of several", f"{ROUTING}/prefix_affinity.py", "counts.index(fewest)",
                "len(counts) - 1 - counts[::-1].index(fewest)"),
    FleetMutant("a prefix is followed to a busy server", f"{ROUTING}/prefix_affinity.py", "<= most else -1", "else -1"),
    FleetMutant("short matches are followed", f"{ROUTING}/prefix_affinity.py",
                "best >= options.min_match * request.num_prompt_tokens", "True"),
    FleetMutant("of equal matches the first server", f"{ROUTING}/prefix_affinity.py", "key=counts.__getitem__)",
                "key=lambda number: number)"),
    FleetMutant("a match of just the share is not followed", f"{ROUTING}/prefix_affinity.py",
                "best >= options.min_match", "best > options.min_match"),
    FleetMutant("the first server may be drawn twice", f"{ROUTING}/power_of_two.py",
                "        other += other >= first\n", ""),
    FleetMutant("of two that are equal the second", f"{ROUTING}/power_of_two.py",
                "servers[other].num_requests < servers", "servers[other].num_requests <= servers"),
    FleetMutant("the newest blocks are forgotten", f"{ROUTING}/views/prefix_estimate.py",
                "next(iter(self._used))", "next(reversed(self._used))"),
    FleetMutant("blocks used again stay old", f"{ROUTING}/views/prefix_estimate.py",
                "            self._used.move_to_end(last)\n", ""),
    FleetMutant("the first blocks are dropped first", f"{ROUTING}/views/prefix_estimate.py",
                "del run.blocks[-excess:]", "del run.blocks[:excess]"),
    FleetMutant("a prompt that turns off uses all of a run", f"{ROUTING}/views/prefix_estimate.py",
                "if common < len(last.blocks):", "if False:"),
    FleetMutant("what others go through is lengthened", f"{ROUTING}/views/prefix_estimate.py",
                "run.parent is not None and not run.following", "run.parent is not None"),
    FleetMutant("requests that ended are counted", DESK, "self.num_requests -= 1", "pass"),
    FleetMutant("tokens of ended requests are counted", DESK,
                "self.num_tokens -= request.num_prompt_tokens", "pass"),
    FleetMutant("what is sent is not noted", DESK,
                "self._estimate.add(request.sequences[0].block_hashes or [], self._num_full(request))",
                "pass"),
    FleetMutant("outputs count as sent", DESK, "return request.num_prompt_tokens // self._block_size",
                "return 1 << 40"),
    FleetMutant("a refusal brings nothing", GATEWAY,
                "self._arrivals.on_finish(request.request_id, request.arrival_time)", "pass"),
    FleetMutant("nobody is told of an earlier request", GATEWAY,
                "self.next_ns = min(self.next_ns, self._arrivals.next_ns)", "pass"),
    FleetMutant("requests in the inbox do not wait", "simulator/replica.py",
                "self.scheduler.num_waiting + len(self._inbox)", "self.scheduler.num_waiting"),
    FleetMutant("free blocks are those of the plan", "simulator/replica.py",
                "num_free -= self.scheduler.num_blocks_due(num_later)", "pass"),
    FleetMutant("steps planned ahead have no blocks yet", "simulator/replica.py",
                "run.num_up_to(passed_ns) if self.scheduler.plans_ahead else run", "run"),
    FleetMutant("servers plan before requests arrive", f"{DRIVERS}/phases.py",
                "ARRIVALS: Final = 4\nPLANS: Final = 5", "ARRIVALS: Final = 5\nPLANS: Final = 4"),
    FleetMutant("requests arrive before steps end", f"{DRIVERS}/phases.py",
                "ARRIVALS: Final = 4", "ARRIVALS: Final = 0"),
    FleetMutant("requests arrive before others are handed over", f"{DRIVERS}/phases.py",
                "HANDOVERS: Final = 3\nARRIVALS: Final = 4", "HANDOVERS: Final = 4\nARRIVALS: Final = 3"),
    FleetMutant("what was copied is copied again", HANDOVER, " - sequence.num_registered_blocks", ""),
    FleetMutant("the sender's link is always free", HANDOVER,
                "now_ns) for port in (origin, self))", "now_ns) for port in (self,))"),
    FleetMutant("the receiver's link is always free", HANDOVER,
                "now_ns) for port in (origin, self))", "now_ns) for port in (origin,))"),
    FleetMutant("transfers have no latency", HANDOVER, "max(done_ns, now_ns + 1) + self._latency_ns",
                "max(done_ns, now_ns + 1)"),
    FleetMutant("the sender is not told", HANDOVER, "((origin, source), (self, sequence))", "((self, sequence),)"),
    FleetMutant("nobody is woken by a transfer", HANDOVER, "        self.on_change()\n", ""),
    FleetMutant("transfers in the order of servers", HANDOVER,
                "sorted(self._asked, key=itemgetter(0))", "self._asked"),
    FleetMutant("hits of the first server are lost", HANDOVER, "= computed.num_cached_tokens, computed.cached_by_tier",
                "= 0, {}"),
    FleetMutant("hand-overs in the order of servers", GATEWAY,
                "(due_ns, request.request_id, chosen, request)", "(due_ns, len(self._handed_over), chosen, request)"),
    FleetMutant("a hand-over takes no time", GATEWAY, "due_ns = now_ns + decoders.request_ns", "due_ns = now_ns"),
    FleetMutant("requests under way elsewhere do not count", GATEWAY,
                "        desk.views[number].count(request)\n        self._apart", "        self._apart"),
    FleetMutant("known prompts go elsewhere", GATEWAY, " - desk.views[number].prefix_hits(request)", ""),
    FleetMutant("blocks are not held", RUNNING, "sequence.request.decodes_elsewhere and", "False and"),
    FleetMutant("KV comes once more after a preemption", "engine/core/running/preemption.py",
                "    victim.request.prefilled_elsewhere = False\n", ""),
    FleetMutant("blocks for the last token only", "engine/core/admission/need.py",
                "is_whole = blocks.match(sequence), True, True", "is_whole = blocks.match(sequence), True, False"),
    FleetMutant("the head stays blocked when blocks are given back", RUNNING,
                "        self._blocks.release(sequence)\n        self._waiting.unblock_head()\n",
                "        self._blocks.release(sequence)\n"),
    FleetMutant("a run is not cut", f"{DRIVERS}/shared.py",
                "if isinstance(shorter, int) or shorter.num_steps < self._price.num_steps:", "if False:"),
    FleetMutant("an idle server sleeps on", f"{DRIVERS}/shared.py", "        if self._is_idle:", "        if False:"),
    FleetMutant("events that are out of date occur", f"{DRIVERS}/timetable.py",
                "if server.due == due:", "if server.due != NEVER:"),
    FleetMutant("later steps are priced as the first ones", "simulator/replica.py",
                "plan.work.after(passed)", "plan.work"),
    FleetMutant("a lengthened run is not cut", "simulator/replica.py",
                "return self.cut(start, run)", "return run"),
    FleetMutant("the fastest sets the pace", f"{DRIVERS}/lockstep.py", "pace = max(pace, price)",
                "pace = min(pace or price, price)"),
    FleetMutant("idle ranks do nothing", f"{DRIVERS}/lockstep.py", "replica.cost_model.step_ns(_DUMMY)", "1"),
    FleetMutant("idle ranks have no token", f"{DRIVERS}/lockstep.py",
                "max(1, tokens) for", "tokens for"),
    FleetMutant("what ranks share is free", f"{DRIVERS}/lockstep.py",
                "pace + self._shared_ns([max(1, tokens) for tokens in num_tokens])", "pace"),
    FleetMutant("experts count twice", "simulator/costs/ranks.py", " - self._whole.experts_ns(work.num_tokens)", ""),
    FleetMutant("a rank has all experts", "simulator/models/experts.py",
                "(self.num_experts // self.num_ranks, self.num_used / self.num_ranks)",
                "(self.num_experts, self.num_used)"),
    FleetMutant("ranks are not padded alike", "simulator/costs/ranks.py", "len(num_tokens) * padded",
                "sum(num_tokens)"),
    FleetMutant("a plan made ahead is forgotten", f"{DRIVERS}/lockstep.py", "plan or replica.plan(now)",
                "replica.plan(now)"),
    FleetMutant("nothing is scattered back", "simulator/costs/ranks.py",
                "2 * model.num_expert_layers", "model.num_expert_layers"),
    FleetMutant("a dead server remembers", "simulator/fleets/staffing.py",
                "self._replicas[number].lose(self._staffing.make_scheduler(number))",
                "self._replicas[number].lose(self._replicas[number].scheduler)"),
    FleetMutant("requests in the inbox die with the server", "simulator/replica.py",
                ", *(request for _, request in self._inbox)]", "]"),
    FleetMutant("steps that ended are lost", f"{DRIVERS}/shared.py",
                "num_ended = self._price", "num_ended = 0 * self._price"),
    FleetMutant("dead servers get requests", "simulator/fleets/desk.py",
                "return self.open[self._rule.choose(request, [self.views[number] for number in self.open])]",
                "return self._rule.choose(request, self.views)"),
    FleetMutant("a drained server is never off", "simulator/fleets/roster.py",
                'self._set(server, "off")', "pass"),
    FleetMutant("a server that died while it started is there", "simulator/fleets/roster.py",
                "self._lives[server] == life", "True"),
    FleetMutant("servers start at once", "simulator/fleets/roster.py", "self._later(start_up_ns,", "self._later(0,"),
    FleetMutant("the busiest are drained", "simulator/fleets/roster.py",
                "(self._staff.load(server), -server)", "(-self._staff.load(server), -server)"),
    FleetMutant("fewer servers at once", "engine/core/scaling.py",
                "return max(self._recent) if len", "return self._recent[-1] if len"),
    FleetMutant("a stage takes two plans", f"{DRIVERS}/pipeline.py", "start = max(end, self._stage_free_at[stage])",
                "start = end"),
    FleetMutant("a prompt elsewhere has no priority", HANDOVER, "        priority=request.priority,\n", ""),
    FleetMutant("preemptions of a prompt elsewhere are lost", HANDOVER,
                "= computed.num_recomputed_tokens, computed.num_preemptions", "= 0, 0"),
    FleetMutant("who begins anew comes anew", GATEWAY, "self._make_request(request.request_id, request.arrival_time)",
                "self._make_request(request.request_id, now_ns)"),
    FleetMutant("a short prompt is routed once more", GATEWAY, "self._send(request, desk, now_ns, number)",
                "self._send(request, desk, now_ns)"),
    FleetMutant("those who found no server go last first", GATEWAY,
                "            for request in held:\n                self._send(",
                "            for request in reversed(held):\n                self._send("),
    FleetMutant("a dead server is believed to have its prefixes", DESK,
                "            self._estimate = PrefixEstimate(self._num_known)\n", "            pass\n"),
    FleetMutant("what was coming to a dead server still is", DESK, "            self._expected.clear()\n",
                "            pass\n"),
    FleetMutant("what comes is behind the device, too", DESK, "max(0, on_device + behind - num_expected)", "behind"),
    FleetMutant("others start before those return that drain", ROSTER, '[*self._all("draining"), *self._all("off")]',
                '[*self._all("off"), *self._all("draining")]'),
    FleetMutant("servers that start are started again", ROSTER, "desired - len(open_ones) - len(starting)",
                "desired - len(open_ones)"),
    FleetMutant("servers drain while others start", ROSTER, " if not starting else ():", ":"),
    FleetMutant("the fewest do not start", ROSTER, "if open_ones else scaled.options.fewest", "if open_ones else 0"),
    FleetMutant("who is down fails again", ROSTER, 'in ("off", "down")', 'in ("off",)'),
    FleetMutant("nobody ended and the SLO is broken", "simulator/fleets/staffing.py",
                "if ended else 1.0", "if ended else 0.0"),
    FleetMutant("the share of the pools is the free one", "simulator/fleets/staffing.py",
                "return 1 - sum(view.num_free_blocks", "return sum(view.num_free_blocks"),
    FleetMutant("a block of the store is there when it leaves", STORE, "return at is not None and at <= now",
                "return at is not None"),
    FleetMutant("a block has the time of the one before it", STORE,
                "        self._there_at.pop(transfer.target, None)\n", ""),
    FleetMutant("a hit in the store is not noted", STORE, "        self._store.tier.refresh(block_hash)\n",
                "        pass\n"),
    FleetMutant("a prompt's head goes to the store first", OFFLOAD, "in reversed(self._computed.items())",
                "in self._computed.items()"),
    FleetMutant("what a tier fills goes to the store", OFFLOAD, " if block not in self._coming\n", "\n"),
    FleetMutant("what was handed out goes to the store", OFFLOAD, "                self._computed.pop(block, None)\n",
                "                pass\n"),
    FleetMutant("the store comes before the host", OFFLOAD, "next((tier for tier in self.tiers if tier.holds",
                "next((tier for tier in reversed(self.tiers) if tier.holds"),
    FleetMutant("all loads are the store's", "simulator/copies/transfers.py",
                "sum(load.source_tier == STORE for load in loads)", "len(loads)"),
    FleetMutant("servers name what nobody knows alike", "engine/core/kv/kept_blocks.py",
                "(request.request_id << 32 | request.order)", "request.order"),
)  # fmt: skip


def copied(folder: Path) -> None:
    """What the tests need of the tree, as it is read and not as it is compiled."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("engine", "harness", "simulator", "kernels", "tests", "conf"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)


def is_caught(mutant: FleetMutant, folder: Path) -> bool:
    """Whether the tests fail in `folder`, a copy of the tree, with the fault in it; it is taken out again."""
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.name}: out of date"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
    try:
        done = subprocess.run([*command, *TESTS], cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:  # a run that never ends is noticed
        return True
    finally:
        path.write_text(text, encoding="utf-8")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode == 1


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        copied(Path(name))
        for mutant in MUTANTS:
            print(f"{mutant.name:45} {'caught' if is_caught(mutant, Path(name)) else 'SURVIVED'}", flush=True)


if __name__ == "__main__":
    main()
