"""Runs the scripts that prepare programs for GPUs, in a copy of their folders, on machines with
and without a GPU, with a fake pip that downloads small wheels.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cases  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Record their arguments, and do nothing else.
NOTE = """#!/bin/sh
echo "${0##*/} $@" >>"$CALLS"
case "$1" in --version) echo "cmake version 3.25.0" ;; *) echo "-- Kolo: nothing" ;; esac
"""
SMI = """#!/bin/sh
case "$1" in
  -L) echo "GPU 0: H (UUID: GPU-1)"; echo "GPU 1: H (UUID: GPU-2)" ;;
  *) echo %s; echo %s ;;
esac
"""
# Records the request, and copies all matching wheels; otherwise runs the real Python.
PYTHON = """#!/bin/sh
if [ "$1 $2" != "-m pip" ]; then exec {python} "$@"; fi
asked="$*"
for file in "$@"; do
  case "$file" in /dev/fd/*) asked="$asked $(cat "$file")" ;; esac
done
echo "pip $asked" >>"$CALLS"
case "$asked" in
  *torch==*) cp {wheels}/torch-*.whl "$TMPDIR" ;;
  *cuda-toolkit*) cp {wheels}/nvidia*.whl "$TMPDIR" ;;
esac
"""
METADATA = """Name: torch
Requires-Dist: sympy>=1.13.3
Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"
Requires-Dist: cuda-bindings<14,>=13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == "Linux"
"""
WHEELS = {
    "torch-2.11.0-cp311.whl": {
        "torch-2.11.0.dist-info/METADATA": METADATA, "torch/include/a.h": "",
        "torch/lib/libtorch_cpu.so": "", "torch/lib/libtorch_cuda.so": "",
        "torch/lib/libtorch_python.so": "", "torch/nn/module.py": ""},
    "nvidia_nccl-2.28.9.whl": {"nvidia/nccl/include/nccl.h": "nccl's",
                               "nvidia/nccl/lib/libnccl.so.2": "nccl"},
    "nvidia_cuda.whl": {"nvidia/cu13/bin/nvcc": "", "nvidia/cu13/nvvm/bin/cicc": "",
                        "nvidia/cu13/include/cuda.h": "",
                        "nvidia/cu13/lib/libcudart.so.13": "cudart"},
}


class GpuScripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root = self.folder / "kolo"
        for source in (*ROOT.glob("cmake/*.sh"), ROOT / "cmake/wheels.txt",
                       ROOT / "examples/run.sh", ROOT / "examples/bench.sh"):
            copy = self.root / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
        self.cache = self.folder / "cache/kolo"
        self.calls = self.folder / "calls"
        for tool in ("cmake", "mpirun"):
            self.add_tool(tool, NOTE)
        self.environment = {**os.environ, "CALLS": str(self.calls),
                            "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}",
                            "XDG_CACHE_HOME": str(self.cache.parent)}
        for variable in ("Torch_DIR", "CMAKE_PREFIX_PATH", "NP"):
            self.environment.pop(variable, None)

    def add_tool(self, name, text, folder=None):
        path = (folder or self.folder / "tools") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def add_gpus(self, driver="580.82.07"):
        self.add_tool("nvidia-smi", SMI % (driver, driver))

    def add_no_gpu(self):
        self.add_tool("nvidia-smi", "#!/bin/sh\necho couldn\\'t communicate\nexit 9\n")

    def complete(self):
        """Creates everything that the set-up would otherwise install."""
        for name in ("libtorch-2.11.0-cuda", "libtorch-2.11.0"):
            (self.cache / name).mkdir(parents=True)
            (self.cache / name / "complete").touch()
        self.add_tool("python3", "#!/bin/sh\n", self.cache / "python/bin")

    def call(self, script, *arguments, status=0, **environment):
        result = subprocess.run([self.root / script, *arguments], text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                env={**self.environment, **environment})
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stdout + result.stderr

    def called(self):
        return self.calls.read_text() if self.calls.exists() else ""

    def test_without_a_driver_nothing_is_installed_or_built(self):
        self.add_no_gpu()
        for script in ("examples/run.sh", "examples/bench.sh"):
            for arguments in (["--device", "cuda"], ["--steps", "5", "--device=cuda"]):
                text = self.call(script, *arguments, status=2)
                self.assertIn("no NVIDIA GPU with its driver here: couldn't communicate", text)
                self.assertIn("580 or newer", text)
                self.assertIn("--device cuda cannot run on this machine", text)
        self.assertEqual(self.called(), "")
        self.assertFalse(self.cache.exists())

    def test_an_old_driver_is_named(self):
        self.add_gpus("550.54.15")
        text = self.call("examples/run.sh", "--device", "cuda", status=2)
        self.assertIn("the driver here is 550.54.15: CUDA 13.0 needs 580 or newer", text)
        self.assertEqual(self.called(), "")

    def test_train_gpt_runs_on_all_gpus(self):
        self.add_gpus()
        self.complete()
        self.call("examples/run.sh", "--device", "cuda", "--steps", "5")
        self.assertIn("cmake --preset cuda\n", self.called())
        self.assertRegex(self.called(), r"cmake --build --preset cuda .*--target=train_gpt")
        self.assertRegex(self.called(), r"mpirun -np 2 .*/build/cuda/examples/train_gpt "
                                        "--device cuda --steps 5")

    def test_the_number_of_ranks_can_be_given(self):
        self.add_gpus()
        self.complete()
        self.call("examples/run.sh", "--device", "cuda", NP="1")
        self.assertIn("mpirun -np 1 ", self.called())

    def test_without_device_the_build_is_as_ever(self):
        self.add_no_gpu()
        self.complete()
        self.call("examples/run.sh", "--steps", "5")
        self.assertIn("cmake --preset release\n", self.called())
        self.assertIn("/build/release/examples/train_gpt --steps 5", self.called())

    def test_kolo_bench_is_built_for_gpus_beside_nccl(self):
        self.add_gpus()
        self.complete()
        self.add_tool("kolo-bench", NOTE, self.root / "build/bench/examples")
        self.call("examples/bench.sh", "--device", "cuda")
        self.assertIn("cmake --preset bench -DKOLO_WITH_CUDA=ON\n", self.called())
        self.assertRegex(self.called(), "kolo-bench --device cuda --baseline nccl")

    def test_check_says_what_is_missing_for_gpus(self):
        self.add_no_gpu()
        text = self.call("cmake/setup.sh", "--core", "--cuda", "--check", status=1)
        self.assertIn("LibTorch for CUDA    missing (PyPI: torch 2.11.0", text)
        self.assertIn("GPU                  missing, to run programs: no NVIDIA GPU", text)
        self.complete()
        self.add_gpus()
        text = self.call("cmake/setup.sh", "--core", "--cuda", "--check")
        found = self.cache / "libtorch-2.11.0-cuda/torch"
        self.assertIn(f"LibTorch for CUDA    found in {found}", text)
        self.assertIn("GPU                  found", text)

    def test_a_named_libtorch_needs_its_cuda_part(self):
        torch = self.folder / "torch/lib"
        torch.mkdir(parents=True)
        (torch / "libtorch_cpu.so").touch()
        named = {"CMAKE_PREFIX_PATH": str(torch.parent)}
        text = self.call("cmake/setup.sh", "--core", "--cuda", status=1, **named)
        self.assertIn("has no CUDA part, lib/libtorch_cuda.so", text)
        (torch / "libtorch_cuda.so").touch()
        self.call("cmake/setup.sh", "--core", "--cuda", **named)

    def install(self, status=0):
        wheels = self.folder / "wheels"
        wheels.mkdir(exist_ok=True)
        for name, files in WHEELS.items():
            with zipfile.ZipFile(wheels / name, "w") as wheel:
                for path, text in files.items():
                    wheel.writestr(path, text)
        self.add_tool("python3", PYTHON.format(python=json.dumps(sys.executable), wheels=wheels),
                      self.cache / "tools/bin")
        return self.call("cmake/setup.sh", "--core", "--cuda", status=status)

    def test_installs_what_the_wheel_names_where_cmake_looks(self):
        self.assertIn("downloading LibTorch 2.11.0, CUDA 13.0 and NCCL", self.install())
        downloads = [line.split() for line in self.called().splitlines() if " download " in line]
        self.assertIn("torch==2.11.0", downloads[0])
        self.assertEqual(downloads[1][-2:],
                         ["cuda-toolkit[cublas,cudart,cccl,crt,nvcc,nvvm]==13.0.2",
                          "nvidia-nccl-cu13==2.28.9"])
        self.assertEqual(len(downloads), 2)
        installed = self.cache / "libtorch-2.11.0-cuda"
        toolkit = installed / "nvidia/cu13"
        self.assertTrue((installed / "complete").exists())
        self.assertTrue((installed / "torch/lib/libtorch_cuda.so").exists())
        self.assertFalse((installed / "torch/lib/libtorch_python.so").exists())
        self.assertFalse((installed / "torch/nn").exists())
        for program in ("bin/nvcc", "nvvm/bin/cicc"):
            self.assertTrue(os.access(toolkit / program, os.X_OK), program)
        self.assertEqual((toolkit / "lib64/libcudart.so").read_text(), "cudart")
        self.assertEqual((toolkit / "lib/libnccl.so").read_text(), "nccl")
        self.assertEqual((toolkit / "include/nccl.h").read_text(), "nccl's")
        self.assertEqual([path.name for path in self.cache.glob("partial*")], [])

        self.calls.unlink()
        self.install()
        self.assertEqual(self.called().count("download"), 0)  # the cache is complete

    def test_what_was_interrupted_is_begun_again(self):
        for name in ("partial-libtorch-cuda", "libtorch-2.11.0-cuda"):
            (self.cache / name / "old").mkdir(parents=True)
        self.assertIn("was interrupted", self.install())
        self.assertFalse((self.cache / "libtorch-2.11.0-cuda/old").exists())


if __name__ == "__main__":
    cases.main()
