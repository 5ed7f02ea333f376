"""Static batching on one replica: a batch starts together, keeps its size, and ends with its longest request.

The specification is engine semantics 1.6. A batch takes requests in arrival order. It prefills, padded to its longest
prompt unless told otherwise, in row order in steps of at most ``max_num_batched_tokens`` tokens (the size of the
step-time record); then all its rows decode until the longest output is complete, finished rows too. It holds KV memory
for ``rows * (longest prompt + longest output)`` tokens from start to end. The first token comes out of the prefill, as
in every real engine, unless ``prefill_emits`` is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replay.kernels.by_reference import by_reference
from replay.kernels.emission import count_gaps
from replay.kernels.jit import inner, kernel
from replay.kernels.memory import blocks_for
from replay.kernels.scoring import is_scored
from replay.kernels.state import (
    BUSY,
    FAR,
    FINISHED,
    HEAD,
    MAX_USED_BLOCKS,
    NEVER,
    PREVIOUS_END,
    RUNNING_REQUESTS,
    SCHEDULED_TOKENS,
    SCORED_END,
    SCORED_FIRST,
    STEPS,
    USED_BLOCKS,
    Config,
    Int64,
    Requests,
    State,
    StepTimes,
)
from replay.kernels.steptime import attention_of_chunk, step_ps

if TYPE_CHECKING:
    from replay.deployment import Deployment


@by_reference
class StaticOptions(NamedTuple):
    """What static batching has beyond ``Config``, all int64."""

    pad_prefill: int  # 1: every row prefills and keeps the batch's longest prompt; 0: its own
    stream_finished: int  # 1: tokens go out as they are made; 0: the batch's results all go out at its end
    batch_timeout_ps: int  # a partial batch starts once its oldest request has waited so long; NEVER: only a full one,
    # or the trace's last, starts
    prefill_emits: int  # 1: the prefill yields the first token; 0: N tokens take N decode steps, as articles have it


def static_options(deployment: Deployment) -> StaticOptions:
    """The options of a deployment."""
    engine = deployment.engine
    timeout_ps = round(engine.batch_timeout_s * 1e12) if engine.batch_timeout_s >= 0 else NEVER
    return StaticOptions(int(engine.pad_prefill), int(engine.stream_finished), timeout_ps, 1)


@inner
def output_of(config: Config, requests: Requests, r: int) -> int:
    """Tokens that request ``r`` generates: its own, cut where the context reaches ``max_model_len``."""
    return max(1, min(requests.output_tokens[r], config.max_model_len - requests.prompt_tokens[r]))


@inner
def form_batch(
    config: Config, options: StaticOptions, requests: Requests, head: int, free_at_ps: int
) -> tuple[int, int, int, int]:
    """The batch that starts with request ``head``: (rows, start, longest prompt, longest output).

    It is full with ``max_num_seqs`` rows, or when the next request has come and its row would not fit in KV memory; a
    lone request always fits. It starts as soon as it is full or its timeout is over, and the replica is free; then it
    takes whoever has arrived.
    """
    n = len(requests.arrival_ps)
    kv_tokens = config.num_blocks * config.block_size
    ready_ps = FAR
    if options.batch_timeout_ps >= 0:
        ready_ps = requests.arrival_ps[head] + options.batch_timeout_ps
    rows, prompt, output = 0, 0, 0
    while True:
        if rows == config.max_num_seqs:
            ready_ps = min(ready_ps, requests.arrival_ps[head + rows - 1])
            break
        if head + rows == n:
            if options.batch_timeout_ps < 0:
                ready_ps = requests.arrival_ps[n - 1]
            break
        r = head + rows
        if requests.arrival_ps[r] > max(ready_ps, free_at_ps):
            break
        longer_prompt = max(prompt, requests.prompt_tokens[r])
        longer_output = max(output, output_of(config, requests, r))
        if rows > 0 and (rows + 1) * (longer_prompt + longer_output) > kv_tokens:
            ready_ps = min(ready_ps, requests.arrival_ps[r])
            break
        prompt, output = longer_prompt, longer_output
        rows += 1
    return rows, max(ready_ps, free_at_ps), prompt, output


@inner
def prefill_ps(
    config: Config,
    options: StaticOptions,
    requests: Requests,
    times: StepTimes,
    reg: Int64,
    head: int,
    rows: int,
    prompt: int,
) -> int:
    """Duration of a batch's prefill, step by step as the step-time record prices them."""
    total_ps = 0
    tokens, chunks, decodes, context_tokens, chunks_ps = 0, 0, 0, 0, 0
    for r in range(head, head + rows):
        length = prompt if options.pad_prefill else requests.prompt_tokens[r]
        computed = 0
        while computed < length:
            chunk = min(length - computed, config.max_num_batched_tokens - tokens)
            if chunk == 1:
                decodes += 1
                context_tokens += computed + 1
            else:
                chunks_ps += attention_of_chunk(times, chunk, computed)
            computed += chunk
            tokens += chunk
            chunks += 1
            if tokens == config.max_num_batched_tokens or (r == head + rows - 1 and computed == length):
                total_ps += step_ps(config, times, tokens, decodes, context_tokens, chunks_ps, chunks)
                reg[STEPS] += 1
                reg[SCHEDULED_TOKENS] += tokens
                tokens, chunks, decodes, context_tokens, chunks_ps = 0, 0, 0, 0, 0
    return total_ps


