"""The arrays that a replay owns. The caller allocates them once; kernels only read and write them.

Everything is a flat array. A running request sits in a *slot*; slots of replica ``k`` are ``k * S .. k * S + S - 1``,
so one index finds a request's state whatever its replica. Scalars of a replica are columns of ``regs``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.kernels.by_reference import by_reference

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]
Float64 = npt.NDArray[np.float64]

NEVER = -1
REFUSED, HELD, REFUSED_TOKENS, GAVE_UP = -2, -3, -4, -5
"""``Outcome.replica`` of a request that no replica has: turned away on arrival because of the requests or of the prompt
tokens before it, waiting at the gateway while every replica is down, or given up by its client."""
NONE = np.zeros(0, np.int64)
FAR = 2**63 - 1
"""A time after every event."""

WORD = 62
"""Replicas in one word of a bit set."""

GAP_BITS = 8
"""ITL bins an octave: 2 ** GAP_BITS, so a bin is at most 0.39 % wide."""
GAP_BINS = (63 - GAP_BITS) << GAP_BITS

# Columns of ``regs``: scalars of one replica.
(
    NEXT_EVENT,  # end of the executing batch, or FAR when idle
    PREVIOUS_END,
    FREE_BLOCKS,
    RUNNING,
    WAITING,
    HEAD,  # of the waiting queue (fcfs) or the root of its heap (priority)
    TAIL,
    FREE_SLOTS,
    FLIGHT,  # batches scheduled and not yet processed
    FLIGHT_FIRST,  # ring position of the oldest
    OUTSTANDING,  # requests routed here and not finished
    OUTSTANDING_TOKENS,  # their prompt and output tokens
    STEPS,
    SCHEDULED_TOKENS,
    PREEMPTIONS,
    HIT_TOKENS,
    HOST_HIT_TOKENS,  # those of them that came from host memory
    QUERIED_TOKENS,
    MAX_USED_BLOCKS,
    FREE_LIST_READY,
    SWAPPED,  # V0: requests whose KV is in host memory, a queue from SWAP_HEAD to SWAP_TAIL
    SWAP_HEAD,
    SWAP_TAIL,
    SWAPPED_BLOCKS,
    SWAP_SPACE_SHORT,  # 1: host memory did not hold a request that had to leave; the run stops there
    SCORED_FIRST,  # requests SCORED_FIRST <= r < SCORED_END count in the ITL histogram
    SCORED_END,
    DOWN,  # 1: lost, or not started yet
    PREFILLING_TOKENS,  # prompt tokens of the requests without a first token; kept where max_num_queued_tokens is set
    GONE,  # requests of the running list whose clients gave up
    CHANGED,  # 1: requests left the running list other than by finishing, for schedulers with a memory of their own
    HEAD_REQUEST,  # whose cached prefix ``Blocks.found`` holds, or NEVER (see ``replay.kernels.head_memo``)
    HEAD_HITS,  # blocks of it
    HEAD_FREE_HITS,  # those of them that lie in the free list
    LOOKUPS,  # names sought in the prefix cache, for waiting requests; in SGLang's tree for all
    REGS,
) = range(36)

# Columns of ``meters``: time-weighted sums of one replica, in ps times the unit.
BUSY, USED_BLOCKS, RUNNING_REQUESTS, METERS = range(4)

# Columns of ``sums``: the batch being built.
(
    REQUESTS,
    TOKENS,
    ONES,  # chunks of one token: decodes, and prefill ends that cost like one
    CONTEXT,  # context tokens that they read
    CHUNKS_PS,  # attention of longer chunks
    EMITTING,
    DRAFTS,  # tokens that only a draft model proposes so far
    SUMS,
) = range(8)

# Columns of ``cluster``: scalars of the whole replay.
(
    NEXT_ARRIVAL,
    ROUTER_NEXT,
    NEXT_SNAPSHOT,
    FINISHED,
    GAP_MAX_PS,
    READY,  # followers in the heap: their time is known and has not come
    LEAVING,  # requests in the heap of those whose clients will leave unless they end before
    NEXT_CHANGE,  # of a replica
    HELD_HEAD,  # requests that wait at the gateway, a queue
    HELD_TAIL,
    LOST_GAPS,  # scored gaps of answers that a lost replica broke off
    LOST_GAPS_PS,  # their sum
    SENT_AGAIN,  # requests sent anew because their replica was lost
    CLUSTER,
) = range(14)


@by_reference
class Config(NamedTuple):
    """Engine settings, all int64. Names follow the engine's where it has one."""

    replicas: int
    router: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    batches_in_flight: int  # 1: synchronous, 2: asynchronous scheduling
    long_prefill_token_threshold: int
    threshold_binds_lone_request: int  # up to 0.30: also when only one request exists
    enable_chunked_prefill: int
    unchunked_looks_further: int  # up to 0.11: a prompt over the budget is passed over, then: it stops admission
    reserve_full_isl: int
    watermark_blocks: int
    max_model_len: int
    priority_policy: int  # FCFS, PRIORITY, SHORTEST or SHORTEST_REMAINING
    prefix_caching: int
    table_width: int  # block-table entries of a slot, with prefix caching
    prefix_block_tokens: int  # prompt tokens that one of a request's prefix ids stands for
    reserve_whole_life: int = 0  # Orca: admission takes the KV of prompt and declared output, so nobody is preempted
    router_snapshot_ps: int = 0  # how often the router sees the replicas' state; 0: as it is at every arrival
    speculative_tokens: int = 0  # drafts that a decode checks beside its own token; 0: no speculation
    lookahead_tokens: int = 0  # slots that a running request needs beyond the tokens of its step
    expected_acceptance: int = 0  # 1: drafts are accepted as the expectation adds up, 0: by draws
    speculation_seed: int = 0
    draft_step_ps: int = 0  # one pass of the draft model
    draft_step_share: int = 0  # and its part of the model's own decode step, in millionths
    max_num_queued_reqs: int = NEVER  # unfinished requests of a replica; more are refused on arrival. NEVER: no limit
    max_num_queued_tokens: int = NEVER  # prompt tokens of a replica's requests without a first token, in the same way
    clients_leave: int = 0  # 1: clients give up, or leave, see ``Requests.patience_ps``
    replicas_may_be_down: int = 0  # 1: there are ``Changes``
    frees_in_order: int = 0  # up to 0.22: freed blocks without a hash, too, go to the back of the free list
    victims_stay: int = 0  # 0.11, priority: whom a step preempts after it was scheduled stays in the batch
    runs_past_end: int = 0  # 0.11, asynchronous: a request whose last token is in flight is scheduled again
    # Layers in several groups that share the pool (see ``replay.kernels.groups``); read unless there is one full group.
    full_groups: int = 1
    full_block_size: int = 1
    window_groups: int = 0
    window_block_size: int = 1
    window_tokens: int = 1  # W of a sliding window, with the token itself; or the chunk of chunked attention
    window_chunked: int = 0
    window_cap_blocks: int = 0  # blocks of one window group that the admission test counts at most
    window_ring: int = 0  # more than a window group of one request ever keeps, with prefix caching
    state_blocks: int = 0  # blocks of fixed state that a request holds
    host_blocks: int = 0  # of the prefix cache's second tier, see ``replay.kernels.offload``
    host_block_ps: int = 0  # copying one back
    host_latency_ps: int = 0  # once for all that a step copies back


