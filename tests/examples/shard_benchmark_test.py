"""Runs shard_benchmark: python3 shard_benchmark_test.py <program> <mpirun>... <flag for ranks>"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

PROGRAM, *LAUNCH = sys.argv[1:]
GPT_MEDIUM = 10774272  # parameters


def run(ranks, *arguments, **environment):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        result = subprocess.run([*LAUNCH, str(ranks), PROGRAM, "--json", path, *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
        if result.returncode != 0:
            raise AssertionError(result.stdout)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


class ShardBenchmark(unittest.TestCase):
    def check_memory(self, ranks, shard, environment=None, **shares):
        """`shares`: bytes per parameter on every rank."""
        layers = 8 if shard == "full" else 4  # in small models padding counts
        report = run(ranks, "--memory", "--layers", str(layers), "--shard", shard,
                     **(environment or {}))
        self.assertGreater(report["parameters"], 7e6)
        self.assertEqual(len(report["ranks"]), ranks)
        for rank in report["ranks"]:
            for name, share in shares.items():
                self.assertAlmostEqual(rank[name] / report["parameters"], share, delta=0.01)
            # The peak of a step is what the kernel counts: no less than what is kept.
            self.assertGreater(rank["peak_of_step"], 0.9 * rank["total"])
        self.assertAlmostEqual(report["live"], sum(shares.values()), delta=0.01)
        self.assertAlmostEqual(report["pss_ratio"], 1, delta=0.1)
        return report

    def test_a_rank_keeps_all_where_nothing_is_divided(self):
        report = self.check_memory(2, "none", parameters=4, gradients=4, state=8)
        self.assertEqual(report["buckets"], 0)

    def test_a_rank_keeps_its_part_of_the_state(self):
        report = self.check_memory(4, "optimizer", parameters=4, gradients=4, state=2)
        self.assertEqual(report["buckets"], 0)

    def test_a_rank_keeps_its_part_of_the_gradients(self):
        report = self.check_memory(4, "gradients", parameters=4, gradients=1, state=2)
        self.assertGreater(report["buckets"], 0)

    def test_a_rank_keeps_its_part_of_all(self):
        report = self.check_memory(4, "full", parameters=1, gradients=1, state=2)
        self.assertGreater(report["buckets"], 0)

    def test_memory_that_ranks_cannot_share_counts_too(self):
        report = self.check_memory(2, "gradients", {"KOLO_SHARED_MEMORY": "off"}, parameters=4,
                                   gradients=2, state=4)
        self.assertGreater(report["buckets"], 0)

    def test_gathered_units_count_among_buckets(self):
        report = self.check_memory(2, "full", {"KOLO_SHARED_MEMORY": "off"}, parameters=2,
                                   gradients=2, state=4)
        self.assertGreater(report["buckets"], 0.8)  # three slots of gradients have 0.62

    def test_watching_operators_is_timed_beside_the_same_steps_without(self):
        model, = run(2, "--watch", "--model", "gpt-medium", "--rounds", "1", "--warmup", "1")
        self.assertEqual(model["parameters"], GPT_MEDIUM)
        self.assertEqual([(mode["shard"], mode["is_watched"]) for mode in model["modes"]],
                         [("none", False), ("none", True)])
        none, watched = (mode["step_ms_median"] for mode in model["modes"])
        self.assertAlmostEqual(model["modes"][1]["ratio_to_none"], watched / none)
        self.assertEqual(model["modes"][1]["bytes_sent_per_step"],
                         model["modes"][0]["bytes_sent_per_step"])

    def test_every_mode_is_timed_and_sends_what_it_must(self):
        model, = run(2, "--model", "resnet50", "--image", "32", "--batch", "2", "--rounds", "1",
                     "--warmup", "1")
        self.assertEqual(model["parameters"], 25557032)
        self.assertEqual([mode["shard"] for mode in model["modes"]],
                         ["none", "optimizer", "gradients", "full"])
        none_ms = model["modes"][0]["step_ms_median"]
        for mode in model["modes"]:
            self.assertGreater(mode["step_ms_median"], 0)
            # With one round, the median and its interval are the only ratio.
            for field in ("ratio_to_none", "ratio_low", "ratio_high"):
                self.assertAlmostEqual(mode[field], mode["step_ms_median"] / none_ms)
            # With two ranks, each sends half of every gradient, and half of every sum or
            # parameter unless they share the parameters.
            self.assertAlmostEqual(mode["bytes_sent_per_step"] / model["parameters"],
                                   2 if mode["shard"] == "full" else 4, delta=0.04)
            self.assertAlmostEqual(mode["bytes_sent_ratio"], 1, delta=0.01)

    def test_messages_are_no_more_than_they_must_be(self):
        """In shared memory algorithms count what they say they move; messages are counted."""
        model, = run(3, "--model", "gpt-medium", "--rounds", "1", "--warmup", "1",
                     KOLO_SHARED_MEMORY="off")
        for mode in model["modes"]:
            with self.subTest(mode["shard"]):
                self.assertAlmostEqual(mode["bytes_sent_ratio"], 1, delta=0.01)

    def test_saving_is_timed_and_leaves_the_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            report = run(2, "--checkpoint", folder, "--shard", "full", "--rounds", "1")
            self.assertEqual(os.listdir(folder), ["kolo"])
            files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
            newest = max(path.parent for path in files)
            saved = sum(path.stat().st_size for path in files if path.parent == newest)
        self.assertEqual((report["ranks"], report["shard"]), (2, "full"))
        # Parameters and their two moments, in float32, and some KiB of metadata.
        self.assertAlmostEqual(report["mib"], 12 * GPT_MEDIUM / 2**20, delta=0.1)
        self.assertAlmostEqual(saved / 2**20, report["mib"], delta=0.5)
        self.assertGreater(report["write_s_median"], 0)
        self.assertAlmostEqual(report["ratio_median"],
                               report["save_s_median"] / report["write_s_median"])
        self.assertLessEqual(report["growth_mib"], 8)  # a rank saves 61.6 MiB


cases.main()
