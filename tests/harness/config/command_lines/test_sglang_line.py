"""Command lines of SGLang become configurations, and back, and nothing in them is dropped silently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.sglang.options import SglangOptions
from harness import run
from harness.config.command_lines.importing import expand
from harness.config.command_lines.sglang import serve_line as sglang_serve
from harness.config.command_lines.sglang.flags import NEUTRAL, OTHERS, SHORT
from harness.config.command_lines.sglang.import_line import SGLANG, translate
from harness.config.command_lines.sglang.serve_line import serve_command
from harness.config.command_lines.tool import read_flags
from harness.config.run import RunConfig
from harness.engines.resolving.serve_line import serve_line
from harness.engines.resolving.system import pool_of
from harness.errors import ConfigError
from simulator.models.kv_pool import GIB
from tests.harness.builders import config
from tests.selection import examples

SERVE = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"


def of(command: str, *more: str) -> RunConfig:
    return config(*translate(command).overrides, *more)


@pytest.mark.parametrize(
    ("device", "ranks", "page", "chunk", "graph", "share"),
    # Of `handle_gpu_memory_settings`: MiB that are kept are 512 + 1.5 * chunk + 128 * ranks + 2 * graph + 8 for each of
    # the CUDA graphs of prompts, of which there are 50 at 4,096 tokens, 58 at 8,192 and 74 at 16,384.
    [
        ("l40s", 1, 1, 4096, 32, 0.841),
        ("l40s", 4, 1, 4096, 160, 0.827),
        ("h100-80gb", 1, 1, 8192, 256, 0.828),
        ("h200", 4, 1, 8192, 512, 0.897),
        ("b200", 1, 64, 16384, 512, 0.853),
        ("rtx-4090", 1, 1, 4096, 48, 0.699),
    ],
)
@pytest.mark.sample(3)
def test_defaults_are_those_of_sglang_on_the_device(
    device: str, ranks: int, page: int, chunk: int, graph: int, share: float
) -> None:
    found = of(f"{SERVE} --tp {ranks}", f"device={device}")
    assert (found.block_size, found.max_num_batched_tokens, found.max_num_seqs) == (page, chunk, 2048)
    assert (found.engine.max_graph_tokens, found.gpu_memory_utilization) == (graph, share)  # type: ignore[union-attr]
    assert found.scheduler == config("scheduler=sglang").scheduler


def test_the_pool_is_the_static_share_without_the_weights() -> None:
    pool = pool_of(of(f"{SERVE} --mem-fraction-static 0.5", "device=h100-80gb"))
    free = config("device=h100-80gb").device.memory_bytes - GIB // 2
    assert abs(pool.num_tokens * pool.block_bytes - (free // 2 - pool.weight_bytes)) < pool.block_bytes * 2
    assert pool.weight_bytes > 15 * GIB and pool.activation_bytes == 0
    two = pool_of(of(f"{SERVE} --tp 2", "device=h100-80gb"))
    assert two.outside_bytes > 4 * pool.outside_bytes, "buffers of NCCL"


def test_graphs_leave_less_of_the_memory() -> None:
    def share(flags: str) -> float:
        return of(f"{SERVE} {flags}", "device=h100-80gb").gpu_memory_utilization

    assert share("--disable-cuda-graph") > share("--disable-decode-cuda-graph") > share("")
    assert share("--disable-prefill-cuda-graph") == share(
        '--cuda-graph-config \'{"prefill": {"backend": "disabled"}}\''
    )
    assert share("--cuda-graph-max-bs-decode 16") > share("")


@pytest.mark.parametrize(
    ("flags", "override"),
    [
        ("--max-running-requests 128", "max_num_seqs=128"),
        ("--chunked-prefill-size=4096", "max_num_batched_tokens=4096"),
        ("--chunked-prefill-size -1", "scheduler.enable_chunked_prefill=false"),
        ("--chunked-prefill-size -1 --max-prefill-tokens 32Ki", "max_num_batched_tokens=32768"),
        ("--context-length 1.5k", "max_model_len=1500"),
        ("--tp 4", "tensor_parallel_size=4"),
        ("--page-size 16", "block_size='${sglang:page_size,16}'"),
        ("--page-size 16 --attention-backend fa3", "block_size=16"),
        ("--attention-backend flashmla", "block_size=64"),
        ("--prefill-attention-backend fa3 --decode-attention-backend fa3", "block_size=1"),
        ("--mem-frac .85", "gpu_memory_utilization=0.85"),
        ("--max-total-tokens 64k", "num_blocks='${sglang:num_blocks,64000}'"),
        ("--quantization w8a8_fp8", "quantization=fp8"),
        ("--dtype half", "model.dtype=float16"),
        ("--kv-cache-dtype fp8_e5m2", "engine.kv_cache_dtype=fp8"),
        ("--disable-radix-cache", "scheduler.enable_prefix_caching=false"),
        ("--disable-overlap-schedule", "scheduler.async_scheduling=false"),
        ("--enable-mixed-chunk", "scheduler.options.enable_mixed_chunk=true"),
        ("--schedule-policy lpm", "scheduler.options.schedule_policy=lpm"),
        ("--schedule-conservativeness 0.3", "scheduler.options.schedule_conservativeness=0.3"),
        ("--scheduler-recv-interval 10", "scheduler.options.scheduler_recv_interval=10"),
        ("--cuda-graph-bs 1 2 32", "engine.max_graph_tokens=32"),
        ("--cuda-graph-bs 1 2 3", "engine.pads_decodes=false"),
        ("--disable-cuda-graph-padding", "engine.pads_decodes=false"),
        ('--cuda-graph-config \'{"decode": {"max_bs": 64}}\' --cuda-graph-max-bs 8', "engine.max_graph_tokens=64"),
        ("--cuda-graph-backend-decode disabled", "engine.max_graph_tokens=0"),
        ("--dp 2", "router=round_robin"),
        ("--data-parallel-size 2 --load-balance-method total_tokens", "router=least_tokens"),
        ("--json-model-override-args '{\"num_hidden_layers\": 4}'", "model.num_layers=4"),
    ],
)
def test_a_flag_sets_its_key(flags: str, override: str) -> None:
    assert override in translate(f"{SERVE} {flags}").overrides
    assert override not in translate(SERVE).overrides


def test_pages_are_those_of_the_kernels_of_the_device() -> None:
    sizes = [of(f"{SERVE} --page-size {size}", "device=b200").block_size for size in (1, 16, 128)]
    assert sizes == [64, 16, 128]
    assert of(f"{SERVE} --page-size 16 --max-total-tokens 3200", "device=h200").num_blocks == 200


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--enable-lora", "--enable-lora: not simulated, and it changes what is served"),
        ("--pp-size 2", "--pp-size 2"),
        ("--ep 8", "--ep-size 8"),
        ("--speculative-algorithm EAGLE3", "--speculative-algorithm EAGLE3"),
        ("--schedule-policy hrrn", "--schedule-policy hrrn: not simulated; choose one of fcfs"),
        ("--kv-cache-dtype nvfp4", "--kv-cache-dtype nvfp4"),
        ("--quantization gguf", "--quantization gguf"),
        ("--max_running_requests 3", "no flag of SGLang 0.5.23; did you mean '--max-running-requests'"),
        ("--max-running-requests 3k", "--max-running-requests 3k: must be a number"),
        ("--context-length 1.5Ki", "--context-length 1.5Ki: must be a number"),
        ("--max-prefill-tokens 4096", "--max-prefill-tokens 4096: not simulated where"),
        ("--chunked-prefill-size 32768", "--max-prefill-tokens 16384: not simulated where"),
        ("--no-disable-radix-cache", "--no-disable-radix-cache: no flag of SGLang"),
        ("--cuda-graph-config 5", "--cuda-graph-config: must be a JSON object"),
        ("--json-model-override-args x", "--json-model-override-args: no JSON"),
        ("--dp-size 2 --load-balance-method follow_bootstrap_room", "--load-balance-method follow_bootstrap_room"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(flags: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of(f"{SERVE} {flags}")
    text = str(caught.value)
    assert named in text and "\n" not in text and text.startswith("import_sglang: ")


def test_another_tool_is_refused() -> None:
    with pytest.raises(ConfigError, match="import_sglang: .*must be a command line that starts with sglang serve"):
        translate("vllm serve Qwen/Qwen3-8B")
    with pytest.raises(ConfigError, match="import_vllm: .*must be a command line that starts with vllm serve"):
        expand([f"import_vllm={SERVE}"])


def test_every_other_flag_is_refused_or_noted() -> None:
    for name, flag in OTHERS.items():
        words = [name, *([] if flag.values in ("none", "switch") else ["2"])]
        if flag.effect == "refused":
            with pytest.raises(ConfigError, match=name):
                read_flags(SGLANG, words)
        else:
            assert any(name in note for note in read_flags(SGLANG, words).notes), name
    for name, value in NEUTRAL.items():
        assert OTHERS[name].effect == "refused" and not read_flags(SGLANG, [name, value]).notes
    assert {*SHORT.values()} <= {*OTHERS, *SGLANG.own} and not {*OTHERS} & {*SGLANG.own}


def test_versions_variables_and_what_is_given_beside() -> None:
    image = f"docker run -e SGLANG_X=1 lmsysorg/sglang:v0.5.9-cu129 {SERVE.replace('python', 'python3')} --port 80"
    arguments, notes = expand([f"import_sglang={image}", "max_num_seqs=8", "device=h200"])
    assert [note.partition(":")[0] for note in notes] == ["SGLANG_X=1", "--port", "SGLang 0.5.9"]
    assert arguments[-2:] == ["max_num_seqs=8", "device=h200"] and "scheduler=sglang" in arguments
    assert not any(each.startswith("max_num_seqs=$") for each in arguments)
    newest = f"{SERVE}  # SGLang 0.5.23"
    assert translate(newest).notes == [] and translate(f"sglang serve {SERVE[31:]}") == translate(SERVE)
    with pytest.raises(ConfigError, match="2 times"):
        expand([f"import_sglang={SERVE}", "import_vllm=vllm serve Qwen/Qwen3-8B"])
    on_cpu = expand([f"import_sglang={SERVE}", "engine=cpu"]).overrides
    assert not any(each.startswith("engine.") for each in on_cpu)
    assert config(*on_cpu).engine.kind == "cpu"
    elsewhere = expand([f"import_sglang={SERVE}", "engine=openai"]).overrides
    assert config(*elsewhere, "engine.endpoint=http://a:1").engine.kind == "openai"


_PARTS = (
    "--max-running-requests 77", "--chunked-prefill-size 3000", "--context-length 9000", "--page-size 32", "--tp 2",
    "--mem-fraction-static 0.8", "--kv-cache-dtype fp8_e4m3", "--quantization fp8", "--dtype half", "--dp-size 3",
    "--max-total-tokens 50k", "--schedule-policy lpm", "--schedule-conservativeness 0.5", "--enable-mixed-chunk",
    "--disable-radix-cache", "--disable-overlap-schedule", "--disable-cuda-graph", "--disable-prefill-cuda-graph",
    "--cuda-graph-max-bs 24", "--attention-backend trtllm_mha", "--schedule-policy fcfs",
    "--load-balance-method total_requests", "--max-prefill-tokens 20000", "--scheduler-recv-interval 30",
)  # fmt: skip


@examples(12)
@given(parts=st.sets(st.sampled_from(_PARTS), max_size=7), device=st.sampled_from(("h100-80gb", "b200", "l40s")))
def test_a_line_is_the_same_server_on_the_way_back(parts: set[str], device: str) -> None:
    settings = of(" ".join((SERVE, *sorted(parts))), f"device={device}")
    line = serve_command(settings)
    assert "#" not in line
    back = of(line, f"device={device}")
    assert back == settings
    assert serve_command(back) == line


def test_what_sglang_has_no_flag_for_is_named() -> None:
    more = ("quantization=int4", "scheduler.options.ignore_eos=true", "scheduler.watermark=0.1", "replicas=2")
    line = serve_command(config("scheduler=sglang", "router=random", *more))
    command, _, comment = line.partition("  # 2 such servers behind a router: random; not in SGLang: ")
    for setting in ("gpu_memory_utilization=", "quantization=int4", "ignore_eos=true", "scheduler.watermark=0.1"):
        assert setting in comment
    assert translate(line).overrides == translate(command).overrides


def test_the_fixed_scheduler_is_that_of_the_option() -> None:
    scheduler = config("scheduler=sglang").scheduler
    assert {key: getattr(scheduler, key) for key in sglang_serve._FIXED} == sglang_serve._FIXED
    assert {*SglangOptions.__dataclass_fields__} == {
        "schedule_policy", "schedule_conservativeness", "enable_mixed_chunk", "ignore_eos",
        "scheduler_recv_interval",
    }  # fmt: skip


def test_a_run_prints_the_line_of_its_scheduler() -> None:
    found = run(f"import_sglang={SERVE} --page-size 16", "trace.num_requests=3", "plots=false", "cost=roofline")
    assert found.summary["vllm_command"].startswith(f"{SERVE} --dtype bfloat16 --tp-size 1 --page-size 16 ")
    by_vllms_account = config("scheduler=sglang", "trace.num_requests=3")
    tokens = pool_of(by_vllms_account).num_tokens
    assert f" --max-total-tokens {tokens} " in serve_line(by_vllms_account)
    assert serve_line(config("scheduler=vllm")).startswith("vllm serve ")