(
    ROUND_ROBIN,
    LEAST_OUTSTANDING,
    LEAST_OUTSTANDING_TOKENS,
    LEAST_KV_USAGE,
    POWER_OF_TWO,
    VLLM_DP,
    VLLM_DP_OLD,  # up to 0.11
    PREFIX_AWARE,
    DEALT,  # by a router that reads no state, before the run: ``Routing.pair`` holds each request's replica twice
) = range(9)

# Orders of the waiting queue. All but FCFS keep it as a heap on a rank; only PRIORITY also chooses victims by rank.
FCFS, PRIORITY, SHORTEST, SHORTEST_REMAINING = range(4)

ONE = 1 << 30
"""Probability 1 of accepting a draft."""

RANKS_A_TOKEN = 10**6
"""Ranks of the orders by length count in millionths of a token, so that ageing needs no fractions."""


@by_reference
class Texts(NamedTuple):
    """Prompts that extend earlier ones (see ``replay.kernels.texts``); all shape (0,) where none does."""

    of_request: Int64 = np.zeros(0, np.int64)  # the text of each request
    shared_tokens: Int64 = np.zeros(0, np.int64)  # by text, as are the next: its leading tokens that an earlier one has
    up: Int64 = np.zeros(0, np.int64)  # the nearest earlier text of its chain that shares less; itself at the root
    jump: Int64 = np.zeros(0, np.int64)  # one farther along ``up``


