"""Random workloads to try a scheduler with: shared prefixes, repeated prompts, starved pools, aborts, stops, forks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, get_args

from engine.core.kv.reserved.reservation import Contiguous, Fit, Reserve
from engine.core.planning.policy import BasePolicy
from engine.core.policies import POLICIES
from engine.core.running.preemption import VICTIM_RULES
from engine.core.scheduler_options import SchedulerOptions
from tests.engine.fuzz.fuzz_options import (
    OWN_POLICY,
    POLICY_OPTIONS,
    UNSHARED,
    needs_of,
    random_offload,
    random_options,
)
from tests.engine.fuzz.workload import Case, Workload


def come_in_waves(cases: list[Case], stems: list[list[int]], rng: random.Random) -> None:
    """Let several at a time ask for what an earlier wave computed and later ones drove from the device."""
    gap = rng.choice([5, 30])
    for i, case in enumerate(cases):
        stem = stems[i // 3 % len(stems)]
        case.tokens = stem + case.tokens[case.num_prompt_tokens - 1 :][: len(stem) + 1]
        case.num_prompt_tokens, case.arrival_step = (
            len(stem) + rng.randint(0, 1),
            i // 3 * gap + rng.choice([0, 0, 1, 3]),
        )
        if rng.random() < 0.2:  # while it waits for what comes back, if it does
            case.abort_step = case.arrival_step + rng.randint(1, 3)


def draw_policy(
    rng: random.Random, options: SchedulerOptions, cases: list[Case], policy: str | None
) -> SchedulerOptions:
    """A policy, or any that there is, with settings of its own, and several priorities, tenants and deadlines."""
    names = sorted(name for name in POLICIES if name != OWN_POLICY)
    names += [name for name in names if POLICIES[name].admit is not BasePolicy.admit] * 2  # more can go wrong there
    policy = policy or rng.choice(names)
    own = {name: rng.choice(values) for name, values in POLICY_OPTIONS.get(policy, {}).items() if rng.random() < 0.7}
    victim: Any = "spare_last" if POLICIES[policy].chooses_victims else rng.choice([options.victim, *VICTIM_RULES])
    num_tenants, has_deadlines = rng.choice([1, 2, 5]), rng.random() < 0.5
    burst = rng.randint(1, 40) if POLICIES[policy].chooses_victims and rng.random() < 0.7 else None
    for case in cases:
        case.priority, case.tenant = rng.choice([0, 0, 1, 3]), rng.randrange(num_tenants)
        case.deadline = case.arrival_step + rng.randint(0, 200) if has_deadlines and rng.random() < 0.7 else None
        if burst is not None:  # urgent ones come together, when others run
            case.arrival_step = rng.choice([0, burst])
            case.priority = 0 if case.arrival_step else rng.randint(1, 3)
        if policy == "static" and rng.random() < 0.2:  # it ends while others of its batch wait for what comes back
            case.tokens = case.tokens[: case.num_prompt_tokens + 1]
    return replace(options, policy=policy, options=own, victim=victim, **needs_of(policy))


def continue_others(cases: list[Case], rng: random.Random, longest: int) -> None:
    """Let prompts repeat what another request is generating when they arrive, and one token more."""
    for case, before in zip(cases[1:], cases, strict=False):
        cut = rng.randint(before.num_prompt_tokens, len(before.tokens))
        own = case.tokens[case.num_prompt_tokens - 1 :]
        if cut + len(own) <= longest:
            case.tokens, case.num_prompt_tokens = before.tokens[:cut] + own, cut + 1
            case.arrival_step = before.arrival_step + rng.randint(1, 10)


def for_supply(workload: Workload) -> Workload:
    """The workload without what keeps the head of the queue from entering as soon as another fills a block for it."""
    options = replace(workload.options, enable_prefix_caching=True, long_prefill_token_threshold=0)
    cases = [replace(case, contents="tokens", abort_step=None, num_sequences=1) for case in workload.cases]
    return replace(workload, cases=cases, options=options, contiguous=None, num_drafts=None, num_lanes=1)


def for_own_cache(workload: Workload) -> Workload:
    """The workload without what does not go with a rule of eviction that a policy has for itself."""
    cases = [replace(case, num_sequences=1) for case in workload.cases]
    return replace(
        workload,
        cases=cases,
        num_blocks=workload.num_blocks + 2,
        max_num_batched_tokens=max(workload.max_num_batched_tokens, workload.block_size),
        num_host_blocks=0,
        offload=None,
        contiguous=None,
        num_lanes=1,
        num_drafts=None,
    )


def random_workload(seed: int, policy: str | None = None) -> Workload:
    """A workload that shares prefixes, repeats prompts, starves for blocks, aborts and forks, under any policy or
    one."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 1, 2, 3, 4, 8, 16, 16, 64, 256])
    longest = rng.choice([4, 20, 60, 150])
    stems = [[rng.randrange(50) for _ in range(longest)] for _ in range(rng.randint(1, 3))]
    contents = rng.choice([["tokens"], ["hashes"], ["none"], ["tokens", "none"], ["hashes", "none"]])
    aligned = rng.random() < 0.4
    stops, forks = rng.random() < 0.3, rng.random() < 0.2
    cases: list[Case] = []
    spread = rng.choice([0, 30, 300])
    for _ in range(rng.randint(1, 30)):
        num_sequences = rng.randint(2, 3) if forks and rng.random() < 0.5 else 1
        num_prompt = rng.randint(1, longest)
        if aligned:
            num_prompt = max(block_size, num_prompt // block_size * block_size)
        stem = (rng.choice(stems) * (num_prompt // longest + 1))[: rng.randint(0, num_prompt)]
        if rng.random() < 0.5:
            stem = (rng.choice(stems) * (num_prompt // longest + 1))[:num_prompt]
        tokens = stem + [rng.randrange(50) for _ in range(num_prompt - len(stem))]
        num_output = rng.randint(1, longest)
        # Outputs that a later prompt continues, as the turns of a conversation do.
        tokens += (rng.choice(stems) * (num_output // longest + 1))[:num_output]
        if cases and rng.random() < 0.3:
            before = rng.choice(cases)
            tokens, num_prompt = before.tokens + tokens, len(before.tokens) + (num_prompt if rng.random() < 0.7 else 0)
            tokens = tokens if len(tokens) > num_prompt else [*tokens, 0]
        cases.append(
            Case(
                tokens[: 4 * longest + block_size],
                min(num_prompt, 4 * longest + block_size - 1),
                rng.randint(0, spread),
                rng.choice(contents),
                priority=rng.choice([0, 0, 1]) if seed % 5 == 0 else 0,
                abort_step=rng.randint(0, spread + 100) if rng.random() < 0.1 else None,
                stop_after=rng.randint(1, longest) if stops and num_sequences == 1 and rng.random() < 0.4 else None,
                num_sequences=num_sequences,
            )
        )
    options = random_options(rng)
    classes = random.Random(-1 - seed)  # a stream of its own
    makes_pauses = (policy or options.policy) == "admission_order" and rng.random() < 0.6
    if makes_pauses:  # one in the middle gives way, and those after it sit a step out, if the step ends with that
        own = {"ends_with_giving_way": classes.random() < 0.7}
        options = replace(options, policy="admission_order", options=own, victim="least_urgent", queue="fcfs")
        for case in cases:
            case.priority, case.arrival_step = rng.randint(0, 9), case.arrival_step // 10
            if forks and case.stop_after is None:
                case.num_sequences = rng.randint(1, 3)
    makes_supply = rng.random() < 0.15 and not makes_pauses
    if makes_supply:
        options = replace(options, watermark=0.0, async_scheduling=False, policy="mixed")
        continue_others(cases, rng, 4 * longest)
    if not makes_pauses and (policy or (not makes_supply and classes.random() < 0.5)):
        options = draw_policy(classes, options, cases, policy)
    uses_tiers = rng.random() < 0.25
    if uses_tiers and rng.random() < 0.5:
        come_in_waves(cases, stems, rng)
    most = max(-(-len(case.tokens) // block_size) for case in cases)
    max_num_seqs = rng.choice([8, 32] if makes_pauses else [1, 2, 8, 32])
    num_drafts = rng.choice([0, 1, 3]) if rng.random() < 0.15 else None
    spare_blocks = [1, 1, 2, most, 10 * most]
    if makes_pauses or makes_supply:
        spare_blocks = [1, most // 2, most] if makes_pauses else [0, 1, 2]
    if uses_tiers:
        spare_blocks = [1, most // 2, most, 2 * most]
    slots = max_num_seqs * (1 + (num_drafts or 0))
    preemption = rng.choice(["recompute", "recompute", "partial", "partial", "swap", "auto"])
    has_own_cache = bool(POLICIES[options.policy].needs)
    preemption = "recompute" if has_own_cache else preemption
    num_host_blocks = rng.choice([1, most, 10 * most]) if preemption in ("swap", "auto") else 0
    token_us = 1.0 if preemption == "auto" else None
    options = replace(options, preemption=preemption, recompute_token_us=token_us)  # type: ignore[arg-type]
    num_lanes = rng.choice([2, 3]) if rng.random() < 0.1 and max_num_seqs > 2 else 1
    if num_drafts and options.policy == "static":
        options = replace(options, options={**options.options, "padded": False})
    offload = random_offload(options, most, rng) if uses_tiers and options.enable_prefix_caching else None
    if offload is not None:
        num_host_blocks = rng.choice([1, 2, most, 3 * most, 10 * most])
    workload = Workload(
        cases,
        options=options,
        block_size=block_size,
        num_blocks=num_lanes * most + rng.choice(spare_blocks),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=slots + rng.choice([0, 1, 10, 100, 1000]),
        num_host_blocks=num_host_blocks,
        offload=offload,
        transfer_block_us=0.4 * block_size,
        num_lanes=num_lanes,
        num_drafts=num_drafts,
    )
    if has_own_cache:
        return for_own_cache(workload)
    workload = with_memory_scheme(workload, random.Random(f"memory {seed}"))
    workload = with_drafts_ahead(workload, random.Random(f"drafts {seed}"))
    return for_supply(workload) if makes_supply else workload


def with_drafts_ahead(workload: Workload, rng: random.Random) -> Workload:
    """Of those that plan ahead a share, with drafts, and now and then sequences as long as they can be."""
    options = workload.options
    if not options.async_scheduling or options.policy == "static" or workload.num_drafts or rng.random() < 0.6:
        return workload
    if options.policy == "admission_order" and not options.options:
        names = POLICY_OPTIONS["admission_order"]
        options = replace(options, options={name: rng.choice(values) for name, values in names.items()})
    num_drafts = rng.choice([1, 3, 5])
    # Who is padded gets no drafts at the limit that only the scheduler knows of.
    pads = options.options.get("pads_admissions", "never") != "never"
    lengths = [None] if pads else [None, *[len(case.tokens) + 1 for case in workload.cases]]
    return replace(
        workload,
        options=options,
        num_drafts=num_drafts,
        max_num_batched_tokens=workload.max_num_batched_tokens + num_drafts * workload.max_num_seqs,
        max_model_len=rng.choice(lengths) if workload.contiguous is None else workload.max_model_len,
    )


def with_memory_scheme(workload: Workload, rng: random.Random) -> Workload:
    """A share of the workloads, with another eviction rule or with contiguous reservations."""
    options = workload.options
    if rng.random() < 0.2:
        return replace(workload, options=replace(options, eviction=rng.choice(["fifo", "lfu"])))
    if rng.random() < 0.2 and not POLICIES[options.policy].chooses_victims:
        reserve, fit = rng.choice(get_args(Reserve)), rng.choice(get_args(Fit))
        asked = rng.choice([None, 1, 40]) if reserve == "requested" else None
        return replace(
            workload,
            cases=[replace(case, num_sequences=1) for case in workload.cases],
            options=replace(options, **UNSHARED),
            num_host_blocks=0,
            offload=None,
            max_model_len=rng.choice([None, *[len(case.tokens) + 1 for case in workload.cases]]),
            contiguous=Contiguous(reserve, fit, asked),
        )
    return workload
