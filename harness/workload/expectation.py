"""Mean lengths of the distribution that a trace was drawn from, which those of a few hundred draws miss by percents."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.config import SharedPrefixTrace, ShareGptTrace, SyntheticTrace, TraceConfig
from harness.workload.sampling import draw_lengths, draw_sharegpt

_NUM_DRAWS = 20_000
_SEED = tuple(b"expectation")

Tokens = npt.NDArray[np.int64]


def expected_lengths(config: TraceConfig, limit: int) -> dict[str, float] | None:
    """Means per request as of `length_means`, and the `limit` on prompt and output tokens that they hold for; None for
    a trace from a file."""
    rng = np.random.default_rng(_SEED)
    match config:
        case ShareGptTrace(path=None):
            columns = draw_sharegpt(_NUM_DRAWS, turns=config.turns, rng=rng)
            prompt, output = columns["num_prompt_tokens"], columns["num_output_tokens"]
        case SyntheticTrace():
            prompt, output = (draw_lengths(each, _NUM_DRAWS, rng) for each in (config.prompt, config.output))
        case SharedPrefixTrace():
            suffix, output = (draw_lengths(each, _NUM_DRAWS, rng) for each in (config.suffix, config.output))
            prompt = config.prefix_tokens + suffix
        case _:
            return None
    return {"limit": limit, **length_means(prompt, output, limit)}


def length_means(prompt: Tokens, output: Tokens, limit: float) -> dict[str, float]:
    """Tokens per request that an engine serves: of the prompt, of the output, and the contexts of all output tokens in
    sum. Prompts of `limit` tokens are refused, outputs end there."""
    served = prompt < limit
    prompt = np.where(served, prompt, 0)
    output = np.where(served, np.minimum(output, limit - prompt), 0)
    means = {"prompt": prompt, "output": output, "context": output * (prompt + output / 2)}
    return {name: float(values.mean()) for name, values in means.items()}
