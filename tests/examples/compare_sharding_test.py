"""Runs compare_sharding: python3 compare_sharding_test.py <program> <mpirun>... <flag for ranks>"""

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
MODELS = ["transformer", "convnet", "speech"]
SMALL = ["--blocks", "2", "--width", "128", "--batch", "2", "--rounds", "1", "--warmup", "1"]


def run(ranks, *arguments, **environment):
    launch = [*LAUNCH, str(ranks)] if ranks > 1 else []
    return subprocess.run([*launch, PROGRAM, *arguments], capture_output=True,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def compare(ranks, *arguments, **environment):
    """The table, the results, and the drawing."""
    with tempfile.TemporaryDirectory() as folder:
        results, drawing = pathlib.Path(folder, "a.json"), pathlib.Path(folder, "a.svg")
        result = run(ranks, "--json", results, "--svg", drawing, *arguments, **environment)
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        return (result.stdout, json.loads(results.read_text()),
                xml.etree.ElementTree.parse(drawing))


class CompareSharding(unittest.TestCase):
    def check_modes(self, model, shards):
        modes = model["modes"]
        self.assertEqual([mode["shard"] for mode in modes], shards)
        none = modes[0]
        for mode in modes:
            self.assertEqual(mode["peak_bytes"],
                             max(mode["construction_bytes"], mode["step_bytes"]))
            self.assertAlmostEqual(mode["memory_to_none"],
                                   mode["peak_bytes"] / none["peak_bytes"])
            self.assertGreater(mode["step_ms_median"], 0)
            self.assertAlmostEqual(mode["ratio_to_none"],
                                   mode["step_ms_median"] / none["step_ms_median"])
            self.assertAlmostEqual(mode["largest_to_none"],
                                   mode["largest_parameters"] / none["largest_parameters"])
            self.assertLessEqual(mode["largest_bytes"], model["budget_bytes"])
        # Gradients has three additional buckets, which matter in models as small as these.
        self.assertLess(modes[1]["step_bytes"], none["step_bytes"])
        self.assertLess(modes[-1]["step_bytes"], modes[1]["step_bytes"])
        self.assertGreater(modes[-1]["largest_blocks"], none["largest_blocks"])

    def test_all_modes_of_all_models_on_two_ranks(self):
        table, models, drawing = compare(2, *SMALL, "--budget", "8MB")
        self.assertEqual([model["model"] for model in models], MODELS)
        for model in models:
            self.assertEqual(model["budget_bytes"], 8_000_000)
            self.check_modes(model, ["none", "optimizer", "gradients", "full"])
            self.assertIn(f"{model['model']}, ", table)
        self.assertEqual(table.count("times as large"), len(models))
        bars = drawing.findall(".//{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(bars), 1 + 3 * 4 * len(models) + 4)  # background, panels, legend

    def test_full_gathers_where_ranks_share_no_memory(self):
        _, models, _ = compare(2, *SMALL, "--model", "convnet", "--budget", "1KB",
                               KOLO_SHARED_MEMORY="off")
        modes = models[0]["modes"]
        self.assertEqual([mode["shard"] for mode in modes],
                         ["none", "optimizer", "gradients", "full"])
        self.assertLess(modes[-1]["step_bytes"], modes[0]["step_bytes"])

    def test_a_budget_for_no_block_is_no_error(self):
        table, models, _ = compare(2, *SMALL, "--model", "speech", "--budget", "1KB")
        for mode in models[0]["modes"]:
            self.assertEqual((mode["largest_blocks"], mode["largest_parameters"]), (0, 0))
        self.assertIn("0.00 M", table)

    def test_wrong_input_is_refused(self):
        for ranks, flags, text in [
                (1, ["--model", "mlp"], "--model"), (1, ["--width", "100"], "multiple of 64"),
                (1, ["--budget", "large"], "--budget"), (1, ["--rounds", "0"], "--rounds"),
                (1, ["--modes"], "--modes"), (1, [], "one rank has nothing to shard"),
                (2, ["--svg", "/no/such/folder/a.svg"], "/no/such/folder")]:
            with self.subTest(flags):
                result = run(ranks, *flags)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(text, result.stdout + result.stderr)
        self.assertIn("--budget", run(2, "--help").stdout)


cases.main()
