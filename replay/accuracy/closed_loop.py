"""A client that never has more than C requests under way, replayed without feeding anything back.

Such a client sends request k when k - C + 1 of the others have ended (or when its plan says, if later). An engine that
serves first come first served and runs at most C requests admits request k at the same instant, provided that nothing
else holds it back; whatever else holds it back (its own limit, KV blocks, the token budget) acts on the same queue in
the same order. So: every request arrives when planned, ``max_num_seqs`` is the smaller of C and its own value, and the
instant of sending is read off the ends. What is left out is the client's own time from an end to the next sending.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment

Int64Array = npt.NDArray[np.int64]


def with_seats(deployment: Deployment, in_flight: int) -> Deployment:
    """The deployment as a client with ``in_flight`` requests at most meets it. Memory and step times stay its own.

    Raises:
        ValueError: several replicas, among which the requests under way would have to be shared out.
    """
    if deployment.replicas != 1:
        raise ValueError("a limit on requests under way is replayed on one replica only")
    engine = deployment.engine
    return replace(deployment, engine=replace(engine, max_num_seqs=min(engine.max_num_seqs, in_flight)))


def sent_ps(planned_ps: Int64Array, last_token_ps: Int64Array, in_flight: int) -> Int64Array:
    """When each request was sent, shape (n,): as planned, but not before fewer than ``in_flight`` were under way.

    ``last_token_ps``: the end of each request. Requests are sent in the order given.
    """
    sent = planned_ps.copy()
    if len(sent) > in_flight:
        ends = np.sort(last_token_ps)
        sent[in_flight:] = np.maximum(sent[in_flight:], ends[: len(sent) - in_flight])
    return sent
