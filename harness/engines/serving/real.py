"""The real engine of a configuration, behind a server."""

from __future__ import annotations

from engine.api.llm import LLM
from engine.api.step_report import StepReport
from engine.model_folder import load_tokenizer
from engine.models.model_config import ModelError
from engine.runner.cache.kv_cache import OutOfMemoryError
from engine.runner.executors.tensor_parallel import WorkerError
from engine.sampling_params import SamplingParams
from engine.server.real import RealBackend
from engine.server.tally import Tally
from engine.server.words import WordTokenizer
from harness.config import RunConfig
from harness.engines.real import resolve_real
from harness.engines.serving.ledger import Ledger
from harness.errors import ConfigError
from kernels.attention.backends import BackendUnavailableError


def real_backend(config: RunConfig, tally: Tally, ledger: Ledger | None, name: str) -> RealBackend:
    """Load the model; `tally` and `ledger` get its steps. A model without a tokenizer gets words for tokens.

    Raises:
        ConfigError: it cannot be loaded or run here.
    """
    setup = resolve_real(config)
    setup.use_threads()
    try:
        own = None if setup.weights is None else load_tokenizer(setup.weights)
        tokenizer = own or WordTokenizer(setup.model.vocab_size)
        llm = LLM(setup.weights or setup.model, setup.engine, tokenizer=tokenizer)
    except (ModelError, OutOfMemoryError, BackendUnavailableError, WorkerError) as error:
        raise ConfigError(f"engine={config.engine.kind}: {error}") from error
    if setup.warm_up:
        llm.generate([[1] * 10, [1] * 50], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
        llm.reset_prefix_cache()

    def on_report(report: StepReport) -> None:
        tally.on_step(report.plan, report.start_ns, 0, report.start)
        if ledger is not None:
            ledger.on_report(report)

    llm.observe(on_report)
    front = tokenizer if setup.weights is None else load_tokenizer(setup.weights) or tokenizer
    backend = RealBackend(llm, name, tally, front)
    backend.on_sent = None if ledger is None else ledger.on_sent
    return backend
