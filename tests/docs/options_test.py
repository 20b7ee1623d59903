"""Compares DistributedOptimizerOptions with their Python binding: options_test.py"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import cases  # noqa: E402
# hvd.DistributedOptimizer does not offer them.
ONLY_IN_CPP = {"join_divisor", "accumulation", "local_sgd", "compression_scope",
               "compression_policy", "shard_scope", "unit_policy", "reshard_after_forward",
               "offload", "fused"}


class OptionsTest(unittest.TestCase):
    def test_each_option_is_bound_or_named_as_only_in_cpp(self):
        header = (ROOT / "include/kolo/torch/distributed_optimizer_options.hpp").read_text()
        fields = header.partition("struct DistributedOptimizerOptions {")[2]
        declared = set(re.findall(r"^  [\w:<>]+\*? (\w+)(?: = |\{)", fields, re.M))
        self.assertIn("bucket_bytes", declared)
        binding = (ROOT / "python/src/optimizer.cpp").read_text()
        bound = {name for name in declared if re.search(rf"\boptions\.{name}\b|&Options::{name}\b",
                                                        binding)}
        self.assertEqual(declared - bound, ONLY_IN_CPP)


cases.main()
