"""Two hosts, which torchrun connects without MPI: simulated by namespaces of this machine."""

import pathlib
import subprocess
import sys
import textwrap
import unittest

from ranks import MPIRUN, main

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests/hosts"))
from hosts import FOLDER, Hosts, enter_namespaces, problem  # noqa: E402

RANKS = 4


class HostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = Hosts(2)
        cls.addClassCleanup(cls.hosts.end)

    def torchrun(self, program, *options):
        """What the ranks print, two of which each host starts."""
        path = pathlib.Path(FOLDER) / "program.py"
        path.write_text(textwrap.dedent(program))
        first = self.hosts.names[0]
        agents = [subprocess.Popen(self.hosts.command(
            name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
            "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:29400",
            "--rdzv-id", self._testMethodName, *options, str(path)),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for name in self.hosts.names]
        self.addCleanup(self.hosts.end_jobs)
        outputs = [agent.communicate(timeout=200)[0] for agent in agents]
        for agent, output in zip(agents, outputs):
            self.assertEqual(agent.returncode, 0, output)
        return "".join(outputs)

    def test_both_doors_and_all_shard_modes(self):
        """Parameters are those of one process, in every mode."""
        output = self.torchrun("""
            import kolo.torch as hvd, torch
            hvd.init()
            rank, size = hvd.rank(), hvd.size()
            assert (size, hvd.local_size(), hvd.cross_size()) == (4, 2, 2)
            assert hvd.allgather(torch.tensor([rank])).tolist() == [0, 1, 2, 3]
            samples = torch.arange(8. * size).reshape(size, 4, 2) / 10

            def trained(rows, shard):
                model = torch.nn.Linear(2, 3)
                torch.nn.init.constant_(model.weight, .5)
                torch.nn.init.constant_(model.bias, .25)
                optimizer = torch.optim.Adam(model.parameters(), lr=.1)
                if shard != "alone":
                    optimizer = hvd.DistributedOptimizer(
                        optimizer, named_parameters=model.named_parameters(), shard=shard or None)
                for _ in range(5):
                    optimizer.zero_grad()
                    model(rows).square().mean().backward()
                    optimizer.step()
                got = []
                def read():
                    got.extend(parameter.detach().clone() for parameter in model.parameters())
                optimizer.full_parameters(read) if shard == "full" else read()
                return got

            expected = trained(samples.reshape(-1, 2), "alone")
            for shard in False, "optimizer", "gradients", "full":
                for got, wanted in zip(trained(samples[rank], shard), expected):
                    torch.testing.assert_close(got, wanted, msg=str(shard))

            import kolo.distributed, torch.distributed as dist
            dist.init_process_group()
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
            model(torch.full((1, 1), rank + 1.)).sum().backward()
            assert model.module.weight.grad.item() == (size + 1) / 2
            print("rank %s is done\\n" % rank, end="", flush=True)
            """)
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} is done", output)

    def test_a_killed_rank_and_a_restart(self):
        """The agents count their restarts differently; groups of some ranks are made anew, too."""
        output = self.torchrun(f"""
            import os, pathlib, signal
            import kolo.distributed, torch, torch.distributed as dist
            dist.init_process_group("kolo")
            rank = dist.get_rank()
            group = dist.new_group([0, 3])
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            is_done = pathlib.Path("{FOLDER}/killed")
            if rank == 3 and not is_done.exists():
                is_done.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(tensor)
            if rank in (0, 3):
                dist.all_reduce(tensor, group=group)
            assert tensor.item() == (32 if rank in (0, 3) else 16)
            print("rank %s is done\\n" % rank, end="", flush=True)
            """, "--max-restarts", "3")
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} is done", output)


if __name__ == "__main__":
    reason = problem(MPIRUN[0])
    if not pathlib.Path("/usr/include/ucp/api/ucp.h").exists():
        reason = "Kolo was built without UCX (Debian: libucx-dev)"
    if reason is not None:
        print(f"skipped: {reason}")
        sys.exit(0)
    enter_namespaces()
    main()
