"""KV offloading in the oracle of vLLM: its OffloadingConnector's scheduler side, and transfers that take a few steps.

What runs is the connector as the scheduler of vLLM holds it, with the cache in the host's memory that it manages. In
place of its workers, which copy blocks, stand jobs that end after a number of steps, which a case draws.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

from experiments.oracles.cases import Case, Options
from experiments.oracles.stubs import Corrections

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1"
OFFLOADING_MODULES = (
    CONNECTOR,
    "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.v1.kv_offload",
)

# Jobs keep the blocks that they copy in sets of bytes, whose order Python draws for each process. The order in which
# they become evictable is the one in which they were asked for.
_KEPT_ORDER = Corrections(
    {
        f"{CONNECTOR}.offloading.scheduler": [
            ("keys=set(keys_to_load)", "keys=dict.fromkeys(keys_to_load)"),
            ("keys=set(keys_to_store)", "keys=dict.fromkeys(keys_to_store)"),
            ("keys_to_store = set(store_output.keys_to_store)", "keys_to_store = store_output.keys_to_store"),
        ]
    }
)


def offloading_corrections(version: str) -> Corrections:
    """What makes the order of jobs' blocks the same in every process; 0.19 does not go by it."""
    return Corrections() if version == "0.19.0" else _KEPT_ORDER


class TransferSteps:
    """Jobs that end after a number of steps.

    A load can end with the step that asks for it; a store begins with the step after.
    """

    def __init__(self, case: Case) -> None:
        self._most = case.options.most_transfer_steps
        self._left: dict[int, int] = {}  # steps until a job ends, by its id
        self._num_of: dict[tuple[int, bool], int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._left

    def add(self, job: int, request_id: int, *, is_store: bool) -> None:
        number = self._num_of[request_id, is_store] = self._num_of.get((request_id, is_store), 0) + 1
        steps = Random(f"{request_id} {is_store} {number}").randint(0, self._most)
        self._left[job] = steps + is_store

    def keep(self, under_way: Container[int]) -> None:
        """Forget the jobs that are not under way any more."""
        self._left = {job: left for job, left in self._left.items() if job in under_way}

    def pass_step(self, flushed: Iterable[int], *, counts: bool) -> list[int]:
        """The jobs that end with a step, in the order they were added: those that it has to wait for, and if it
        `counts`, those that are done by then."""
        flushed = set(flushed)
        ended = [job for job, left in self._left.items() if job in flushed or counts and left == 0]
        for job in ended:
            del self._left[job]
        if counts:
            for job in self._left:
                self._left[job] -= 1
        return ended


def connector_config(options: Options) -> SimpleNamespace | None:
    """`kv_transfer_config` of vLLM."""
    if not options.num_host_blocks:
        return None
    return SimpleNamespace(
        kv_connector="OffloadingConnector", kv_role="kv_both", is_kv_consumer=True, is_kv_producer=True,
        kv_load_failure_policy="recompute", engine_id="0", kv_connector_extra_config={},
    )  # fmt: skip


def import_connector(names: SimpleNamespace, version: str) -> None:
    """Add the connector's classes to `names`."""
    module: Any = importlib.import_module(f"{CONNECTOR}.offloading_connector")
    managing: Any = importlib.import_module("vllm.v1.kv_offload.cpu.manager")
    names.CPUOffloadingManager = managing.CPUOffloadingManager
    eviction = importlib.import_module("vllm.v1.kv_offload.cpu.policies.lru").LRUCachePolicy
    managing.CachePolicyFactory = SimpleNamespace(get_cache_policy_cls=lambda *args: eviction)  # imports when asked
    common = importlib.import_module(f"{CONNECTOR}.offloading.common")
    names.WorkerMetadata = getattr(common, "OffloadingWorkerMetadata", None)
    names.create_spec = SimpleNamespace(make=None)
    module.OffloadingSpecFactory = SimpleNamespace(create_spec=lambda *args: names.create_spec.make())
    module.build_offloading_config = lambda *args: SimpleNamespace(canonical_layout=False)
    scheduling: Any = importlib.import_module("vllm.v1.core.sched.scheduler")
    scheduling.KVConnectorFactory = SimpleNamespace(
        create_connector=lambda config, role, kv_cache_config: module.OffloadingConnector(
            config, module.KVConnectorRole.SCHEDULER, kv_cache_config
        )
    )


def make_spec(vllm: SimpleNamespace, options: Options, vllm_config: Any) -> SimpleNamespace:
    """What a `CPUOffloadingSpec` tells the connector; a chunk is `chunk_blocks` blocks of the device."""
    size, factor, num_chunks = options.block_size, options.chunk_blocks, options.num_host_blocks
    if vllm.version == "0.19":
        manager = vllm.CPUOffloadingManager(block_size=size * factor, num_blocks=num_chunks)
    else:
        manager = vllm.CPUOffloadingManager(num_chunks)
    group = SimpleNamespace(group_id=0, tokens_per_block=size, sliding_window_size_in_chunks=None)
    return SimpleNamespace(
        gpu_block_size=(size,), block_size_factor=factor, vllm_config=vllm_config,
        tokens_per_block=(size,), blocks_per_chunk=factor, tokens_per_hash=size, offload_prompt_only=False,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=False, self_describing_kv_events=False),
        extra_config={}, config=SimpleNamespace(groups=(group,)), get_manager=lambda: manager,
    )  # fmt: skip


