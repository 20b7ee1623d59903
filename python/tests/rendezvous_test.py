"""Ranks that mpirun does not start: torchrun, multiprocessing, shells."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

from ranks import main

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
OF_LAUNCHERS = re.compile("(OMPI|PMI|PMIX|SLURM|KOLO|TORCHELASTIC)_|"
                          "(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)$")


class RendezvousTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {name: value for name, value in os.environ.items()
                            if not OF_LAUNCHERS.match(name)}

    def write(self, program):
        path = self.folder / "program.py"
        path.write_text(textwrap.dedent(program))
        return str(path)

    def start(self, command, **variables):
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, env=self.environment | variables)

    def run_program(self, program, launcher=(sys.executable,), status=0, **variables):
        """What it prints."""
        process = self.start([*launcher, self.write(program)], **variables)
        output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, status, output)
        return output

    def torchrun(self, count, program, *options, **arguments):
        return self.run_program(
            program, (*TORCHRUN, "--nproc-per-node", str(count), *options), **arguments)

    def test_torchrun_with_torch_distributed(self):
        """Without a name too; DDP's gradients are those of all ranks, in every bit."""
        for count, name in ((1, "'kolo'"), (3, "'kolo'"), (2, "")):
            output = self.torchrun(count, f"""
                import kolo.distributed, torch, torch.distributed as dist
                dist.init_process_group({name})
                rank, size = dist.get_rank(), dist.get_world_size()
                assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "kolo"
                tensor = torch.full((5,), rank + 1.0)
                dist.all_reduce(tensor)
                assert tensor.tolist() == [size * (size + 1) / 2] * 5
                if size > 1:
                    group = dist.new_group([0, size - 1])
                    if rank in (0, size - 1):
                        tensor.fill_(rank)
                        dist.all_reduce(tensor, group=group)
                        assert tensor[0] == size - 1
                model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
                model(torch.full((1, 1), rank + 1.0)).sum().backward()
                assert model.module.weight.grad.item() == (size + 1) / 2
                dist.destroy_process_group()
                print("rank %s is done\\n" % rank, end="", flush=True)
                """)
            for rank in range(count):
                self.assertIn(f"rank {rank} is done", output)

    def test_torchrun_with_horovod_and_both_doors(self):
        output = self.torchrun(2, """
            import kolo.torch as hvd, torch
            hvd.init()
            assert hvd.size() == 2 and hvd.local_rank() == hvd.rank()
            assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == [0, 1]
            import kolo.distributed, torch.distributed as dist
            dist.init_process_group("kolo")
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == 2
            print("rank %s is done\\n" % hvd.rank(), end="", flush=True)
            """)
        for rank in range(2):
            self.assertIn(f"rank {rank} is done", output)

    def test_a_killed_rank_and_a_restart(self):
        """The others learn who it was, and torchrun starts all anew."""
        output = self.torchrun(3, """
            import os, signal, sys
            import kolo.distributed, torch, torch.distributed as dist
            dist.init_process_group("kolo")
            restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            if restarts == 0 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                dist.all_reduce(tensor)
            except RuntimeError as error:
                print("rank %s learns: %s\\n" % (dist.get_rank(), error), end="", flush=True)
                raise
            assert tensor.item() == 9
            print("rank %s is done after %s\\n" % (dist.get_rank(), restarts), end="", flush=True)
            """, "--max-restarts", "1")
        for rank in range(3):
            self.assertIn(f"rank {rank} is done after 1", output)
        # torchrun may end them first.
        for text in re.findall("rank [02] learns: .*", output):
            self.assertIn("rank 1 ", text)

    def test_spawned_ranks(self):
        """By either door, with workers of their own."""
        output = self.run_program("""
            import os, socket
            import kolo.distributed, kolo.torch as hvd, torch, torch.distributed as dist

            def rank_of(rank, size, folder, port):
                if port:
                    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="localhost",
                                      MASTER_PORT=str(port))
                    hvd.init()
                dist.init_process_group("kolo", rank=rank, world_size=size,
                                        init_method=f"file://{folder}/{port}")
                hvd.init()
                assert (hvd.rank(), hvd.size()) == (rank, size)
                tensor = torch.full((3,), rank + 1.0)
                dist.all_reduce(tensor)
                assert tensor.tolist() == [3.0] * 3
                for start in "fork", "spawn":
                    loader = torch.utils.data.DataLoader(
                        torch.arange(8.), num_workers=1, multiprocessing_context=start)
                    assert sum(batch.item() for batch in loader) == 28
                dist.barrier()
                print("rank %s is done\\n" % rank, end="", flush=True)
                dist.destroy_process_group()

            if __name__ == "__main__":
                with socket.create_server(("localhost", 0)) as server:
                    port = server.getsockname()[1]
                for way in 0, port:
                    torch.multiprocessing.spawn(
                        rank_of, (2, os.path.dirname(__file__), way), nprocs=2)
            """)
        self.assertEqual(2, output.count("rank 0 is done"), output)
        self.assertEqual(2, output.count("rank 1 is done"), output)

    def test_an_exception_of_a_spawned_rank(self):
        output = self.run_program("""
            import os
            import kolo.distributed, torch, torch.distributed as dist

            def rank_of(rank, folder):
                dist.init_process_group("kolo", rank=rank, world_size=2,
                                        init_method=f"file://{folder}/store")
                if rank == 1:
                    raise ValueError("no data\\nin step 2")
                try:
                    dist.all_reduce(torch.ones(1))
                except RuntimeError as error:
                    with open(f"{folder}/error", "w") as file:
                        file.write(str(error))

            if __name__ == "__main__":
                torch.multiprocessing.spawn(rank_of, (os.path.dirname(__file__),), nprocs=2)
            """, status=1)
        self.assertIn("ValueError: no data", output)
        self.assertIn("rank 1 ended with an uncaught exception: ValueError: no data",
                      (self.folder / "error").read_text())

    def test_a_missing_rank_is_named(self):
        output = self.run_program("""
            import kolo.distributed, torch.distributed as dist
            store = dist.HashStore()
            dist.init_process_group("kolo", rank=1, world_size=3, store=store)
            """, status=1, KOLO_START_TIMEOUT="1s")
        self.assertIn("of 3 ranks, ranks 0 and 2 have not constructed", output)

    def test_what_a_rank_starts_is_no_rank(self):
        """A subprocess is refused, with words; a worker starts nothing, whenever it was started."""
        output = self.torchrun(2, """
            import multiprocessing, os, subprocess, sys
            import kolo.torch as hvd

            def is_started(_):
                return hvd.is_initialized()

            if __name__ == "__main__":
                pool = multiprocessing.get_context("spawn").Pool(1)
            hvd.init()
            if __name__ == "__main__":
                assert pool.map(is_started, [0]) == [False]
                child = subprocess.run([sys.executable, "-c", "import kolo.torch as k; k.init()"],
                                       capture_output=True, text=True)
                assert child.returncode == 1
                assert f"rank {hvd.rank()} has started this process" in child.stderr, child.stderr
                alone = "import kolo.torch as k; k.init(); assert k.size() == 1"
                subprocess.run([sys.executable, "-c", alone], check=True,
                               env=os.environ | {"KOLO_LAUNCHER": "none"})
                hvd.barrier()
                print("rank %s is done\\n" % hvd.rank(), end="", flush=True)
            """)
        for rank in range(2):
            self.assertIn(f"rank {rank} is done", output)

    def test_variables_of_a_shell_of_slurm(self):
        """They do not keep what PyTorch's launchers have set from counting."""
        program = self.write("""
            import kolo.torch as hvd, torch
            hvd.init()
            print("sum", hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item())
            """)
        with socket.create_server(("localhost", 0)) as server:
            port = str(server.getsockname()[1])
        shell = {"PMIX_RANK": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
        ranks = [self.start([sys.executable, program], RANK=str(rank), WORLD_SIZE="2",
                            MASTER_ADDR="localhost", MASTER_PORT=port, **shell)
                 for rank in range(2)]
        for rank in ranks:
            self.assertIn("sum 3.0", rank.communicate(timeout=100)[0])
        late = self.start([sys.executable, program], RANK="0", WORLD_SIZE="2", MASTER_PORT=port,
                          MASTER_ADDR="localhost", KOLO_START_TIMEOUT="1s")
        self.assertIn("of 2 ranks, rank 1 has not constructed", late.communicate(timeout=100)[0])

    def test_a_group_of_some_ranks_cannot_start(self):
        output = self.torchrun(2, """
            import kolo.distributed, torch.distributed as dist
            dist.init_process_group("gloo")
            try:
                dist.new_group([0], backend="kolo")
            except ValueError as error:
                print(error, flush=True)
            dist.barrier()
            kolo = dist.new_group(backend="kolo")
            dist.barrier(kolo)
            """)
        self.assertIn("not have all ranks, and Kolo starts on all at once", output)

    def test_ranks_of_a_shell(self):
        program = self.write("""
            import kolo.torch as hvd, torch
            hvd.init()
            print("sum", hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item())
            """)
        folder = str(self.folder / "job")
        for size, total in (3, "6.0"), (2, "3.0"):  # the second job after the first
            ranks = [self.start([sys.executable, program], KOLO_RENDEZVOUS=folder,
                                KOLO_SIZE=str(size), KOLO_RANK=str(rank)) for rank in range(size)]
            for rank in ranks:
                self.assertIn(f"sum {total}", rank.communicate(timeout=100)[0])
        unknown = self.start([sys.executable, program], KOLO_RENDEZVOUS=folder)
        self.assertIn("Set KOLO_RANK, from 0, and KOLO_SIZE", unknown.communicate(timeout=100)[0])


if __name__ == "__main__":
    main()