NO_TEXTS = Texts()


@by_reference
class Requests(NamedTuple):
    """Input, one entry a request, in arrival order."""

    arrival_ps: Int64
    prompt_tokens: Int64
    output_tokens: Int64
    priority: Int64  # lower runs first; read under every order but FCFS; shape (0,) otherwise
    prefix_start: Int64  # shape (n + 1,): where a request's block ids start in ``prefix_ids``; (0,) without caching
    prefix_ids: Int64  # chained ids (>= 0) of the prompt's leading blocks; what lies beyond them is the request's own
    max_tokens: Int64 = np.zeros(0, np.int64)  # output a reservation counts with, >= output_tokens; (0,) without
    after: Int64 = np.zeros(0, np.int64)  # closed loop: the earlier request that must end first, or NEVER; (0,) without
    delay_ps: Int64 = np.zeros(0, np.int64)  # from that end to the arrival; (0,) without
    texts: Texts = NO_TEXTS
    patience_ps: Int64 = np.zeros(0, np.int64)  # from the arrival until its client leaves, FAR: never; (0,) without


@by_reference
class Outcome(NamedTuple):
    """Output, one entry a request: times in ps, NEVER where it did not happen."""

    admitted_ps: Int64
    first_ps: Int64
    last_ps: Int64
    replica: Int32
    generated: Int32
    preemptions: Int32
    hit_tokens: Int32
    link: Int32  # waiting queue: next request (fcfs) or left child of the heap
    right: Int32  # right child of the heap; shape (0,) under fcfs
    rank: Int64  # by which the heap orders, fixed when a request is queued; shape (0,) under fcfs
    absent: Int32  # a block of it that was not cached; shape (0,) but where prompts are passed over
    stale: Int32  # computed tokens a preempted request is still taken to have; shape (0,) unless victims stay


@by_reference
class Slots(NamedTuple):
    """State of running requests, by slot; ``order`` and ``free`` hold slot numbers per replica."""

    request: Int32
    computed: Int64
    todo: Int64  # tokens missing from the KV cache: 1 for a decoding request, its sampled token in flight included
    unscheduled: Int64  # output tokens that no batch was scheduled for yet
    left: Int64  # output tokens still to come; left - unscheduled are in flight
    granted: Int64  # ``left`` at admission
    chunk: Int64  # tokens in the batch being built (priority policy only)
    held: Int64  # KV blocks
    room: Int64  # tokens those blocks hold: held * block_size
    cached: Int64  # leading blocks that carry a hash (prefix caching)
    covered: Int64  # tokens that the blocks reach to (several groups)
    first_live: Int64  # first block that window groups keep
    last_ps: Int64
    running: Int32  # 0 after preemption while a token is still in flight
    order: UInt32  # running list in admission order
    free: UInt32  # stack of free slots


@by_reference
class Speculation(NamedTuple):
    """Speculative decoding; shape (0,) arrays without it."""

    acceptance: Int64  # by place of a draft: probability in ``ONE`` that it is accepted once those before it were
    drafts: Int64  # by slot: drafts proposed for the next step, or that are in the batch
    owed: Int64  # by slot: accepted drafts that the expectation has not given yet, in ``ONE``


