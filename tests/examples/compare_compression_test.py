"""Runs compare_compression: python3 compare_compression_test.py <program> <mpirun>... <flag>"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

PROGRAM, *LAUNCH = sys.argv[1:]
TINY = ["--preset", "tiny", "--steps", "6"]
LOSSY = ["int8", "power_sgd", "one_bit", "top_k", "random_k"]
ALL = ["none", "fp16", "bf16"] + LOSSY + [name + "+ef" for name in LOSSY]


def run(launch, *arguments):
    return subprocess.run([*launch, PROGRAM, *TINY, *arguments], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def compare(ranks, *arguments):
    """The table, the results, and the drawing."""
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text")  # about 50 KB that a model can learn
        text.write_text("".join(f"{i} times {i % 7} is {i * (i % 7)}.\n" for i in range(2500)))
        results, drawing = pathlib.Path(folder, "a.json"), pathlib.Path(folder, "a.svg")
        result = run([*LAUNCH, str(ranks)], "--text", text, "--json", results, "--svg", drawing,
                     *arguments)
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        return (result.stdout, json.loads(results.read_text()),
                xml.etree.ElementTree.parse(drawing))


class CompareCompression(unittest.TestCase):
    def test_all_cases_on_two_ranks(self):
        table, results, drawing = compare(2, "--start-step", "1", "--fraction", "0.1")
        self.assertEqual((results["ranks"], results["steps"]), (2, 6))
        self.assertEqual([case["case"] for case in results["cases"]], ALL)
        self.assertEqual([line.split()[0] for line in table.splitlines()[3:]], ALL)
        none = results["cases"][0]
        self.assertEqual((none["loss_difference_percent"], none["ratio_to_none"]), (0, 1))
        for case in results["cases"]:
            with self.subTest(case["case"]):
                ratio = case["validation_loss"] / none["validation_loss"]
                self.assertAlmostEqual(case["loss_difference_percent"], 100 * (ratio - 1))
                self.assertGreater(case["step_ms_median"], 0)
                # The difference: flags, and shares rounded to whole blocks and cache lines.
                self.assertAlmostEqual(case["bytes_per_step"] / case["formula_bytes"], 1, delta=0.1)
        sent = {case["case"]: case["formula_bytes"] for case in results["cases"]}
        self.assertEqual(sent["none"], results["parameters"] * 4)
        self.assertEqual(sent["fp16"], results["parameters"] * 2)
        self.assertLess(4 * sent["power_sgd"], sent["none"])
        losses = {case["validation_loss"] for case in results["cases"]}
        self.assertEqual(len(losses), len(ALL))  # all cases compress
        bars = drawing.findall(".//{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(bars), 1 + 3 * len(ALL))  # the background, three panels

    def test_without_compression_cases_agree(self):
        """Before its first compressed step, and on one rank, a case equals "none"."""
        _, results, _ = compare(3, "--cases", "power_sgd+ef", "--start-step", "6")
        self.assertEqual([case["case"] for case in results["cases"]], ["none", "power_sgd+ef"])
        self.assertEqual(results["cases"][1]["loss_difference_percent"], 0)
        _, results, _ = compare(1, "--cases", "int8,power_sgd", "--start-step", "0")
        for case in results["cases"]:
            self.assertEqual((case["loss_difference_percent"], case["formula_bytes"]), (0, 0))

    def test_sgd_learns_otherwise(self):
        adamw, sgd = (compare(1, "--optimizer", name, "--cases", "fp16")[1]
                      for name in ("adamw", "sgd"))
        self.assertEqual((adamw["optimizer"], sgd["optimizer"]), ("adamw", "sgd"))
        self.assertNotEqual(*(results["cases"][0]["validation_loss"] for results in (adamw, sgd)))

    def test_wrong_input_is_refused(self):
        for flags, text in [(["--cases", "none,zip"], "zip"),
                            (["--text", "/no/such/file"], "/no/such/file"),
                            (["--text", __file__, "--svg", "/no/such/a.svg"], "/no/such/a.svg")]:
            with self.subTest(flags):
                result = run([], *flags)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(text, result.stdout + result.stderr)


cases.main()
