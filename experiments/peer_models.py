"""Which models of a public wheel `model=hf` reads, with what sizes, and why it refuses the others.

    pip download --no-deps --only-binary :all: aisimulate==0.13.0.dev202610270000000085
    unzip aisimulate-*.whl -d wheel
    python -m experiments.peer_models --configs wheel/aisimulate_core/model_configs

Prints a row per model and writes experiments/results/peer_models.json. The wheel has a `config.json` of each model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments import RESULTS, provenance, write_result
from harness.config import ModelConfig
from harness.config.huggingface import resolve_model
from harness.engines.resolving.shapes import model_shape
from harness.errors import ConfigError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, required=True)
    paths = sorted(parser.parse_args().configs.glob("*_config.json"))
    rows = [row(path) for path in paths if not path.name.endswith("_hf_quant_config.json")]
    for each in rows:
        print("  ".join(f"{value:>10}" if isinstance(value, int | float) else f"{value:50}" for value in each.values()))
    accepted = [each for each in rows if "refused" not in each]
    print(f"{len(accepted)} of {len(rows)} accepted")
    write_result(RESULTS / "peer_models.json", {**provenance("experiments.peer_models"), "models": rows})


def row(path: Path) -> dict[str, Any]:
    """The sizes of a model: billions of parameters, GB of weights as published, bytes per token and per sequence."""
    name = path.name.removesuffix("_config.json").replace("--", "/")
    try:
        model = ModelConfig(**resolve_model({"config": str(path)}))
    except ConfigError as error:
        return {"model": name, "refused": str(error).partition(": ")[2]}
    published = model_shape(model, model.quantization, model.kv_cache_dtype)
    plain = model_shape(model.model_copy(update={"part_formats": {}}), "none", "auto")
    return {
        "model": name,
        "parameters_b": round(plain.weight_bytes() / plain.dtype_bytes / 1e9, 3),
        "weights_gb": round(published.weight_bytes() / 1e9, 1),
        "format": model.quantization + (f" but {', '.join(model.part_formats)}" if model.part_formats else ""),
        "kv_bytes_per_token": published.kv_bytes_per_token(),
        "state_bytes_per_sequence": published.state_bytes(),
    }


if __name__ == "__main__":
    main()