@by_reference
class Flight(NamedTuple):
    """Batches in flight: a ring of ``batches_in_flight`` a replica, each with room for all slots."""

    slot: UInt32  # those that give a token at the batch's end
    emitting: Int64  # how many
    size: Int64  # requests in the batch
    duration_ps: Int64
    scheduled_ps: Int64


@by_reference
class HostTier(NamedTuple):
    """Blocks in host memory, ``host_blocks + 1`` entries a replica: the last is the sentinel of the list, which starts
    with the least recently used. Shape (0,) arrays without the tier."""

    reg: Int64  # shape (replicas, HOST_REGS)
    key: Int64
    next: Int32
    previous: Int32
    bucket_key: Int64
    bucket_entry: Int32
    found_at: Int32  # the place in a request's blocks at which an entry was last found


# Columns of ``HostTier.reg``.
(
    HOST_BLOCKS,  # entries in use
    LOADED_BLOCKS,  # that the batch being built copies back
    HOST_REQUEST,  # whose blocks from HOST_FIRST to before HOST_END are known to be here
    HOST_FIRST,
    HOST_END,
    HOST_REGS,
) = range(6)


@by_reference
class GroupMemo(NamedTuple):
    """What is cached of a queue head's prompt, for models with several groups (see ``replay.kernels.group_memo``). The
    last two have length 0 but for sliding windows."""

    reg: Int64  # shape (replicas, GROUP_REGS)
    sought_key: Int64  # hash table of names that a search for a sliding window's blocks has missed
    sought_in: Int32  # the search (``SEARCH``) that missed it; of another one: an empty bucket


# Columns of ``GroupMemo.reg``.
(
    FULL_FOUND,  # leading blocks that all full groups have
    FULL_COUNTED,  # those of them that the whole hit takes
    FREE_FULL,  # how many of these, over all full groups, lie in the free list
    RUN_FIRST,  # the window groups' blocks from RUN_FIRST to before RUN_END are found
    RUN_END,
    RUN_COUNTED,  # the whole hit takes them up to here
    FREE_RUN,  # how many of these, over all window groups, lie in the free list
    LIMIT,  # tokens at which the last search ended at most
    SEARCH,  # counts the searches that started from the end
    STALE,  # 1: start from the end again
    GROUP_REGS,
) = range(11)


@by_reference
class Blocks(NamedTuple):
    """Block identities, for prefix caching only (shape (0,) arrays otherwise). ``table`` has a row a slot, the others
    ``num_blocks + 1`` entries a replica: the last is the sentinel of the free list."""

    table: Int32
    next: Int32
    previous: Int32
    hash: Int64
    references: Int32
    twin_next: Int32  # blocks of equal hash, oldest first
    twin_previous: Int32
    bucket_key: Int64
    bucket_block: Int32
    found: Int32  # blocks of the last lookup, a row a replica
    found_at: Int32  # the place in its replica's row where a block was last put
    memo: GroupMemo
    host: HostTier


@by_reference
class StepTimes(NamedTuple):
    """The step-time record (see ``replay.steptime.record``) as the kernels read it."""

    rest_ps: Int64
    decode_table_ps: Int64
    prefill_table_ps: Int64
    law: Int64  # scalars of the record, see the LAW_ columns


LAW_DECODE_REQUEST, LAW_DECODE_TOKEN, LAW_PREFILL_PAIR, LAW_HOST, LAW_HOST_REQUEST, LAW_PREFILL_STEP, LAWS = range(7)


@by_reference
class Routing(NamedTuple):
    """What a router knows. All but ``seen`` have length 0 where the router has no use for them."""

    seen: Int64  # the replicas' registers as the router sees them: the live ones, or the copy of the last snapshot
    pair: Int32  # power of two: the replicas drawn for each request, shape (n, 2)
    holders: Int64  # prefix aware, by block id: bits of the replicas that were sent the block, shape (ids, words)
    matched: Int64  # scratch: bits of replicas, shape (words,)