class Workers:
    """In place of the connector's workers."""

    def __init__(self, vllm: SimpleNamespace, case: Case, scheduler: Any) -> None:
        self._vllm = vllm
        self._jobs = TransferSteps(case)
        self._scheduler = scheduler
        self._is_by_request = vllm.version == "0.19"
        self._of: dict[int, tuple[str, bool]] = {}
        self._num_jobs = 0
        self._stores: dict[str, set[int]] = {}  # 0.19: of each request that ever stored something
        self._waiting: dict[str, None] = {}  # 0.19: requests that have finished and are still being stored
        connector = scheduler.connector
        build = connector.build_connector_meta

        def build_in_order(output: Any) -> Any:
            output.finished_req_ids = sorted(output.finished_req_ids, key=int)  # a set, in no order of vLLM's
            return build(output)

        connector.build_connector_meta = build_in_order

    @property
    def is_idle(self) -> bool:
        return self._jobs.is_idle and not self._waiting and not self._scheduler.finished_req_ids

    def transfers(self, output: Any) -> list[tuple[int, bool, tuple[int, ...]]]:
        """What a step asks for, as `Step` has it."""
        meta = output.kv_connector_metadata
        if self._is_by_request:
            loads = [(name, False, source) for name, (source, _) in meta.reqs_to_load.items()]
            stores = [(name, True, target) for name, (_, target) in meta.reqs_to_store.items()]
        else:
            loads = [(job.req_id, False, job.src_spec) for job in meta.load_jobs.values()]
            stores = [(job.req_id, True, job.dst_spec) for job in meta.store_jobs.values()]
        return [(int(name), is_store, tuple(map(int, spec.block_ids))) for name, is_store, spec in [*loads, *stores]]

    def run(self, output: Any) -> SimpleNamespace:
        """What the workers tell after a step."""
        meta = output.kv_connector_metadata
        counts = bool(output.num_scheduled_tokens) or not output.preempted_req_ids
        sent, received = self._run_by_request(output, meta, counts) if self._is_by_request else (set(), None)
        worker_meta = None
        if received is None:
            received, worker_meta = self._run_by_job(meta, counts)
        return SimpleNamespace(
            finished_sending=sent, finished_recving=received, invalid_block_ids=set(), kv_connector_stats=None,
            kv_connector_worker_meta=worker_meta, failed_recving=set(),
        )  # fmt: skip

    def _run_by_job(self, meta: Any, counts: bool) -> tuple[dict[str, None], Any]:
        for job, transfer in meta.load_jobs.items():
            self._add(job, transfer.req_id, is_store=False)
        for job, transfer in meta.store_jobs.items():
            self._add(job, transfer.req_id, is_store=True)
        ended = self._jobs.pass_step(meta.jobs_to_flush or (), counts=counts)
        worker_meta = self._vllm.WorkerMetadata()
        for job in ended:
            worker_meta.mark_completed(job)
        return {self._of[job][0]: None for job in ended if not self._of[job][1]}, worker_meta

    def _run_by_request(self, output: Any, meta: Any, counts: bool) -> tuple[dict[str, None], dict[str, None]]:
        flushed = [job for name in meta.reqs_to_flush or () for job in self._stores.get(name, ())]
        for name in meta.reqs_to_load:
            self._add(self._number(), name, is_store=False)
        for name in meta.reqs_to_store:
            self._stores.setdefault(name, set()).add(job := self._number())
            self._add(job, name, is_store=True)
        sent, received = dict[str, None](), dict[str, None]()
        for job in self._jobs.pass_step(flushed, counts=counts):
            name, is_store = self._of[job]
            if not is_store:
                received[name] = None
                continue
            self._stores[name].remove(job)
            if not self._stores[name] and name in self._waiting:
                del self._waiting[name], self._stores[name]
                sent[name] = None
        for name in output.finished_req_ids:
            if self._stores.get(name):
                self._waiting[name] = None
            elif self._stores.pop(name, None) is not None:
                sent[name] = None
        return sent, received

    def _add(self, job: int, name: str, *, is_store: bool) -> None:
        self._of[job] = name, is_store
        self._jobs.add(job, int(name), is_store=is_store)

    def _number(self) -> int:
        self._num_jobs += 1
        return self._num_jobs
