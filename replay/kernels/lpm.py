"""SGLang's order by longest prefix match: the waiting queue, sorted by how much of each prompt is cached."""

from __future__ import annotations

from replay.kernels.jit import inner
from replay.kernels.radix import Radix, match
from replay.kernels.state import HEAD, NEVER, TAIL, WAITING, Config, Int64, Outcome, Requests
from replay.kernels.texts import name_of

LPM_LONGEST_QUEUE = 128
"""With more requests waiting SGLang keeps the order of arrival."""
SAME_START_TOKENS = 32
"""Of waiting requests with no more than this cached whose next tokens, as many, are alike, the first goes alone: the
others wait behind all the rest for what it will leave in the cache."""


@inner
def sort_by_prefix(
    config: Config, requests: Requests, radix: Radix, outcome: Outcome, reg: Int64, replica: int, scratch: Int64
) -> None:
    """Longest cached prefix first; of equals the one that was in front. ``scratch``: shape (3, LPM_LONGEST_QUEUE)."""
    if reg[WAITING] > LPM_LONGEST_QUEUE or reg[WAITING] < 2:
        return
    queue, length, starts = scratch
    count, known, r = 0, 0, reg[HEAD]
    while r != NEVER:
        tokens = requests.prompt_tokens[r] + outcome.generated[r]
        hit = radix.end[match(config, requests, radix, reg, replica, r, tokens)]
        if hit <= SAME_START_TOKENS <= tokens:
            start = name_of(requests, config, r, SAME_START_TOKENS - 1)
            for i in range(known):
                if starts[i] == start:
                    hit = -1
                    break
            if hit >= 0:
                starts[known] = start
                known += 1
        hit = min(hit, tokens - 1)
        at = count
        while at > 0 and length[at - 1] < hit:
            queue[at], length[at] = queue[at - 1], length[at - 1]
            at -= 1
        queue[at], length[at] = r, hit
        count += 1
        r = outcome.link[r]
    reg[HEAD], reg[TAIL] = queue[0], queue[count - 1]
    for i in range(count):
        outcome.link[queue[i]] = queue[i + 1] if i + 1 < count else NEVER