@by_reference
class Arrivals(NamedTuple):
    """Requests that have arrived or follow others. ``leave_ps`` and ``leaving`` have length 0 where no client leaves,
    the others where no request follows another."""

    sent_ps: Int64  # when each request arrived, or will; NEVER while that is open
    heap: Int64  # followers by (time, index), the next on top
    first: Int64  # the first follower of each request, or NEVER
    next: Int64  # the next follower of the same request
    leave_ps: Int64  # when the client of each request that has arrived leaves unless it has ended
    leaving: Int64  # heap of requests by (that, index), the next on top


@by_reference
class Changes(NamedTuple):
    """Replicas lost and back, in time order; at one instant those that come back first. Shape (k,) each."""

    time_ps: Int64
    replica: Int64
    is_up: Int64


@by_reference
class Meters(NamedTuple):
    """Accumulators of a replay."""

    regs: Int64
    meters: Float64
    cluster: Int64
    sums: Int64
    gaps: Int64  # ITL histogram of the scored requests, tokens by log-linear bin of ps


@by_reference
class State(NamedTuple):
    """All of a replay's arrays."""

    slots: Slots
    flight: Flight
    blocks: Blocks
    meters: Meters
    outcome: Outcome
    routing: Routing
    speculation: Speculation
    arrivals: Arrivals
    changes: Changes


def new_state(config: Config, n: int) -> State:
    """Fresh state for ``n`` requests on ``config.replicas`` idle, empty replicas."""
    slots = config.replicas * config.max_num_seqs
    ring = config.replicas * config.batches_in_flight
    i64, i32 = np.int64, np.int32
    caching = bool(config.prefix_caching)
    regs = new_registers(config)
    row = config.table_width * config.full_groups + config.window_ring * config.window_groups
    blocks = config.replicas * (config.num_blocks + 1) if caching else 0
    buckets = config.replicas * bucket_count(config.num_blocks) if caching else 0
    return State(
        slots=Slots(
            request=np.full(slots, NEVER, i32),
            computed=np.zeros(slots, i64),
            todo=np.zeros(slots, i64),
            unscheduled=np.zeros(slots, i64),
            left=np.zeros(slots, i64),
            granted=np.zeros(slots, i64),
            chunk=np.zeros(slots, i64),
            held=np.zeros(slots, i64),
            room=np.zeros(slots, i64),
            cached=np.zeros(slots, i64),
            covered=np.zeros(slots, i64),
            first_live=np.zeros(slots, i64),
            last_ps=np.zeros(slots, i64),
            running=np.zeros(slots, i32),
            order=np.arange(slots, dtype=np.uint32),
            free=np.arange(slots, dtype=np.uint32)
            .reshape(config.replicas, config.max_num_seqs)[:, ::-1]
            .copy()
            .reshape(-1),
        ),
        flight=Flight(
            slot=np.zeros(ring * config.max_num_seqs, np.uint32),
            emitting=np.zeros(ring, i64),
            size=np.zeros(ring, i64),
            duration_ps=np.zeros(ring, i64),
            scheduled_ps=np.zeros(ring, i64),
        ),
        blocks=Blocks(
            table=np.zeros(slots * row if caching else 0, i32),
            next=np.zeros(blocks, i32),
            previous=np.zeros(blocks, i32),
            hash=np.full(blocks, NEVER, i64),
            references=np.zeros(blocks, i32),
            twin_next=np.full(blocks, NEVER, i32),
            twin_previous=np.full(blocks, NEVER, i32),
            bucket_key=np.zeros(buckets, i64),
            bucket_block=np.full(buckets, NEVER, i32),
            found=np.zeros(config.replicas * row if caching else 0, i32),
            found_at=np.full(blocks, NEVER, i32),
            memo=new_group_memo(config),
            host=new_host_tier(config),
        ),
        meters=new_meters(config, regs),
        outcome=new_outcome(config, n),
        routing=new_routing(config, regs),
        speculation=Speculation(
            acceptance=np.zeros(config.speculative_tokens, i64),
            drafts=np.zeros(slots if config.speculative_tokens else 0, i64),
            owed=np.zeros(slots if config.speculative_tokens else 0, i64),
        ),
        arrivals=Arrivals(*(np.zeros(0, np.int64) for _ in range(6))),
        changes=Changes(*(np.zeros(0, np.int64) for _ in range(3))),
    )


