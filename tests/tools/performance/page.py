"""Prints docs/performance.md: page.md beside this file, with tables of what was measured.

Usage: page.py FOLDER REPOSITORY [SECTION...]. performance.sh fills the folder: NAME.json, what a
command wrote, and NAME.command, the command. A section is named by the first word of its heading;
without names it is the whole page.
"""

import datetime
import json
import pathlib
import re
import subprocess
import sys


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def size_text(size_bytes):
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def time_text(microseconds):
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    if microseconds >= 1000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds:.3g} µs"


def ratio_text(row):
    return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


def share_text(report, name):
    return (f"{100 * report[name]:.1f} % "
            f"({100 * report[name + '_low']:.1f} to {100 * report[name + '_high']:.1f})")


class Results:
    """The measurements of performance.sh."""

    def __init__(self, folder):
        self.folder = folder

    def read(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())

    def command(self, *names):
        lines = [(self.folder / f"{name}.command").read_text().strip() for name in names]
        text = "\n".join(line.replace(str(self.folder), "FOLDER").removeprefix("env ")
                         for line in lines)
        return f"```sh\n{text}\n```"

    def rows(self, name):
        """In-place rows, else out-of-place ones, by size, then (bare or public, placement)."""
        by_size = {}
        for row in self.read(name)["rows"]:
            path = "public" if row["algorithm"] == "kolo" else "bare"
            if not row["algorithm"].startswith("MPI_"):
                by_size.setdefault(row["bytes"], {}).setdefault((path, row["placement"]), row)
        return by_size


COLUMNS = [("bare", "staged"), ("public", "staged"), ("bare", "window"), ("public", "window")]
COLUMN_NAMES = ["bare, staged", "public, staged", "bare, in the window", "public, in the window"]
LARGEST_WITH_VISIBLE_NEGOTIATION = 4 << 20  # beyond, the difference is noise


def allreduce(results, name):
    rows = []
    for size, row in sorted(results.rows(name).items()):
        rows.append([size_text(size)] +
                    [f"{time_text(row[column]['median_us'])}, {ratio_text(row[column])}"
                     for column in COLUMNS])
    return table(["size"] + COLUMN_NAMES, rows) + "\n\n" + results.command(name)


def public_path(results):
    """The difference of two columns of the table of all-reduces."""
    rows = []
    for size, row in sorted(results.rows("allreduce").items()):
        if size > LARGEST_WITH_VISIBLE_NEGOTIATION:
            break
        line = [size_text(size)]
        for place in ("staged", "window"):
            bare, public = (row[path, place]["median_us"] for path in ("bare", "public"))
            line.append(f"{public - bare:+.1f} µs ({100 * (public / bare - 1):+.0f} %)")
        rows.append(line)
    return table(["size", "staged", "in the window"], rows)


def gradients(results):
    names = {"tensors": "a named tensor each", "group": "one group",
             "buckets": "buckets in the window, gradients already in them",
             "copied_buckets": "buckets in the window, with copying gradients into them",
             "MPI_Allreduce each": "`MPI_Allreduce`, a call each",
             "MPI_Allreduce flat": "`MPI_Allreduce`, one flat call"}
    rows = []
    for row in results.read("gradients")["rows"]:
        way = names[row["algorithm"]]
        if row["compression"] != "none":
            way += f", sent as {row['compression']}"
        rows.append([way, time_text(row["median_us"]), ratio_text(row),
                     f"{row['ratio_to_flat']:.2f}"])
    head = ["", "time", "ratio to a call each", "ratio to one flat call"]
    return table(head, rows) + "\n\n" + results.command("gradients")


def other_collectives(results):
    names = ["reduce_scatter", "allgather", "broadcast", "alltoall"]
    rows = []
    for name in names:
        for size, row in sorted(results.rows(name).items()):
            rows.append([f"`{name}`", size_text(size)] +
                        [ratio_text(row[column]) if column in row else "–" for column in COLUMNS])
    return (table(["collective", "size"] + COLUMN_NAMES, rows) + "\n\n" +
            results.command(*names))


MODES = {"none": "`none`", "optimizer": "`optimizer`", "gradients": "`gradients`",
         "full": "`full`", "gathered": "`full`, gathered on use"}


def efficiency(results):
    runs = []
    rows = []
    for model, text in (("gpt", "GPT, 10.8 M parameters, AdamW"), ("resnet", "ResNet-50, SGD")):
        for fused in ("", "fused"):
            for mode, name in MODES.items():
                runs.append(f"{model}.{mode}.{fused}")
                report = results.read(runs[-1])
                if isinstance(report, list):
                    report = report[0]
                rows.append([text + (", fused" if fused else ""), name,
                             f"{report['step_ms_without']:.0f} ms",
                             f"{report['step_ms_with']:.0f} ms",
                             share_text(report, "efficiency"),
                             share_text(report, "efficiency_meeting")])
    head = ["", "shard", "step alone", "step with Kolo", "efficiency",
            "relative to steps after which ranks wait"]
    return table(head, rows) + "\n\n" + results.command(*runs)


def ratio_to_none(mode):
    return (f"{mode['ratio_to_none']:.3f} "
            f"({mode['ratio_low']:.3f} to {mode['ratio_high']:.3f})")


