"""The programs of the documentation and the examples run under mpirun: python docs_test.py
[mpirun...]"""

import pathlib
import re

import ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the programs of a page print on two ranks.
OUTPUTS = {"python.md": ["", ""],
           "python-horovod.md": [r"loss 0\.\d{4}\n", r"10 steps\n"]}


class DocsTest(ranks.Ranks):
    def test_programs_of_the_pages(self):
        for page, outputs in OUTPUTS.items():
            programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(),
                                  re.S | re.M)
            self.assertEqual(len(programs), len(outputs), page)
            for program, output in zip(programs, outputs):
                self.assertRegex(self.run_ranks(2, program), rf"\A{output}\Z")

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
