"""How much longer does a router in float32 take than one in 16 bits? On a GPU, in seconds.

    python -m experiments.float32_router

Products of tokens with routers of the sizes of MiniMax-M2, GLM-4.6, GLM-4.5-Air and DeepSeek-V3, in a CUDA graph, in
float32, in float32 with inputs in TF32, and in bfloat16. Writes experiments/results/float32_router.csv, of which
`simulator.importers.aiconfigurator.other_kernels` has the first router.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import torch

from experiments import RESULTS

_ROUTERS = ((256, 3072), (160, 5120), (128, 4096), (256, 7168))
_PRECISIONS = (("highest", torch.float32), ("high", torch.float32), ("bf16", torch.bfloat16))
_TOKENS = sorted({2**n for n in range(15)} | {12, 24, 48, 80, 96, 160, 192, 320, 384, 768, 1536, 3072, 6144})
_MANY, _FEW, _REPEATS = 20, 5, 5  # products of a graph, and replays of which the fastest counts
_NUM_WEIGHTS = 40  # more than a cache holds


def main() -> None:
    table = pd.DataFrame(list(_rows()), columns=["rows", "columns", "precision", "tokens", "us"])
    table.to_csv(RESULTS / "float32_router.csv", index=False, float_format="%.2f")
    print(torch.cuda.get_device_name(), torch.__version__, table.to_string(), sep="\n")


def _rows() -> Iterator[tuple[int, int, str, int, float]]:
    for rows, columns in _ROUTERS:
        weights = [torch.randn(rows, columns, device="cuda") * 0.02 for _ in range(_NUM_WEIGHTS)]
        for precision, dtype in _PRECISIONS:
            torch.set_float32_matmul_precision("high" if precision == "high" else "highest")
            for tokens in _TOKENS:
                yield rows, columns, precision, tokens, _product_us([each.to(dtype) for each in weights], tokens)


def _product_us(weights: list[torch.Tensor], tokens: int) -> float:
    states = torch.randn(tokens, weights[0].shape[1], device="cuda", dtype=weights[0].dtype)
    count = _MANY if tokens < 2048 else _FEW
    return _shortest_us(lambda: [torch.nn.functional.linear(states, each) for each in weights[:count]]) / count


def _shortest_us(run: Callable[[], object]) -> float:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            run()
    times = []
    for _ in range(_REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return min(times)


if __name__ == "__main__":
    main()
