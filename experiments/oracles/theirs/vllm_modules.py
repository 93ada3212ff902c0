"""The scheduler of vLLM 0.19, 0.27 or 0.33, out of an unpacked wheel and without the rest of vLLM."""

from __future__ import annotations

import hashlib
import importlib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.oracles.stubs import Corrections, SelectiveFinder, selective_imports
from experiments.oracles.theirs.offloading import OFFLOADING_MODULES, import_connector, offloading_corrections

VERSIONS = ("0.19.0", "0.27.1", "0.33.0")
_STOOD_IN_FOR = ("vllm", "torch", "msgspec", "prometheus_client")
_REAL = (
    "vllm.v1.core",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.utils.math_utils",
    "vllm._version",
    *OFFLOADING_MODULES,
)
_SCHEDULER = "vllm.v1.core.sched.scheduler"


def block_hash(value: object) -> bytes:
    """In place of the hash functions of vLLM; only equality matters."""
    return hashlib.sha256(repr(value).encode()).digest()


_ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": False,
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": False,
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": None,
}
_VALUES: dict[str, dict[str, Any]] = {
    "vllm": {"envs": SimpleNamespace(**_ENVIRONMENT)},
    "vllm.envs": _ENVIRONMENT,
    "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda tokens, embeds: len(tokens)},
    "vllm.utils.torch_utils": {"get_dtype_size": lambda dtype: 2},
    "vllm.utils.hashing": {"sha256_cbor": block_hash, "xxhash_cbor": block_hash},
    "vllm.v1.structured_output.request": {
        "StructuredOutputRequest": SimpleNamespace(from_sampling_params=lambda params: None)
    },
    "vllm.v1.metrics.stats": {"KV_FETCH_STAGES": ()},
    "vllm.v1.utils": {"ConstantList": lambda items: items, "record_function_or_nullcontext": nullcontext},
    "vllm.v1.engine": {"EngineCoreOutput": SimpleNamespace, "EngineCoreOutputs": SimpleNamespace},
}

# A victim of the priority policy that stands before the request which lacks blocks moves that one forward in the list.
# vLLM moves its index along only if the victim has been scheduled in this step. With asynchronous scheduling it may not
# have been, because it waits for its last token, and then the request after the one that lacked blocks is left out.
_SKIPPED_INDEX = Corrections(
    {
        _SCHEDULER: [
            (
                "                        self.running.remove(preempted_req)\n",
                "                        if self.running.index(preempted_req) < req_index:\n"
                "                            req_index -= 1\n"
                "                        self.running.remove(preempted_req)\n",
            ),
            (
                "                                encoder_compute_budget += num_embeds_to_restore\n"
                "                            req_index -= 1\n",
                "                                encoder_compute_budget += num_embeds_to_restore\n",
            ),
        ]
    }
)


def load(folder: Path, *, corrected: bool) -> SimpleNamespace:
    """The classes of the scheduler, by name.

    Args:
        folder: holds the directory `vllm` of the wheel.
        corrected: correct the index that skips a request (see above).

    Raises:
        ImportError: it is none of `VERSIONS`.
    """
    version = next((v for v in VERSIONS if f"'{v}'" in (folder / "vllm" / "_version.py").read_text("utf-8")), None)
    if version is None:
        raise ImportError(f"{folder} holds another vLLM than {', '.join(VERSIONS)}")
    corrections = Corrections(offloading_corrections(version))
    if corrected and version != "0.33.0":
        corrections |= _SKIPPED_INDEX
    with selective_imports(SelectiveFinder(folder, _STOOD_IN_FOR, _REAL, _VALUES, corrections), _STOOD_IN_FOR):
        names = SimpleNamespace(version=version[:4])
        for module, attributes in {
            _SCHEDULER: ["Scheduler"],
            "vllm.v1.core.sched.async_scheduler": ["AsyncScheduler"],
            "vllm.v1.core.kv_cache_utils": ["get_request_block_hasher", "init_none_hash"],
            "vllm.v1.kv_cache_interface": ["FullAttentionSpec", "KVCacheConfig", "KVCacheGroupSpec"],
            "vllm.v1.request": ["Request", "RequestStatus"],
        }.items():
            loaded = importlib.import_module(module)
            for attribute in attributes:
                setattr(names, attribute, getattr(loaded, attribute))
        if version != "0.19.0":  # what it imports when it first makes a manager
            importlib.import_module("vllm.v1.kv_cache_spec_registry").KVCacheSpecRegistry._ensure_registered()
        import_connector(names, version)
    names.init_none_hash(block_hash)
    return names
