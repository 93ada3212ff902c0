"""Two and four ranks over gloo compute the same as one rank; of four ranks, two hold the same KV head."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.multiprocessing as multiprocessing  # noqa: E402

from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import ModelConfig  # noqa: E402
from tests.engine.models.builders import VARIANTS, prompts, relative_error, save  # noqa: E402
from tests.engine.models.paged import PagedModel, run_all_ways  # noqa: E402
from tests.engine.models.tp_worker import DTYPES, RANDOM_SEED, run_rank  # noqa: E402


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model folder of each family."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tp")
    for family in VARIANTS:
        save(family, folder / family)
    return folder


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, root: Path) -> list[dict]:
    """The logits that each rank of a group computed, as `run_rank` saves them."""
    size = request.param
    multiprocessing.start_processes(run_rank, args=(size, root, prompts()), nprocs=size, start_method="forkserver")
    return [torch.load(root / f"size{size}-rank{rank}.pt") for rank in range(size)]


@pytest.mark.long
@pytest.mark.parametrize("family", VARIANTS)
def test_every_rank_has_the_logits_of_a_single_one(family: str, root: Path, ranks: list[dict]) -> None:
    config = ModelConfig.load(root / family)
    for source, dtype in (("loaded", DTYPES[0]), ("loaded", DTYPES[1]), ("random", torch.float32)):
        weights = root / family if source == "loaded" else RANDOM_SEED
        expected = run_all_ways(PagedModel.build(config, dtype, TensorParallel(), weights), prompts())
        for rank in ranks:
            for way, logits in rank[family, source, dtype].items():
                assert [len(one) for one in logits] == [len(one) for one in expected[way]]
                errors = relative_error(torch.cat(logits), torch.cat(expected[way]))
                worst = errors.median() if config.num_experts and dtype == torch.bfloat16 else errors.max()
                assert float(worst) < (1e-5 if dtype == torch.float32 else 0.06), (source, dtype, way)
                assert torch.equal(torch.cat(logits), torch.cat(ranks[0][family, source, dtype][way]))