def modes(results, name):
    rows = []
    for model in results.read(name):
        for mode in model["modes"]:
            watched = ", watched" if mode.get("is_watched") else ""
            rows.append([f"{model['model']}, {model['rounds']} rounds",
                         f"`{mode['shard']}`{watched}", f"{mode['step_ms_median']:.0f} ms",
                         ratio_to_none(mode), f"{mode['bytes_sent_per_step'] / 1e6:.1f} MB"])
    head = ["", "shard", "step", "ratio to `none` in the same round", "sent by a rank"]
    return table(head, rows) + "\n\n" + results.command(name)


def models(results):
    rows = []
    gathered = {model["model"]: model["modes"][-1] for model in results.read("models_gathered")}
    for model in results.read("models"):
        name = f"{model['model']}, {model['parameters'] / 1e6:.1f} M parameters"
        shown = [(MODES[mode["shard"]], mode) for mode in model["modes"]]
        for shard, mode in [*shown, (MODES["gathered"], gathered[model["model"]])]:
            rows.append([name, shard,
                         f"{mode['peak_bytes'] / 1e6:.0f} MB, {mode['memory_to_none']:.2f}",
                         f"{mode['step_ms_median']:.0f} ms, {ratio_to_none(mode)}",
                         f"{mode['largest_parameters'] / 1e6:.1f} M parameters, "
                         f"{mode['largest_to_none']:.2f}"])
    head = ["", "shard", "memory, ratio to `none`", "step, ratio to `none`",
            "largest model, ratio to `none`"]
    return table(head, rows) + "\n\n" + results.command("models", "models_gathered")


def memory(results):
    runs = [f"memory.{mode}" for mode in MODES]
    rows = []
    for name, report in zip(MODES.values(), map(results.read, runs)):
        def most(key):
            return max(rank[key] for rank in report["ranks"]) / report["parameters"]
        together = report["live"] + report["buckets"]
        rows.append([name] +
                    [f"{most(key):.2f}" for key in ("parameters", "gradients", "state")] +
                    [f"{report['live']:.3f}", f"{report['formula']:.3g}",
                     f"{report['buckets']:.3f}",
                     f"{together:.3f} ({100 * together / 16:.1f} %)"] +
                    [f"{most(f'peak_of_{when}'):.1f}"
                     for when in ("construction", "first_step", "step")] +
                    [f"{report['pss_ratio']:.3f}", f"{report['bytes_sent_ratio']:.4f}"])
    head = ["shard", "parameters", "gradients", "state", "total", "formula", "buckets",
            "total with these (of 16)", "peak: construction", "first step", "third step",
            "kernel / reported", "sent, of what it must"]
    return table(head, rows) + "\n\n" + results.command(*runs)


def saving(results):
    runs = ["saving.none", "saving.gradients", "saving.full"]
    rows = []
    for report in map(results.read, runs):
        rows.append([f"`{report['shard']}`", f"{report['mib']:.0f} MiB",
                     f"{report['save_s_median']:.3f} s", f"{report['write_s_median']:.3f} s",
                     f"{report['ratio_median']:.2f}", f"{report['growth_mib']:.1f} MiB"])
    head = ["shard", "bytes", "save", "write and fsync", "median ratio", "memory grows by at most"]
    return table(head, rows) + "\n\n" + results.command(*runs)


def copying(results):
    check = (results.folder / "selfcheck.txt").read_text()
    return "```\n" + re.search(r"^copying.*\n.*", check, re.MULTILINE).group() + "\n```"


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit_of(repository):
    commit = output_of("git", "-C", repository, "rev-parse", "--short=12", "HEAD")
    measured = ["include", "src", "ops", "compression", "examples"]
    changes = output_of("git", "-C", repository, "status", "--porcelain", "--", *measured)
    return commit + (" with changes" if changes else "")


def machine(results, repository):
    """Taken from the output of "kolo-bench --selfcheck"."""
    check = (results.folder / "selfcheck.txt").read_text()
    cpu, system, cores = re.search(
        r"^processor +(.*); (\S+ \d+\.\d+).*\ncores +(\d+)", check, re.MULTILINE).groups()
    copies = re.search(r"^single copy +(.*)", check, re.MULTILINE).group(1)
    mpi = output_of("mpirun", "--version").splitlines()[0]
    compiler = output_of("c++", "-dumpfullversion")
    load = (results.folder / "load.txt").read_text().split()
    return (f"Commit {commit_of(repository)}, {datetime.date.today()}: {cpu}, {cores} cores, "
            f"{system}, {mpi} (single copy: {copies}), GCC {compiler}; load average at the start "
            f"{load[0]}.")


PARTS = {
    "allreduce": lambda results: allreduce(results, "allreduce"),
    "copying": copying,
    "public_path": public_path,
    "gradients": gradients,
    "other_collectives": other_collectives,
    "four_ranks": lambda results: allreduce(results, "four_ranks"),
    "efficiency": efficiency,
    "modes": lambda results: modes(results, "modes"),
    "gathered": lambda results: modes(results, "gathered"),
    "watch": lambda results: modes(results, "watch"),
    "memory": memory,
    "models": models,
    "saving": saving,
}


def main():
    folder, repository, *names = sys.argv[1:]
    results = Results(pathlib.Path(folder))
    parts = {**PARTS, "machine": lambda results: machine(results, repository)}
    page = (pathlib.Path(__file__).parent / "page.md").read_text()
    sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    if names:  # each with the machine, below its heading
        sections = [section.replace("\n", "\n@machine@\n\n", 1) for section in sections
                    if section.split()[1].rstrip(":") in names and section.startswith("## ")]
    print(re.sub(r"^@(\w+)@$", lambda match: parts[match.group(1)](results), "".join(sections),
                 flags=re.MULTILINE), end="")


if __name__ == "__main__":
    main()
