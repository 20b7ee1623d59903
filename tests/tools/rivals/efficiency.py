"""examples/common/efficiency.cpp in Python: how much of the speed without communication is left
with it, by the same rounds of blocks. Of its three kinds of block this has two: "with" and
"without".
"""

import math
import statistics
import time

WARM_UP_STEPS = 3
BLOCK_SECONDS = 1.0


def measure(step_without, step_with, mean_over_ranks, rounds):
    """The values that to_json() of examples/common/efficiency.cpp writes, with the same names."""
    def time_block(step, steps):
        mean_over_ranks(0.0)  # all ranks start together
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return mean_over_ranks((time.perf_counter() - start) / steps)

    time_block(step_with, WARM_UP_STEPS)
    time_block(step_without, WARM_UP_STEPS)
    step_seconds = time_block(step_without, WARM_UP_STEPS)
    steps = max(2, math.ceil(BLOCK_SECONDS / step_seconds))

    without, with_library = [], []
    for number in range(rounds):
        turns = [(without, step_without), (with_library, step_with)]
        for seconds, step in turns if number % 2 == 0 else reversed(turns):
            seconds.append(time_block(step, steps))
    shares = [alone / shared for alone, shared in zip(without, with_library)]
    return {"efficiency": statistics.median(shares),
            "step_ms_without": 1e3 * statistics.median(without),
            "step_ms_with": 1e3 * statistics.median(with_library)}
