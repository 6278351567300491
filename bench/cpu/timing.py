"""Interleaved timing: every contestant runs a burst in turn, round after round, so that all meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PAUSE_S = 0.005  # lets the waiting threads of the previous contestant go to sleep
LONG_CALL_S = 1.0  # from here on a call warms up in the first round only,
FAR_BEHIND = 10.0  # and has one round when it is so many times slower than the fastest contestant


@dataclass(frozen=True)
class Effort:
    """Each contestant gets `rounds` bursts: one untimed call, then at least one timed call and `burst_s` seconds.

    Exceptions keep long calls affordable: LONG_CALL_S, FAR_BEHIND.
    """

    rounds: int = 5
    burst_s: float = 0.1


@dataclass
class Contestant:
    """`calls` do the same work on different memory and take turns; `after` runs untimed behind each call."""

    name: str
    calls: Sequence[Callable[[], object]]
    bytes_read: float
    after: Callable[[], object] = lambda: None


def _burst(contestant: Contestant, seconds: float, warm: bool) -> list[float]:
    times: list[float] = []
    turn = 0
    while not times or sum(times) < seconds:
        call = contestant.calls[turn % len(contestant.calls)]
        begin = time.perf_counter()
        call()
        took = time.perf_counter() - begin
        contestant.after()
        if turn > 0 or warm:  # else the call warms up
            times.append(took)
        turn += 1
    return times


def measure(contestants: Sequence[Contestant], effort: Effort) -> dict[str, dict[str, float]]:
    """{name: {median_ms, min_ms, max_ms}} over all timed calls of all rounds."""
    times: dict[str, list[float]] = {c.name: [] for c in contestants}
    remaining = contestants
    for _ in range(effort.rounds):
        for contestant in remaining:
            own = times[contestant.name]
            time.sleep(PAUSE_S)
            own += _burst(contestant, effort.burst_s, warm=bool(own) and min(own) > LONG_CALL_S)
        limit = max(LONG_CALL_S, FAR_BEHIND * min(min(own) for own in times.values()))
        remaining = [c for c in contestants if min(times[c.name]) <= limit]
    return {
        name: {
            "median_ms": statistics.median(values) * 1e3,
            "min_ms": min(values) * 1e3,
            "max_ms": max(values) * 1e3,
        }
        for name, values in times.items()
    }
