"""One rank of the tensor-parallel tests, run in a process of its own; needs torch, not transformers."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from tests.engine.models.paged import PagedModel, run_all_ways

RANDOM_SEED = 3
DTYPES = (torch.float32, torch.bfloat16)


def run_rank(rank: int, size: int, root: Path, prompts: list[list[int]]) -> None:
    """Save logits in `root`, by (model folder, "loaded" or "random", dtype) and then as `run_all_ways` returns them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous{size}", rank=rank, world_size=size)
    tp = TensorParallel(rank, size)
    result = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        config = ModelConfig.load(folder)
        for dtype in DTYPES:
            result[folder.name, "loaded", dtype] = run_all_ways(PagedModel.build(config, dtype, tp, folder), prompts)
        model = PagedModel.build(config, torch.float32, tp, RANDOM_SEED)
        result[folder.name, "random", torch.float32] = run_all_ways(model, prompts)
    torch.save(result, root / f"size{size}-rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
