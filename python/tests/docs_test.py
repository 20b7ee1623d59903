"""The programs of the documentation and the examples run under mpirun: python docs_test.py
[mpirun...]"""

import pathlib
import re

import ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]


class DocsTest(ranks.Ranks):
    def test_programs_of_the_pages_run(self):
        for page in ("python.md", "python-horovod.md"):
            programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(),
                                  re.S | re.M)
            self.assertTrue(programs, page)
            for program in programs:
                self.run_ranks(2, program)

    def test_examples_learn(self):
        for command in (["train_ddp.py"], ["train_horovod.py"],
                        ["train_horovod.py", "--shard", "full", "--fp16"]):
            output = self.run_ranks(2, f"""
import runpy, sys
sys.path.insert(0, {str(ROOT / "python/examples")!r})
sys.argv = {command + ["--steps", "30", "--batch", "4"]!r}
runpy.run_path({str(ROOT / "python/examples" / command[0])!r}, run_name="__main__")
""")
            (loss,) = re.findall(r"step 30: (\S+) nats a byte", output)
            self.assertLess(float(loss), 3.7, output)  # it begins with log 256 = 5.5


if __name__ == "__main__":
    ranks.main()
