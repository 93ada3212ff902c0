"""The flags of SGLang 0.5.23 that have no key of ours, by what they change.

Taken from `sglang/srt/server_args.py` and `sglang/srt/arg_groups/fields` of its wheel. What only says more of something
that is refused, as `--speculative-num-steps` does, has no effect of its own.
"""

from harness.config.command_lines.tool import Effect, Values, table

SHORT = {
    "--model": "--model-path",
    "--context-bucket": "--cuda-graph-prefill-max-context",
    "--enable-hicache": "--enable-hierarchical-cache",
    "--hierarchical-sparse-attention-extra-config": "--hisparse-config",
    "--grpc-http-sidecar-port": "--smg-http-sidecar-port",
    "--nccl-init-addr": "--dist-init-addr",
    "--tensor-parallel-size": "--tp-size",
    "--decode-context-parallel-size": "--dcp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--data-parallel-size": "--dp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--attention-context-parallel-size": "--attn-cp-size",
    "--moe-data-parallel-size": "--moe-dp-size",
    "--expert-parallel-size": "--ep-size",
    "--ep": "--ep-size",
    "--speculative-draft-model": "--speculative-draft-model-path",
    # of earlier versions
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
}
_NAMES: dict[tuple[Values, Effect], str] = {
    ("none", "none"): """
        abort-on-priority-when-disabled allow-auto-truncate checkpoint-engine-wait-weights-before-ready
        constrained-json-disable-any-whitespace delete-ckpt-after-loading disable-fast-image-processor
        disable-flashinfer-autotune disable-outlines-disk-cache disable-priority-preemption
        disaggregation-decode-enable-offload-kvcache disaggregation-decode-enable-radix-cache
        disaggregation-enable-kv-checksum enable-adaptive-dispatch-to-encoder enable-broadcast-mm-inputs-process
        enable-cache-report enable-cudagraph-gc enable-custom-logit-processor
        enable-dp-attention-local-control-broadcast enable-draft-weights-cpu-backup enable-dynamic-chunking
        enable-http-worker-reuseport enable-layerwise-nvtx-marker enable-linker-mla-dedup enable-lora-overlap-loading
        enable-memory-saver enable-metrics enable-metrics-for-all-schedulers enable-mfu-metrics enable-mm-global-cache
        enable-multi-layer-eagle enable-multimodal enable-p2p-check enable-pd-role-switch
        enable-precise-embedding-interpolation enable-prefix-mm-cache enable-profile-cuda-graph
        enable-request-time-stats-logging enable-response-store enable-return-indexer-topk enable-return-routed-experts
        enable-ssl-refresh enable-strict-thinking enable-torch-compile-debug-mode enable-trace enable-weights-cpu-backup
        export-metrics-to-file grpc-mode language-model-only language-only log-requests lora-use-virtual-experts
        mlx-enable-sampling pre-warm-nccl remote-instance-weight-loader-start-seed-via-transfer-engine return-input-ids
        return-output-ids schedule-low-priority-values-first show-time-cost skip-server-warmup sleep-on-idle
        smg-grpc-mode speculative-adaptive speculative-dspark-align-verify-tokens-to-graph-tier
        speculative-use-block-verification speculative-use-rejection-sampling stream-response-default-include-usage
        trust-mm-content-hashes trust-remote-code trust-request-chat-template weight-loader-disable-mmap
        weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints""",
    ("switch", "none"): """
        dcp-replicate-q-proj dllm-fdfo experts-shared-outer-loras lora-strict-loading mm-enable-dp-encoder
        speculative-enable-w4a4-mxfp4-megamoe""",
    ("one", "none"): """
        admin-api-key api-key asr-max-buffer-seconds asr-max-concurrent-sessions base-gpu-id c128-page-size
        chat-template completion-template constrained-json-max-whitespace-cnt constrained-json-whitespace-pattern
        cp-strategy crash-dump-folder dcp-comm-backend debug-tensor-dump-input-file debug-tensor-dump-output-folder
        decode-log-interval decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints decoupled-spec-rank
        decrypted-config-file decrypted-draft-config-file deepep-config deepep-dispatcher-output-dtype deepep-mode
        deepep-v2-mode default-chat-template-kwargs default-priority-value device disaggregation-bootstrap-port
        disaggregation-decode-allocation-policy disaggregation-decode-extra-slots
        disaggregation-decode-host-receive-threshold disaggregation-decode-polling-interval
        disaggregation-decode-retraction-backup disaggregation-ib-device disaggregation-transfer-backend dist-init-addr
        dist-timeout dllm-algorithm-config download-dir dynamic-batch-tokenizer-batch-size
        dynamic-batch-tokenizer-batch-timeout elastic-ep-initial-size elastic-ep-join-rank-offset
        elastic-ep-scale-timeout encoder-bootstrap-port encoder-transfer-backend engine-info-bootstrap-port
        ep-dispatch-algorithm eplb-algorithm eplb-min-rebalancing-utilization-threshold eplb-rebalance-layers-per-chunk
        eplb-rebalance-num-iterations expert-balancedness-report-mode expert-distribution-recorder-buffer-size
        expert-distribution-recorder-mode export-metrics-to-file-dir extra-metric-labels fastapi-root-path
        file-storage-path flashinfer-a2a-dispatch-type flexkv-config-file forward-pass-metrics-ipc-name
        forward-pass-metrics-worker-id fuseep-mode gated-launch-port gc-warning-threshold-secs gpu-id-step
        grammar-backend grpc-port grpc-response-timeout-secs hf-chat-template-name hicache-host-memory-fraction
        hicache-host-memory-mode hicache-io-backend hicache-mem-layout hicache-ratio hicache-size
        hicache-storage-backend hicache-storage-backend-extra-config hicache-storage-prefetch-policy
        hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval hicache-write-policy
        hisparse-config host http2-initial-connection-window-size http2-max-concurrent-streams image-processor-backend
        kt-cpuinfer kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts kt-threadpool-count kv-events-config
        limit-mm-data-per-request lmcache-config-file load-format load-publish-endpoint load-snapshot-publish-interval
        log-level log-level-http log-requests-format log-requests-level lora-backend lora-drain-wait-threshold
        lora-eviction-policy max-ep-size max-loaded-loras max-lora-chunk-size max-lora-rank max-loras-per-batch
        media-url-max-file-size-mb mm-attention-backend mm-feature-transport mm-global-cache-backend mm-io-worker-num
        mm-preprocess-cache-size-mb mm-process-config mm-processor-worker-num model-config-parser
        model-loader-extra-config modelexpress-config modelopt-checkpoint-restore-path modelopt-checkpoint-save-path
        modelopt-export-path mooncake-ib-device msprobe-dump-config nccl-port node-rank num-continuous-decode-steps
        num-reserved-decode-tokens offload-mode offload-num-in-group offload-prefetch-step optimistic-prefill-attempts
        otlp-service-name otlp-traces-endpoint paged-experts-num-resident pdmux-config-path ple-offload-backend
        ple-offload-dir port pp-async-batch-depth pp-max-micro-batch-size preferred-sampling-params
        prefill-decode-interval-min-bs prefill-delayer-max-delay-ms prefill-delayer-max-delay-passes
        prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark
        priority-scheduling-preemption-threshold quantization-param-path radix-eviction-policy-config random-seed
        reasoning-parser remote-instance-weight-loader-backend remote-instance-weight-loader-seed-instance-ip
        remote-instance-weight-loader-seed-instance-service-port remote-instance-weight-loader-send-weights-group-ports
        revision sampling-defaults sampling-mask-max-tokens served-model-name sidecar sidecar-args sm-group-num
        smg-http-sidecar-port soft-watchdog-timeout spec-trace-dir speculative-accept-threshold-acc
        speculative-accept-threshold-single speculative-adaptive-config speculative-attention-mode
        speculative-dflash-block-size speculative-domino-candidate-pool-size speculative-draft-attention-backend
        speculative-draft-kv-cache-dtype speculative-draft-load-format speculative-draft-model-path
        speculative-draft-model-quantization speculative-draft-model-revision speculative-draft-sink-size
        speculative-draft-window-size speculative-dsa-topk-backend speculative-dspark-block-size
        speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path speculative-eagle-topk
        speculative-moe-a2a-backend speculative-moe-runner-backend speculative-ngram-capacity
        speculative-ngram-external-corpus-max-tokens speculative-ngram-external-corpus-path
        speculative-ngram-external-sam-budget speculative-ngram-match-type speculative-ngram-max-bfs-breadth
        speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth speculative-num-draft-tokens
        speculative-num-steps speculative-token-map ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password
        startup-weight-load-mode tbo-token-distribution-threshold tokenizer-metrics-custom-labels-header tokenizer-mode
        tokenizer-path tool-call-parser tool-server trace-modules unified-cache-external-linker-backend
        unified-cache-external-linker-config uno-lora-path warmups watchdog-timeout watermark-config weight-cache-mode
        weight-cache-socket weight-cache-timeout weight-loader-prefetch-num-threads weight-version""",
    ("optional", "none"): "model-checksum",
    ("many", "none"): """
        allowed-media-domains bucket-e2e-request-latency bucket-inter-token-latency bucket-time-to-first-token
        custom-weight-loader debug-tensor-dump-layers encoder-register-urls encoder-urls flashinfer-autotune-skip-ops
        gc-threshold generation-tokens-buckets log-requests-target lora-target-modules
        prefill-delayer-forward-passes-buckets prefill-delayer-wait-seconds-buckets prompt-tokens-buckets
        return-aux-hidden-state-layer-ids tokenizer-metrics-allowed-custom-labels
        uvicorn-access-log-exclude-prefixes""",
    ("none", "past"): """
        collect-tokens-histogram disable-jump-forward disable-mla enable-ep-moe enable-flashinfer-mla enable-flashmla
        enable-nan-detection""",
    ("none", "times"): """
        debug-cuda-graph disable-aiter-allreduce-fusion-in-decode disable-aiter-allreduce-fusion-in-prefill
        disable-attn-tp-gather disable-chunked-prefix-cache disable-custom-all-reduce
        disable-flashinfer-cutlass-moe-fp4-allgather disable-shared-experts-fusion disable-tokenizer-batch-decode
        enable-aiter-allreduce-fusion enable-amd-monokernel enable-attn-tp-input-scattered
        enable-deepseek-v4-fp4-indexer enable-dense-mlp-attn-tp enable-dp-lm-head enable-dynamic-batch-tokenizer
        enable-flashinfer-allreduce-fusion enable-forward-pass-metrics enable-fp32-lm-head
        enable-fused-moe-sum-all-reduce enable-http2 enable-layernorm-sp enable-lean-attention
        enable-mamba-cache-stochastic-rounding enable-megamoe-for-layernorm-sp enable-mscclpp enable-nccl-nvls
        enable-nvidia-megakernel enable-quant-communications enable-return-aux-hidden-states enable-return-hidden-states
        enable-scattered-sconv enable-shared-experts-attn-tp enable-single-batch-overlap enable-symm-mem
        enable-tokenizer-batch-encode enable-torch-compile enable-torch-symm-mem enable-w4a4-mxfp4-megamoe
        enable-watermark enforce-disable-flashinfer-allreduce-fusion enforce-shared-experts-fusion
        flashinfer-mla-disable-ragged incremental-streaming-output skip-tokenizer-init triton-attention-reduce-in-fp32
        use-ray""",
    ("switch", "times"): """
        enable-dsa-fused-indexer enable-fused-qk-norm-rope enable-tf32-matmul enable-tp-lm-head-all-to-all""",
    ("one", "times"): """
        batch-notify-size bf16-gemm-backend boundary-reduction cuda-graph-max-bs-prefill cuda-graph-max-seq-len-prefill
        cuda-graph-prefill-max-context detokenizer-worker-num dsa-decode-backend dsa-paged-mqa-logits-backend
        dsa-prefill-backend dsa-topk-backend dsa-triton-union dsv4-attn-backend dsv4-prefill-backend
        flashinfer-allreduce-fusion-backend flashinfer-mxfp4-moe-precision forward-hooks fp4-gemm-backend
        fp8-gemm-backend kv-canary kv-canary-real-data kv-canary-sweep-interval linear-attn-backend
        linear-attn-decode-backend linear-attn-prefill-backend linear-attn-verify-backend mamba-backend
        mamba-cache-philox-rounds model-impl moe-runner-backend monokernel-backend prefill-kv-cache-dequant-dtype
        return-hidden-states-mode sampling-backend stream-interval tokenizer-backend tokenizer-worker-num
        torch-compile-max-bs triton-attention-num-kv-splits triton-attention-split-tile-size""",
    ("many", "times"): "cuda-graph-bs-prefill numa-node",
    ("none", "refused"): """
        disable-hybrid-swa-memory enable-cp-decode-attn-tp enable-deterministic-inference enable-dp-attention
        enable-dsa-cache-layer-split enable-elastic-expert-backup enable-encoder-swa-bounded-replay enable-eplb
        enable-flexkv enable-hierarchical-cache enable-hisparse enable-int8-mamba-checkpoint enable-kv-cache-sharding
        enable-linear-replayssm enable-linear-replayssm-spec enable-lmcache enable-lora enable-mis
        enable-page-major-kv-layout enable-paged-experts enable-pdmux enable-prefill-cp enable-prefill-delayer
        enable-priority-scheduling enable-session-radix-cache enable-streaming-session enable-two-batch-overlap
        enable-unified-cache-external-linker enable-unified-memory enable-waterfill encoder-only is-embedding
        prefill-only-disable-kv-cache quantize-and-serve strip-thinking-cache""",
    ("switch", "refused"): "enable-decoder-swa-bounded-replay ple-offload-embedding",
    ("one", "refused"): """
        attn-cp-size attn-dp-size cpu-offload-gb dcp-size decoupled-spec-role disaggregation-mode dllm-algorithm
        dwdp-size elastic-ep-backend elastic-ep-join-mode ep-num-redundant-experts ep-size init-expert-location
        int8-mamba-ckpt-size kt-weight-path linear-replayssm-cache-len mamba-full-memory-ratio mamba-max-states-per-path
        mamba-radix-cache-strategy mamba-ssm-dtype mamba-track-interval max-mamba-cache-size max-queued-requests
        min-free-slots-delay modelopt-quant moe-a2a-backend moe-dense-tp-size moe-dp-size nnodes offload-group-size
        pp-size prefill-decode-interval prefill-max-requests qsa-indexer-dtype radix-cache-backend radix-eviction-policy
        retraction-policy rl-on-policy-target rl-quant-profile shared-experts-tp-size
        speculative-algorithm swa-full-tokens-ratio swa-prefix-tails""",
    ("many", "refused"): "lora-paths",
}  # fmt: skip
OTHERS = table(_NAMES)
# Values with which a refused flag leaves all as it is.
NEUTRAL = {
    **dict.fromkeys(("--nnodes", "--pp-size", "--ep-size", "--attn-dp-size"), "1"),
    **dict.fromkeys(("--dcp-size", "--attn-cp-size", "--moe-dp-size", "--dwdp-size"), "1"),
    **dict.fromkeys(("--cpu-offload-gb", "--prefill-decode-interval", "--ep-num-redundant-experts"), "0"),
    **dict.fromkeys(("--disaggregation-mode", "--decoupled-spec-role"), "null"),
    **dict.fromkeys(("--moe-a2a-backend", "--elastic-ep-backend"), "none"),
    "--offload-group-size": "-1",
    "--mamba-max-states-per-path": "-1",
    "--mamba-radix-cache-strategy": "auto",
    "--init-expert-location": "trivial",
    "--radix-eviction-policy": "lru",
    "--retraction-policy": "length",
    "--qsa-indexer-dtype": "auto",
}
