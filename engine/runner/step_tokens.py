"""What comes back from a plan that ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.sampling.logit_edits import RowLogprobs


@dataclass(frozen=True)
class StepTokens:
    """The tokens that a plan sampled, and its times in ns.

    Attributes:
        decode: int64[num_steps, num_decodes]; column i belongs to decode row i.
        prefill: int64[s], one token for each sample of `PrefillInputs`.
        execute_ns: time of the model.
        sample_ns: time of logits and sampling. CUDA graphs contain both: then `sample_ns` is 0 and `execute_ns` is the
            whole time.
        transfer_ns: time for which the steps waited for copies from or to the host.
        landed: the number of the last copies beside steps that have ended (`TransferInputs.number`).
        logprobs: of the sampled tokens in `Adjustments.logprob_rows`, with numpy arrays; None without any.
        prompt_logprobs: of `Adjustments.prompt_tokens`; None without any.
    """

    decode: NDArray[np.int64]
    prefill: NDArray[np.int64]
    execute_ns: int
    sample_ns: int
    transfer_ns: int = 0
    landed: int = 0
    logprobs: RowLogprobs | None = None
    prompt_logprobs: RowLogprobs | None = None
