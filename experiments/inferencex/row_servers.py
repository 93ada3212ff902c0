"""The server of each row of another engine than vLLM: with the kernels of its version, and what it was started with."""

from __future__ import annotations

from pathlib import Path

from experiments.inferencex import sglang_servers, trtllm_servers
from experiments.inferencex.load import Load
from experiments.inferencex.other_engines import is_untimed, of_sglang, of_trtllm, sglang_kernels, trtllm_kernels
from experiments.inferencex.simulation import CaseRows
from harness.errors import TwinServeError
from harness.measured.public_servers import PublicServer

_SCRIPTS = {"sglang": sglang_servers.of_load, "trtllm": trtllm_servers.of_load}  # of InferenceX
_LAYOUT = ["tensor_parallel_size", "data_parallel_size", "expert_parallel"]
_UNTOLD = "untold"


def generated(server: PublicServer, load: Load) -> PublicServer:
    """`server`, an NVIDIA's, with what aiconfigurator's generator makes of the row: a CUDA graph for each number of
    clients (cli/backends/trtllm.py, commit 961028348, and rule_plugin/sglang.rule, 1089dfa8e), and for TensorRT-LLM the
    prompt, 1,500 tokens and one for each client in a step."""
    is_trtllm = server.more["scheduler"] == "trtllm"
    tokens = 1500 + load.clients if is_trtllm else server.tokens_beyond_prompt
    return server._replace(more={**server.more, "engine.pads_decodes": "false"}, tokens_beyond_prompt=tokens)


class RowServers:
    """Servers of `backend` that serve what `server` serves.

    Args:
        server: the newest vLLM of the model and GPU.
        data: silicon_sample.csv.
        cost: `profiled`, or a cost model that needs no tables.
        history: folder of old tables.
    """

    def __init__(
        self, server: PublicServer, data: Path, backend: str, system: str, cost: str, history: Path | None
    ) -> None:
        self._server, self._data, self._backend, self._system = server, data, backend, system
        self._cost, self._history = cost, history
        self._of_versions: dict[str, PublicServer] = {}

    def of_version(self, version: str) -> PublicServer:
        """The server with the tables that come first for its version and have what the layouts of its rows need."""
        if version not in self._of_versions:
            made = [self._made(kernels) for kernels in self._kernels(version)]
            timed = (each for each in made if len(made) == 1 or self._is_timed(each))
            self._of_versions[version] = next(timed, made[0])
        return self._of_versions[version]

    def of_row(self, version: str, load: Load) -> PublicServer:
        """The server of a row.

        Raises:
            TwinServeError: it was started with what is not simulated.
        """
        server = self.of_version(version)
        return generated(server, load) if server.length_ratio == 1 else _SCRIPTS[self._backend](server, load)

    def _kernels(self, version: str) -> list[str]:
        if self._cost != "profiled":
            return [""]
        if self._backend == "sglang":
            return sglang_kernels(self._data, self._system, version, self._history)
        return trtllm_kernels(self._data, self._system, self._server, version or _UNTOLD, self._history)

    def _made(self, kernels: str) -> PublicServer:
        return of_sglang(self._server, kernels) if self._backend == "sglang" else of_trtllm(self._server, kernels)

    def _is_timed(self, server: PublicServer) -> bool:
        try:
            rows = CaseRows(server, self._data, self._backend, ["cost=profiled"])
            for place in rows.rows.table.drop_duplicates(_LAYOUT).index:
                rows.system(place)
        except TwinServeError as error:
            return not is_untimed(error)
        return True