@inner
def decode_ps(config: Config, times: StepTimes, rows: int, context_tokens: int, steps: int) -> int:
    """Duration of ``steps`` decode steps of ``rows`` rows that hold ``context_tokens`` before the first.

    A record without a decode table makes them an arithmetic progression, unless host work is hidden in some of them.
    """
    if steps == 0:
        return 0
    first = step_ps(config, times, rows, rows, context_tokens + rows, 0, rows)
    last = step_ps(config, times, rows, rows, context_tokens + rows * steps, 0, rows)
    if times.decode_table_ps.shape[0] == 0 and (config.batches_in_flight == 1 or first == last):
        return steps * (first + last) // 2
    total_ps = first
    for step in range(2, steps + 1):
        total_ps += step_ps(config, times, rows, rows, context_tokens + rows * step, 0, rows)
    return total_ps


@inner
def sort_by_output(config: Config, requests: Requests, state: State, head: int, rows: int) -> None:
    """Puts the batch's requests into ``slots.order``, shortest output first (Shell's sort: it needs no memory)."""
    order = state.slots.order
    for i in range(rows):
        order[i] = head + i
    width = 1
    while width < rows // 3:
        width = 3 * width + 1
    while width > 0:
        for i in range(width, rows):
            moved = order[i]
            key = output_of(config, requests, moved)
            j = i
            while j >= width and output_of(config, requests, order[j - width]) > key:
                order[j] = order[j - width]
                j -= width
            order[j] = moved
        width //= 3


@inner
def stream_decode(
    config: Config,
    options: StaticOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    head: int,
    rows: int,
    context_tokens: int,
    output: int,
    prefill_end_ps: int,
) -> int:
    """Decodes a batch whose tokens go out as they are made: writes token times and gaps, returns the batch's end."""
    reg = state.meters.regs[0]
    outcome, order = state.outcome, state.slots.order
    sort_by_output(config, requests, state, head, rows)
    now = prefill_end_ps
    gap_ps, gap_tokens, done = 0, 0, 0
    scored = max(0, min(head + rows, reg[SCORED_END]) - max(head, reg[SCORED_FIRST]))
    if options.prefill_emits:
        for r in range(head, head + rows):
            outcome.first_ps[r] = now
    for token in range(1 + options.prefill_emits, output + 1):
        while output_of(config, requests, order[done]) < token:
            outcome.last_ps[order[done]] = now
            scored -= is_scored(reg, order[done])
            done += 1
        context_tokens += rows
        duration = step_ps(config, times, rows, rows, context_tokens, 0, rows)
        now += duration
        if token == 1:
            for r in range(head, head + rows):
                outcome.first_ps[r] = now
            continue
        if duration != gap_ps:
            count_gaps(state.meters, gap_ps, gap_tokens)
            gap_ps, gap_tokens = duration, 0
        gap_tokens += scored
    count_gaps(state.meters, gap_ps, gap_tokens)
    for i in range(done, rows):
        outcome.last_ps[order[i]] = now
    return now


@kernel
def advance_static(
    config: Config,
    options: StaticOptions,
    requests: Requests,
    times: StepTimes,
    state: State,
    max_steps: int,
) -> bool:
    """Runs whole batches of replica 0 until ``max_steps`` steps are done; False once every request is finished.

    Calling it again continues; how the batches are cut into calls changes nothing. ``max_num_seqs`` is at most
    ``max_num_batched_tokens``; the caller has put aside the requests that can never run. Without ``stream_finished``
    first and last token are both at the batch's end and no gap between tokens is recorded: nobody sees one.
    """
    outcome, meters, cluster = state.outcome, state.meters.meters[0], state.meters.cluster
    reg = state.meters.regs[0]
    n = len(requests.arrival_ps)
    if reg[HEAD] == NEVER:
        reg[HEAD] = 0
    last_step = reg[STEPS] + max_steps
    while reg[HEAD] < n and reg[STEPS] < last_step:
        head = reg[HEAD]
        rows, start, prompt, output = form_batch(config, options, requests, head, reg[PREVIOUS_END])
        context_tokens = rows * prompt
        if not options.pad_prefill:
            context_tokens = 0
            for r in range(head, head + rows):
                context_tokens += requests.prompt_tokens[r]
        end = start + prefill_ps(config, options, requests, times, reg, head, rows, prompt)
        steps = output - options.prefill_emits
        if options.stream_finished:
            end = stream_decode(config, options, requests, times, state, head, rows, context_tokens, output, end)
        else:
            end += decode_ps(config, times, rows, context_tokens, steps)
            for r in range(head, head + rows):
                outcome.first_ps[r] = end
                outcome.last_ps[r] = end
        for r in range(head, head + rows):
            outcome.admitted_ps[r] = start
            outcome.replica[r] = 0
            outcome.generated[r] = output_of(config, requests, r)
        used = min(config.num_blocks, blocks_for(rows * (prompt + output), config.block_size))
        meters[BUSY] += end - start
        meters[USED_BLOCKS] += float(used) * (end - start)
        meters[RUNNING_REQUESTS] += float(rows) * (end - start)
        reg[MAX_USED_BLOCKS] = max(reg[MAX_USED_BLOCKS], used)
        reg[STEPS] += steps
        reg[SCHEDULED_TOKENS] += rows * steps
        reg[PREVIOUS_END] = end
        reg[HEAD] = head + rows
        cluster[FINISHED] += rows
    return reg[HEAD] < n
