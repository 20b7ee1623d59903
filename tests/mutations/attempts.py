"""Common parts of run.py and defects.py."""
import concurrent.futures
import queue
import time


def try_all(places, faults, name_of, attempt):
    """Tries as many faults at the same time as there are places, and prints what became of each.

    attempt(place, fault) returns what is wrong, if anything, and where the fault was found. Returns
    how many faults were not found."""
    free = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def try_one(fault):
        place = free.get()
        begin = time.monotonic()
        problem, where = attempt(place, fault)
        free.put(place)
        took = f"{time.monotonic() - begin:.0f} s"
        print(f"{name_of(fault):48} {took:>6}  {problem or where}", flush=True)
        return problem is not None

    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        return sum(pool.map(try_one, faults))