def new_group_memo(config: Config) -> GroupMemo:
    """Nothing found."""
    slides = config.prefix_caching and config.window_groups > 0 and not config.window_chunked
    buckets = config.replicas * bucket_count(config.table_width) if slides else 0
    return GroupMemo(
        reg=np.zeros((config.replicas, GROUP_REGS), np.int64),
        sought_key=np.zeros(buckets, np.int64),
        sought_in=np.full(buckets, NEVER, np.int32),
    )


def new_host_tier(config: Config) -> HostTier:
    """Empty host memory."""
    is_on = config.prefix_caching and config.host_blocks > 0
    entries = config.replicas * (config.host_blocks + 1) if is_on else 0
    buckets = config.replicas * bucket_count(config.host_blocks) if is_on else 0
    return HostTier(
        reg=np.zeros((config.replicas, HOST_REGS), np.int64),
        key=np.zeros(entries, np.int64),
        next=np.arange(entries, dtype=np.int32),
        previous=np.arange(entries, dtype=np.int32),
        bucket_key=np.zeros(buckets, np.int64),
        bucket_entry=np.full(buckets, NEVER, np.int32),
        found_at=np.full(entries, NEVER, np.int32),
    )


def new_routing(config: Config, regs: Int64) -> Routing:
    """A router that has seen idle, empty replicas with registers ``regs``."""
    return Routing(
        seen=regs.copy() if config.router_snapshot_ps else regs,
        pair=np.zeros((0, 2), np.int32),
        holders=np.zeros((0, 1), np.int64),
        matched=np.zeros(-(-config.replicas // WORD), np.int64),
    )


def new_registers(config: Config) -> Int64:
    """Registers of idle, empty replicas, shape (replicas, REGS)."""
    regs = np.zeros((config.replicas, REGS), np.int64)
    regs[:, NEXT_EVENT] = FAR
    regs[:, FREE_BLOCKS] = config.num_blocks
    regs[:, HEAD] = regs[:, TAIL] = regs[:, HEAD_REQUEST] = NEVER
    regs[:, FREE_SLOTS] = config.max_num_seqs
    regs[:, SCORED_END] = FAR
    return regs


def new_meters(config: Config, regs: Int64) -> Meters:
    """Accumulators at zero around a loop's registers."""
    cluster = np.zeros(CLUSTER, np.int64)
    cluster[HELD_HEAD] = cluster[HELD_TAIL] = NEVER
    return Meters(
        regs=regs,
        meters=np.zeros((config.replicas, METERS), np.float64),
        cluster=cluster,
        sums=np.zeros(SUMS, np.int64),
        gaps=np.zeros(GAP_BINS, np.int64),
    )


def new_outcome(config: Config, n: int) -> Outcome:
    """Outcome of ``n`` requests to which nothing has happened."""
    i64, i32 = np.int64, np.int32
    passes_over = config.prefix_caching and config.unchunked_looks_further and not config.enable_chunked_prefill
    return Outcome(
        admitted_ps=np.full(n, NEVER, i64),
        first_ps=np.full(n, NEVER, i64),
        last_ps=np.full(n, NEVER, i64),
        replica=np.full(n, NEVER, i32),
        generated=np.zeros(n, i32),
        preemptions=np.zeros(n, i32),
        hit_tokens=np.zeros(n, i32),
        link=np.full(n, NEVER, i32),
        right=np.full(n if config.priority_policy else 0, NEVER, i32),
        rank=np.zeros(n if config.priority_policy else 0, i64),
        absent=np.zeros(n if passes_over else 0, i32),
        stale=np.zeros(n if config.victims_stay else 0, i32),
    )


def bucket_count(num_blocks: int) -> int:
    """Buckets of a replica's hash table: a power of two, at most a quarter full."""
    return 1 << max(4, (4 * num_blocks - 1).bit_length())
