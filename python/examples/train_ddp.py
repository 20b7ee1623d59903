"""Trains a language model of bytes with stock DistributedDataParallel on Kolo:

    mpirun -np 2 python train_ddp.py [--steps 200] [FILE...]

--backend gloo trains the same on Gloo, with the same losses.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import byte_model
import kolo.distributed  # provides the backend, and what init_process_group() reads


def main():
    parser = byte_model.parser(__doc__.split("\n")[0].rstrip(":"))
    parser.add_argument("--backend", default="kolo", choices=("kolo", "gloo"))
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = DistributedDataParallel(byte_model.ByteModel())  # with the parameters of rank 0
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    windows = byte_model.Windows(options.files, rank)

    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = model(windows.batch(step, options.batch))
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == options.steps:
            mean = loss.detach() / size
            dist.all_reduce(mean)
            if rank == 0:
                each = (time.perf_counter() - begin) / step
                print(f"step {step}: {mean:.3f} nats a byte, {1000 * each:.1f} ms a step",
                      flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
