"""SGLang's order by longest prefix match: the waiting queue, sorted by how much of each prompt is cached."""

from __future__ import annotations

from replay.kernels.jit import inner
from replay.kernels.radix import Radix, match
from replay.kernels.state import HEAD, NEVER, TAIL, WAITING, Config, Int64, Outcome, Requests

LPM_LONGEST_QUEUE = 128
"""With more requests waiting SGLang keeps the order of arrival."""


@inner
def sort_by_prefix(
    config: Config, requests: Requests, radix: Radix, outcome: Outcome, reg: Int64, replica: int, scratch: Int64
) -> None:
    """Longest cached prefix first; of equals the one that was in front. ``scratch``: shape (2, LPM_LONGEST_QUEUE)."""
    if reg[WAITING] > LPM_LONGEST_QUEUE or reg[WAITING] < 2:
        return
    queue, length = scratch
    count, r = 0, reg[HEAD]
    while r != NEVER:
        tokens = requests.prompt_tokens[r] + outcome.generated[r]
        hit = radix.end[match(config, requests, radix, reg, replica, r, tokens)]
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
