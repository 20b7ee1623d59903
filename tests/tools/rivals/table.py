"""The tables of compare.py, from the results of its runs."""

import collections
import re
import statistics

HEAD = ("| | data move by | ms a step | ms without communication | speed of the same processes "
        "without communication that is left | speed of PyTorch alone that is left |\n"
        "|---|---|---|---|---|---|")

# One run of a case: its round, and either its measurements, named as in
# examples/common/efficiency.cpp, or the reason why it failed.
Run = collections.namedtuple("Run", "model case round measured failure", defaults=(None, None))


def failure_of(output, status):
    """The most informative line of a failed run's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"error: |(\w+\.)*\w*(Error|Exception)\b", line)]
    return telling[0] if telling else f"exit status {status}" + (f": {lines[-1]}" if lines else "")


def spread(values, form):
    """Median (least to greatest)."""
    if len(values) == 1:
        return form.format(values[0])
    return (f"{form.format(statistics.median(values))} "
            f"({form.format(min(values))} to {form.format(max(values))})")


def row(label, transport, runs, alone):
    """`alone`: round -> ms a step of PyTorch alone."""
    measured = [run for run in runs if run.measured]
    if not measured:
        why = runs[0].failure if runs else "not run"
        return f"| {label} | {transport} | did not run: {why.replace('|', '/')} | | | |"
    of_alone = [alone[run.round] / run.measured["step_ms_with"]
                for run in measured if run.round in alone]
    cells = [spread([run.measured["step_ms_with"] for run in measured], "{:.1f}"),
             spread([run.measured["step_ms_without"] for run in measured], "{:.1f}"),
             spread([run.measured["efficiency"] for run in measured], "{:.3f}"),
             spread(of_alone, "{:.3f}") if of_alone else "not known"]
    if len(measured) < len(runs):
        label += f" ({len(measured)} of {len(runs)} runs)"
    return f"| {label} | {transport} | {' | '.join(cells)} |"


def left(case, runs):
    """The median of the speed that is left, of one case; None if it did not run."""
    shares = [run.measured["efficiency"] for run in runs if run.case == case and run.measured]
    return statistics.median(shares) if shares else None


def best_of(cases, runs):
    """The case that has most left, and how much; None and None if none of them ran."""
    measured = [(left(case, runs), case) for case in cases]
    share, case = max((each for each in measured if each[0] is not None), default=(None, None))
    return case, share


def summary(rows, labels, runs_of_models):
    """Who has most left. `rows`: the label of a row, and the cases of which it shows the best;
    `runs_of_models`: model -> its runs."""
    def cell(label, cases, runs):
        case, share = best_of(cases, runs)
        if case is None:
            return "not run"
        way = labels[case][0].removeprefix(label).lstrip(", ") or "as it comes"
        return f"{share:.3f}" + (f", {way}" if len(cases) > 1 else "")

    def verdict(model, runs):
        every = [case for cases in rows.values() for case in cases]
        (ours, share), (theirs, other) = (
            best_of([case for case in every if ("kolo" in case) == is_kolo], runs)
            for is_kolo in (True, False))
        if ours is None or theirs is None:
            return f"- {model}: nothing to compare"
        word = "behind" if share < other else "ahead"
        return (f"- {model}: Kolo is {word}, at its best {share:.3f} ({labels[ours][0]}) against "
                f"{other:.3f} ({labels[theirs][0]})")

    lines = [f"| | data move by | {' | '.join(runs_of_models)} |",
             "|---|---|" + "---|" * len(runs_of_models)]
    for label, cases in rows.items():
        cells = [cell(label, cases, runs) for runs in runs_of_models.values()]
        lines.append(f"| {label} | {labels[cases[0]][1]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(verdict(*each) for each in runs_of_models.items())])


def table(labels, runs, alone_case):
    """The table of one model; `labels`: case -> its label and transport, in the order of rows."""
    alone = {run.round: run.measured["step_ms_with"]
             for run in runs if run.case == alone_case and run.measured}
    return "\n".join([HEAD] + [
        row(*texts, [run for run in runs if run.case == case], alone)
        for case, texts in labels.items()])
