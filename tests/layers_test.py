"""Checks every #include of the library against the levels in layers.txt: python3 layers_test.py"""

import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(["<])([^">]+)[">]', re.M)
SOURCES = {".hpp", ".cpp", ".cu", ".cuh"}
# Headers of other projects that only one level may include.
FOREIGN = [
    (re.compile(r"(torch|ATen|c10|caffe2)/"), ("train", "extras", "python")),
    (re.compile(r"(mpi|nccl)\.h$"), ("comm", "python")),
]
# Of include/kolo/.
LEVEL_OF_FOLDER = {"torch": "train", "extras": "extras"}


class Layers:
    def __init__(self, table, root):
        self.root = root
        self.allowed = {}
        self.internals_allowed = {}
        self.level_of_header = {}
        for line in table.read_text().splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            levels, _, headers = line.partition(":")
            level, _, below = levels.partition("<")
            internals, _, public = below.partition("public")
            self.internals_allowed[level.strip()] = {level.strip(), *internals.split()}
            self.allowed[level.strip()] = {level.strip(), *internals.split(), *public.split()}
            self.level_of_header.update((header, level.strip()) for header in headers.split())

    def files(self):
        for folder in ("include/kolo", "src", "ops", "compression", "python/src"):
            yield from (p for p in sorted((self.root / folder).rglob("*")) if p.suffix in SOURCES)

    def level_of(self, path):
        """The level of a file of the library, given relative to the root; None if it has none."""
        top, *rest = path.parts
        if top == "include":
            return self.level_of_header_named("/".join(rest[1:]))
        return rest[0] if top == "src" else top

    def level_of_header_named(self, name):
        """The level of a public header, named relative to include/kolo; None if it has none."""
        first = name.partition("/")[0]
        return LEVEL_OF_FOLDER.get(first) or self.level_of_header.get(name)

    def target_level(self, delimiter, included):
        """The level of an included header of Kolo; None for other headers."""
        first, _, rest = included.partition("/")
        if first == "kolo":
            return self.level_of_header_named(rest) or "on no level: missing in layers.txt"
        return first if delimiter == '"' and first in self.allowed else None

    def group_of(self, name):
        """The group of an internal file, named by its level and folder; or the level itself."""
        level, *folders = pathlib.PurePosixPath(name).parent.parts
        return f"{level}/{folders[0]}" if folders else level

    def crosses_groups(self, path, included):
        """Whether a file includes a header of its level that its group may not include."""
        parts = path.parts[1:] if path.parts[0] == "src" else path.parts
        own, target = self.group_of("/".join(parts)), self.group_of(included)
        return "/" in own and target not in self.allowed.get(own, ())

    def violations(self):
        public = {p.name for p in (self.root / "include/kolo").glob("*.hpp")}
        for name in sorted(public ^ self.level_of_header.keys()):
            yield f"include/kolo/{name}: {'not' if name in public else 'only'} in layers.txt"
        for file in self.files():
            path = file.relative_to(self.root)
            level, top = self.level_of(path), path.parts[0]
            for delimiter, included in INCLUDE.findall(file.read_text()):
                target = self.target_level(delimiter, included)
                owners = next((levels for p, levels in FOREIGN if p.match(included)), ())
                if ".." in included.split("/"):
                    yield f"{path} includes {included}: name it from its level's folder on"
                elif target and target not in self.allowed.get(level, ()):
                    yield f"{path} ({level}) includes {included} ({target})"
                elif target and not included.startswith("kolo/") and (
                        not {target, included} & self.internals_allowed[level]):
                    yield f"{path} ({level}) includes {included}, which is internal to {target}"
                elif target == level and delimiter == '"' and top != "include" and (
                        not included.startswith("kolo/") and self.crosses_groups(path, included)):
                    yield f"{path} includes {included}, which its group may not"
                elif not target and owners and level not in owners:
                    yield f"{path} ({level}) includes {included}, which only {owners[0]} may"
                elif top == "include" and delimiter == '"' and not included.startswith("kolo/"):
                    yield f"{path} is public but includes {included}, which is not installed"


class LayersTest(unittest.TestCase):
    def test_no_file_includes_a_level_to_its_right(self):
        found = list(Layers(ROOT / "tests/layers.txt", ROOT).violations())
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_the_library_is_seen(self):
        files = [str(p.relative_to(ROOT)) for p in Layers(ROOT / "tests/layers.txt", ROOT).files()]
        for folder in ("include/kolo/", "src/base/", "src/comm/", "src/runtime/", "ops/"):
            self.assertTrue(any(f.startswith(folder) for f in files), folder)

    def violations_of(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            table = root / "layers.txt"
            table.write_text("base: error.hpp\ncomm < base:\nops < base comm: algorithm.hpp\n"
                             "compression < base:\ntrain < base comm ops:\n"
                             "extras < public base train:\n"
                             "python < train/named.hpp public base train:\n"
                             "ops/kernels:\nops/steps < ops/kernels:\n")
            files = {"include/kolo/error.hpp": "", "include/kolo/algorithm.hpp": "", **files}
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return list(Layers(table, root).violations())

    def test_planted_violations_are_found(self):
        for name, text, expected in (
            ("src/base/a.cpp", '#include "kolo/algorithm.hpp"', "a.cpp (base) includes"),
            ("src/base/a.cpp", "#include <kolo/algorithm.hpp>", "a.cpp (base) includes"),
            ("src/comm/a.cpp", '  #  include "ops/select.hpp"', "a.cpp (comm) includes"),
            ("compression/a.cpp", '#include "comm/world.hpp"', "a.cpp (compression) includes"),
            ("include/kolo/error.hpp", "#include <kolo/algorithm.hpp>", "error.hpp (base) inc"),
            ("include/kolo/error.hpp", '#include "base/a.hpp"', "is not installed"),
            ("include/kolo/new.hpp", "", "new.hpp: not in layers.txt"),
            ("src/comm/a.cpp", '#include "../base/a.hpp"', "name it from"),
            ("ops/a.cu", "#include <ATen/core/Tensor.h>", "which only train may"),
            ("ops/a.cpp", '#include "torch/torch.h"', "which only train may"),
            ("ops/a.cpp", '#include "train/hooks.hpp"', "(train)"),
            ("ops/a.cpp", '#include "kolo/torch/hook.hpp"', "(train)"),
            ("include/kolo/error.hpp", "#include <kolo/torch/hook.hpp>", "(train)"),
            ("ops/a.cpp", "#include <mpi.h>", "which only comm may"),
            ("src/extras/a.cpp", '#include "train/hooks.hpp"', "which is internal to train"),
            ("src/extras/a.cpp", '#include "base/a.hpp"', "which is internal to base"),
            ("python/src/a.cpp", '#include "train/hooks.hpp"', "which is internal to train"),
            ("src/extras/a.cpp", '#include "kolo/algorithm.hpp"', "(ops)"),
            ("src/train/a.cpp", '#include "kolo/extras/sampler.hpp"', "(extras)"),
            ("ops/steps/a.cpp", '#include "ops/select.hpp"', "its group may not"),
            ("ops/kernels/a.cpp", '#include "ops/steps/share.hpp"', "its group may not"),
            ("ops/other/a.cpp", '#include "ops/kernels/sum.hpp"', "its group may not"),
        ):
            with self.subTest(name=name, text=text):
                extra = {"src/comm/world.hpp": "", "src/base/a.hpp": "", "ops/select.hpp": "",
                         "ops/steps/share.hpp": "", "ops/kernels/sum.hpp": "",
                         "src/train/hooks.hpp": ""}
                found = self.violations_of({**extra, name: text})
                self.assertEqual(len(found), 1, found)
                self.assertIn(expected, found[0])

    def test_what_is_allowed_passes(self):
        self.assertEqual(self.violations_of({
            "src/base/a.cpp": '#include "base/b.hpp"\n#include <vector>\n#include "kolo/error.hpp"',
            "src/base/b.hpp": "",
            "src/comm/a.cpp": '#include <mpi.h>\n#include "base/b.hpp"',
            "src/train/a.cpp": '#include <ATen/core/Tensor.h>\n#include "ops/select.hpp"',
            "src/extras/a.cpp": '#include <ATen/core/Tensor.h>\n#include "extras/b.hpp"\n'
                                '#include "kolo/torch/hook.hpp"\n#include "kolo/error.hpp"',
            "src/extras/b.hpp": "",
            "src/train/named.hpp": "",
            "python/src/a.cpp": '#include <ATen/core/Tensor.h>\n#include "train/named.hpp"\n'
                                '#include "kolo/torch/hook.hpp"\n#include "own.hpp"',
            "include/kolo/torch/hook.hpp":
                '#include <ATen/core/Tensor.h>\n#include "kolo/error.hpp"',
            "include/kolo/algorithm.hpp": '#include "kolo/error.hpp"',
            "ops/a.cpp": '#include "ops/steps/share.hpp"',
            "ops/steps/share.hpp": '#include "ops/kernels/sum.hpp"\n#include "kolo/algorithm.hpp"',
            "ops/kernels/sum.hpp": "",
        }), [])


if __name__ == "__main__":
    unittest.main()
