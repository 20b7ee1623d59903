"""Runs shard_benchmark: python3 shard_benchmark_test.py <program> <mpirun>... <flag for ranks>"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM, *LAUNCH = sys.argv[1:]


def run(ranks, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        result = subprocess.run([*LAUNCH, str(ranks), PROGRAM, "--json", path, *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        if "none to be had" in result.stdout:
            print(result.stdout)
            raise unittest.SkipTest("ranks cannot share memory here")
        if result.returncode != 0:
            raise AssertionError(result.stdout)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


class ShardBenchmark(unittest.TestCase):
    def check_memory(self, ranks, shard, **shares):
        """`shares` are bytes per parameter on every rank."""
        report = run(ranks, "--memory", "--shard", shard)
        self.assertGreater(report["parameters"], 20e6)
        self.assertEqual(len(report["ranks"]), ranks)
        for rank in report["ranks"]:
            for name, share in shares.items():
                self.assertAlmostEqual(rank[name] / report["parameters"], share, delta=0.01)
        self.assertAlmostEqual(report["live"], sum(shares.values()), delta=0.01)
        return report

    def test_a_rank_keeps_all_where_nothing_is_divided(self):
        report = self.check_memory(2, "none", parameters=4, gradients=4, state=8)
        self.assertEqual(report["slots"], 0)

    def test_a_rank_keeps_its_part_of_the_state(self):
        report = self.check_memory(4, "optimizer", parameters=4, gradients=4, state=2)
        self.assertEqual(report["slots"], 0)

    def test_a_rank_keeps_its_part_of_the_gradients(self):
        report = self.check_memory(4, "gradients", parameters=4, gradients=1, state=2)
        self.assertGreater(report["slots"], 0)

    def test_every_mode_of_every_model_is_timed_and_sends_the_same(self):
        models = run(2, "--image", "32", "--batch", "2", "--rounds", "2", "--warmup", "1")
        self.assertEqual([model["model"] for model in models], ["gpt-medium", "resnet50"])
        self.assertEqual(models[1]["parameters"], 25557032)
        for model in models:
            self.assertEqual([mode["shard"] for mode in model["modes"]],
                             ["none", "optimizer", "gradients"])
            for mode in model["modes"]:
                self.assertGreater(mode["step_ms_median"], 0)
                self.assertLessEqual(mode["ratio_low"], mode["ratio_to_none"])
                self.assertLessEqual(mode["ratio_to_none"], mode["ratio_high"])
                self.assertAlmostEqual(mode["bytes_sent_ratio"], 1, delta=0.01)
            self.assertEqual(model["modes"][0]["ratio_to_none"], 1)


unittest.main(argv=sys.argv[:1], verbosity=2)
