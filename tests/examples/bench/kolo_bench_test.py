"""Runs kolo-bench as users do:

    kolo_bench_test.py <kolo-bench> <mpirun>... <flag for ranks>
"""

import csv
import itertools
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).parents[2]))
import cases  # noqa: E402
from bench_case import Bench, LAUNCH, LONG, TINY  # noqa: E402

COLLECTIVES = {"allreduce": {"MPI_Allreduce"},
               "reduce_scatter": {"MPI_Reduce_scatter", "MPI_Reduce_scatter_block"},
               "allgather": {"MPI_Allgather"}, "broadcast": {"MPI_Bcast"},
               "alltoall": {"MPI_Alltoall"}}


class UnderMpirun(Bench):
    def launch(self, ranks):
        return [*LAUNCH, str(ranks)]

    def test_every_collective_in_every_way(self):
        for collective, calls_of_mpi in COLLECTIVES.items():
            with self.subTest(collective):
                report = self.measure(collective, *TINY, "--algorithm", "all,kolo", "--in-place",
                                      "--out-of-place", launch=self.launch(2))
                self.assertEqual(report["collective"], collective)
                self.assertEqual(report["ranks"], 2)
                self.assertTrue(report["mpi"]["library"], report["mpi"])
                self.assertIn(report["mpi"]["single_copy"],
                              {"cma", "knem", "xpmem", "emulated", "none", "unknown"})
                names = {row["algorithm"] for row in report["rows"]}
                self.assertLessEqual({"kolo", "window", "zero_copy"}, names)
                in_window = {row["algorithm"] for row in report["rows"]
                             if row["placement"] == "window"}
                self.assertEqual(in_window, {"kolo", "zero_copy"})
                self.assertEqual({name for name in names if name.startswith("MPI_")}, calls_of_mpi)
                self.assertEqual({row["bytes"] for row in report["rows"]}, {1024, 16384})

    def test_what_is_wrong_is_said_once(self):
        for arguments, text in (
                (["--rounds", "2"], "--rounds must be odd"),
                (["--baseline", "mpi"], "run kolo-bench without mpirun"),
                (["--algorithm", "hierarchical"], "cannot run here"),
                (["--json", "/no/such/folder/x"], "cannot write /no/such/folder/x")):
            with self.subTest(text):
                result = self.run_bench(*arguments, launch=self.launch(2))
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stderr.count(text), 1, result.stderr)


