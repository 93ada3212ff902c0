"""The flags of `vllm serve` in vLLM 0.9 to 0.33 that have no key of ours, by what they change.

Taken from `vllm/engine/arg_utils.py` and `vllm/entrypoints/common/cli_args.py` of its wheels.
"""

from harness.config.command_lines.tool import Effect, Values, table

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-O": "--optimization-level",
    "--device-memory-utilization": "--gpu-memory-utilization",
    "--spec-method": "--speculative-config.method",
    "--spec-model": "--speculative-config.model",
    "--spec-tokens": "--speculative-config.num_speculative_tokens",
}
_NAMES: dict[tuple[Values, Effect], str] = {
    ("switch", "none"): """
        aggregate-engine-logging allow-credentials allow-deprecated-quantization cudagraph-metrics
        disable-chunked-mm-input disable-fastapi-docs disable-log-stats disable-uvicorn-access-log
        enable-auto-tool-choice enable-flashinfer-autotune enable-force-include-usage enable-layerwise-nvtx-tracing
        enable-log-deltas enable-log-outputs enable-log-requests enable-logging-iteration-details enable-mfu-metrics
        enable-offline-docs enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts
        enable-server-load-tracking enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint
        exclude-tools-when-tool-choice-none fail-on-environ-validation interleave-mm-strings kv-cache-metrics
        log-error-stack ray-workers-use-nsight return-tokens-as-token-ids skip-mm-profiling
        skip-tokenizer-init tokens-only trust-remote-code trust-request-chat-template use-tqdm-on-load
        enable-cumem-allocator enable-fault-tolerance enable-flash-late-interaction enable-per-request-metrics
        enable-scale-out enable-shm-tensor-arena jit-monitor-verbose mm-device-do-normalize
        per-request-spec-decode-metrics return-sampling-mask sleep-mode-offload-cudagraph trust-request-mm-kwargs""",
    ("one", "none"): """
        allowed-local-media-path chat-template chat-template-content-format code-revision config-format
        default-chat-template-kwargs disable-access-log-for-endpoints distributed-timeout-seconds download-dir
        generation-config host io-processor-plugin kv-cache-metrics-sample kv-events-config
        limit-mm-per-prompt load-format log-config-file logprobs-mode master-addr master-port max-log-len max-logprobs
        max-parallel-loading-workers media-io-kwargs mm-processor-cache-gb mm-processor-cache-type mm-processor-kwargs
        mm-shm-cache-max-object-size-mb mm-tensor-ipc model-loader-extra-config node-rank otlp-traces-endpoint
        pooler-config port prefix-caching-hash-algo profiler-config pt-load-map-location
        reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers response-role revision root-path
        safetensors-load-strategy seed show-hidden-metrics-for-version shutdown-timeout ssl-ca-certs ssl-cert-reqs
        ssl-certfile ssl-ciphers ssl-keyfile structured-outputs-config tokenizer tokenizer-mode tokenizer-revision
        tool-call-parser tool-parser-plugin tool-server uds uvicorn-log-level weight-transfer-config
        anthropic-disabled-thinking-effort aux-output-config cohere-format cohere-is-reasoning-model
        cpu-distributed-timeout-seconds data-parallel-supervisor-port device-ids
        dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
        ec-manager-config fault-tolerance-config fingerprint-mode fingerprint-value grpc-port h11-max-header-count
        h11-max-incomplete-event-size jit-monitor-mode log-level logging-config max-lora-cls-labels
        mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-device reasoning-effort-map
        safetensors-prefetch-block-size safetensors-prefetch-num-threads sleep-mode-backend sse-keep-alive-interval
        tool-strict-level watchdog-config watermark-config""",
    ("many", "none"): """
        allowed-headers allowed-media-domains allowed-methods allowed-origins api-key collect-detailed-traces
        hf-token ignore-patterns middleware served-model-name
        custom-histogram-buckets sleep-preserve-parameter-names""",
    ("switch", "past"): """
        disable-async-output-proc disable-frontend-multiprocessing disable-log-requests enable-reasoning
        use-v2-block-manager worker-use-ray""",
    ("one", "past"): """
        device guided-decoding-backend max-seq-len-to-capture num-lookahead-slots preemption-mode swap-space""",
    ("switch", "times"): """
        calculate-kv-scales disable-cascade-attn disable-custom-all-reduce kv-sharing-fast-prefill dcp-q-replicate
        enable-batch-sharded-sampling enable-hc-sp enable-mamba-cache-stochastic-rounding
        enable-mixed-moe-lora-format enable-moe-shared-loras enable-nccl-comm-suspend monokernel numa-bind
        use-fp64-gumbel""",
    ("one", "times"): """
        additional-config attention-backend attention-config compilation-config
        distributed-executor-backend gdn-prefill-backend kernel-config moe-backend model-impl
        optimization-level override-attention-dtype stream-interval dp-sync-interval ir-op-priority
        kda-decode-backend kda-prefill-backend linear-backend mamba-backend mamba-cache-philox-rounds
        mamba-ssu-algorithm mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
        mm-encoder-fp8-scale-save-path sparse-indexer-topk-backend""",
    ("many", "times"): "cudagraph-capture-sizes logits-processors numa-bind-cpus numa-bind-nodes",
    ("switch", "refused"): """
        data-parallel-external-lb data-parallel-hybrid-lb disable-hybrid-kv-cache-manager
        disable-nccl-for-dp-synchronization disable-sliding-window enable-dbo enable-elastic-ep enable-ep-weight-filter
        enable-eplb enable-lora enable-mm-embeds enable-prompt-embeds
        enable-tower-connector-lora fully-sharded-loras headless mm-encoder-only specialize-active-lora
        data-parallel-multi-port-external-lb enable-mamba-shared-prefix-checkpoint enable-trace-replay
        long-prefill-token-threshold-adaptive swa-bounded-replay use-replayssm""",
    ("one", "refused"): """
        convert cp-kv-cache-interleave-size cpu-offload-gb data-parallel-address
        data-parallel-backend data-parallel-rank data-parallel-rpc-port data-parallel-size-local
        data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
        dcp-kv-cache-interleave-size decode-context-parallel-size default-mm-loras ec-transfer-config eplb-config
        expert-placement-strategy hf-config-path kv-offloading-backend
        lora-dtype mamba-block-size mamba-cache-dtype mamba-cache-mode
        mamba-ssm-cache-dtype max-cpu-loras max-long-partial-prefills max-lora-rank max-loras max-num-partial-prefills
        mm-encoder-attn-backend mm-encoder-tp-mode nnodes offload-backend offload-group-size offload-num-in-group
        offload-prefetch-step performance-mode prefill-context-parallel-size runner
        scheduler-cls task ubatch-size video-pruning-rate worker-cls worker-extension-cls
        diffusion-config elastic-ep-max-dp-size engram-config max-num-active-seqs max-num-queued-reqs
        max-num-queued-tokens max-num-scheduled-tokens model-class-overrides prefill-schedule-interval
        prefix-cache-retention-interval prefix-match-unit quantization-config replayssm-buffer-len
        video-pruning-method watermark""",
    ("many", "refused"): """
        cpu-offload-params kv-cache-dtype-skip-layers lora-modules lora-target-modules offload-params""",
}  # fmt: skip
OTHERS = table(_NAMES)
# Values with which a refused flag leaves all as it is.
NEUTRAL = {
    **dict.fromkeys(("--data-parallel-size-local", "--nnodes"), "1"),
    **dict.fromkeys(("--decode-context-parallel-size", "--prefill-context-parallel-size"), "1"),
    **dict.fromkeys(("--max-num-partial-prefills", "--max-long-partial-prefills"), "1"),
    "--cpu-offload-gb": "0",
    "--kv-offloading-backend": "native",
    "--prefill-schedule-interval": "1",
    "--watermark": "0",
    "--performance-mode": "balanced",
    "--runner": "generate",
    "--task": "generate",
}
