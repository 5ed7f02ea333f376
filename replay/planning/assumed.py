"""What a replay had to assume of the answers' declared lengths, for engines that set KV memory aside by them."""

from __future__ import annotations

from replay.planning.document import EngineInfo, WorkloadSummary


def assumed_outputs(workload: WorkloadSummary, engine: EngineInfo | None) -> str | None:
    """``that 40 of 90 requests, which declare no max_tokens, ask for 2048 output tokens``; ``None`` where nothing was
    assumed: every request declares it, or the engine does not read it (docs/engines.md, "Declared outputs")."""
    if engine is None or not workload.undeclared_outputs or "max_tokens_default" not in engine.settings:
        return None
    default = engine.settings["max_tokens_default"]
    amount = f"{default} output tokens" if default else "all that the longest context leaves"
    which = f"{workload.undeclared_outputs} of {workload.requests} requests, which declare no max_tokens, ask"
    if workload.requests == 1:
        which = "the one request, which declares no max_tokens, asks"
    return f"that {which} for {amount}"


def assumed_limit(assumed: str | None) -> tuple[str, ...]:
    """The same among a report's limits, with the cure."""
    if assumed is None:
        return ()
    cure = "set max_tokens_default to what your clients send, or upload a trace with a max_tokens column"
    return (f"It is assumed {assumed}. The engine admits requests by it, so it decides how many run at once: {cure}.",)