class Controlling(Bench):
    def test_baseline_of_two_and_three_ranks(self):
        for ranks in (2, 3):
            with self.subTest(ranks):
                report = self.measure("--np", str(ranks), "--baseline", "mpi", *TINY)
                self.assertEqual(report["ranks"], ranks)
                self.assertEqual(report["dtype"], "float32")
                self.assertEqual(report["baseline"], "mpi")
                self.assertGreater(report["machine"]["cores"], 0)
                placements = {row["placement"] for row in report["rows"]}
                self.assertEqual(placements, {"staged", "window", "private"})
                for size in {row["bytes"] for row in report["rows"]}:
                    plain = [row for row in report["rows"]
                             if row["bytes"] == size and row["is_baseline"]]
                    self.assertEqual({row["in_place"] for row in plain}, {True, False})
                    best = min(plain, key=lambda row: row["median_us"])
                    self.assertEqual((best["ratio_low"], best["ratio_high"]), (1, 1))
                self.assert_nothing_is_left()

    def test_movement_of_types_that_mpi_cannot_reduce(self):
        self.measure("allgather", "--dtype", "bfloat16", "--np", "2", "--baseline", "mpi", *TINY)

    def test_pairs_of_ranks_and_a_barrier(self):
        result = self.run_bench("--pairs", launch=[*LAUNCH, "3"])
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        rows = [line.split()[2:] for line in lines if re.match(r" +rank [0-2] +[-\d]", line)]
        self.assertEqual(len(rows), 6, result.stdout)
        for matrix in (rows[:3], rows[3:]):
            for row, column in itertools.product(range(3), repeat=2):
                self.assertEqual(matrix[row][column], matrix[column][row])
                self.assertEqual(matrix[row][column] == "-", row == column)
                if row != column:
                    self.assertGreater(float(matrix[row][column]), 0)
        least, mean, greatest = map(float, re.fullmatch(
            r"barrier of 3 ranks, us: least (\S+), mean (\S+), greatest (\S+) over ranks",
            lines[-1]).groups())
        self.assertTrue(0 < least <= mean <= greatest, lines[-1])
        alone = self.run_bench("--pairs", launch=[*LAUNCH, "1"])
        self.assertEqual(alone.returncode, 2)
        self.assertIn("there is one rank", alone.stderr)

    def test_groups_and_compression(self):
        report = self.measure("reduce_scatter", "--group", "3", "--compression", "none,fp16",
                              "--algorithm", "kolo", *TINY)
        self.assertEqual({row["compression"] for row in report["rows"]}, {"none", "fp16"})
        self.assertEqual(report["group"], 3)
        self.assertIsNone(report["baseline"])
        self.assertIsNone(report["rows"][0]["ratio"])

    def test_gradients(self):
        report = self.measure("gradients", "--model", "resnet50", "--baseline", "mpi",
                              "--compression", "bf16", "--rounds", "1", "--warmup", "0")
        self.assertEqual(report["model"], "resnet50")
        rows = {(row["algorithm"], row["placement"], row["compression"])
                for row in report["rows"]}
        self.assertEqual(rows, {
            ("tensors", "staged", "bf16"), ("group", "staged", "bf16"),
            ("buckets", "window", "bf16"), ("copied_buckets", "window", "bf16"),
            ("MPI_Allreduce each", "private", "none"), ("MPI_Allreduce flat", "private", "none")})
        for row in report["rows"]:
            self.assertEqual(row["bytes"], 4 * 25557032)
            self.assertIn("ratio_to_flat", row)

    def test_table_csv_and_plot_show_the_same_rows(self):
        result = self.run_bench("alltoall", *TINY, "--json", self.path("json"), "--csv",
                                self.path("csv"), "--plot", self.path("svg"))
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("json"), encoding="utf-8") as file:
            report = json.load(file)
        rows = report["rows"]
        with open(self.path("csv"), encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        self.assertEqual([line["algorithm"] for line in lines],
                         [row["algorithm"] for row in rows])
        self.assertEqual([float(line["median_us"]) for line in lines],
                         [row["median_us"] for row in rows])
        # With a baseline of MPI, the header has a line about MPI.
        head = 3 if report["mpi"] else 2
        self.assertEqual(len(result.stdout.splitlines()), len(rows) + head, result.stdout)
        svg = xml.etree.ElementTree.parse(self.path("svg")).getroot()
        dots = svg.findall("{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(dots), len(rows))

    def test_what_ranks_find_wrong_is_said_once(self):
        result = self.run_bench("--algorithm", "hierarchical", *TINY)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr.count("--algorithm hierarchical cannot run here"), 1)

    def test_cuda_without_a_gpu_is_told_once(self):
        result = self.run_bench("--device", "cuda", "--baseline", "nccl", *TINY,
                                CUDA_VISIBLE_DEVICES="")
        self.assertIn((result.returncode, result.stderr.count("sees no GPU"),
                       result.stderr.count("built without CUDA")), ((1, 1, 0), (2, 0, 1)),
                      result.stderr)
        self.assertEqual(result.stdout, "")
        self.assert_nothing_is_left()

    def test_nccl_has_processes_of_its_own(self):
        fake = {"KOLO_MPIRUN": str(pathlib.Path(__file__).with_name("fake_mpirun.py")),
                "FAKE_MPIRUN_LOG": self.path("log"), "NCCL_ALGO": "Tree"}
        result = self.run_bench("--device", "cuda", "--baseline", "nccl", "--np", "2", *TINY,
                                "--json", self.path("json"), **fake)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"x ring +interval +x auto +interval\n")
        with open(self.path("log"), encoding="utf-8") as log:
            started = [tuple(json.loads(line)) for line in log]
        self.assertEqual(started, [(None, "Tree"), ("ring", "Ring"), ("auto", None)])
        with open(self.path("json"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["baseline"], report["gpu"]["nccl_algo"]), ("nccl", "Tree"))
        self.assertEqual([(row["algorithm"], row["ratio"], row["ratio_to_auto"])
                          for row in report["rows"][:3]],
                         [("kolo", 1.5, 2), ("ncclAllReduce ring", 1, 2 / 1.5),
                          ("ncclAllReduce auto", 0.75, 1)])

    def test_cuda_beside_nccl(self):
        on_gpu = ["--np", "1", "--device", "cuda", "--baseline", "nccl", *TINY]
        first = self.run_bench("allreduce", *on_gpu)
        if "sees no GPU" in first.stderr or "built without CUDA" in first.stderr:
            self.skipTest(first.stderr.strip())
        for arguments in (["allreduce", "--out-of-place"], ["alltoall"], ["broadcast"],
                          ["allgather", "--dtype", "bfloat16"], ["reduce_scatter", "--group", "3"],
                          ["allreduce", "--compression", "none,fp16"]):
            arguments += on_gpu
            with self.subTest(" ".join(arguments)):
                report = self.measure(*arguments)
                self.assertEqual(report["device"], "cuda")
                self.assertEqual(report["baseline"], "nccl")
                for field in ("name", "driver", "cuda", "nccl", "nccl_algo"):
                    self.assertTrue(report["gpu"][field], field)
                for row in report["rows"]:
                    self.assertEqual(row["placement"], "device")
                for choice in ("ring", "auto"):  # each in separate processes
                    self.assertTrue(any(row["is_baseline"] and choice in row["algorithm"].split()
                                        for row in report["rows"]), choice)

    def test_a_file_that_cannot_be_written_is_found_first(self):
        result = self.run_bench(*LONG, "--plot", "/no/such/folder/x")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("cannot write /no/such/folder/x"), 1, result.stderr)
        self.assertEqual(result.stdout, "")

    def test_config_shows_every_setting_and_where_its_value_comes_from(self):
        result = self.run_bench("--config", KOLO_STALL_WARN="7ms")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("KOLO_STALL_WARN = 7ms  (from the environment)", result.stdout)
        self.assertIn("KOLO_TIMEOUT = 30min  (default)", result.stdout)
        result = self.run_bench("--config", KOLO_STALL_WARN="7")
        self.assertEqual(result.returncode, 2)
        self.assertIn("KOLO_STALL_WARN='7': expected a duration", result.stderr)

    def test_self_check_tells_what_limits_the_machine_and_what_is_chosen(self):
        result = self.run_bench("--selfcheck")
        self.assertEqual(result.returncode, 0, result.stderr)
        for text in ("cores", "copying", "/dev/shm", "windows", "single copy", "for 2 ranks"):
            self.assertIn(text, result.stdout)
        for collective in COLLECTIVES:
            self.assertIn(f"\n  {collective}\n    private memory: ", result.stdout)
        without = self.run_bench("--selfcheck", KOLO_SHARED_MEMORY="off")
        self.assertIn("KOLO_SHARED_MEMORY is off", without.stdout)
        self.assertIn("by messages", without.stdout)


cases.main()
