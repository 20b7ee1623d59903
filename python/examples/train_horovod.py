"""Trains a language model of bytes with Horovod's interface on Kolo:

    mpirun -np 2 python train_horovod.py [--shard full] [--checkpoints FOLDER] [FILE...]

With --checkpoints it saves every 50 steps, and resumes from the newest checkpoint there, with any
number of ranks and any --shard.
"""

import pathlib
import time

import torch

import byte_model
import kolo.torch as hvd


def main():
    parser = byte_model.parser(__doc__.split("\n")[0].rstrip(":"))
    parser.add_argument("--shard", default="none",
                        choices=("none", "optimizer", "gradients", "full"),
                        help="what is sharded over the ranks instead of replicated")
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoints", type=pathlib.Path,
                        help="folder to save to and resume from")
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = byte_model.ByteModel()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), options.lr), model=model, shard=options.shard,
        compression=hvd.Compression.fp16 if options.fp16 else hvd.Compression.none)
    if options.shard != "full":  # whose parameters are those of rank 0 already
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    windows = byte_model.Windows(options.files, hvd.rank())

    done = 0
    saved = options.checkpoints is not None and options.checkpoints.exists()
    if hvd.broadcast_object(saved):  # all ranks decide alike
        done = optimizer.load(options.checkpoints)["steps"]
        if hvd.rank() == 0:
            print(f"resuming after step {done}", flush=True)
    begin = time.perf_counter()
    for step in range(done + 1, options.steps + 1):
        optimizer.zero_grad()
        loss = model(windows.batch(step, options.batch))
        loss.backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        if step % 50 == 0 or step == options.steps:
            mean = hvd.allreduce(loss.detach(), name="loss")
            if options.checkpoints:
                optimizer.save(options.checkpoints)
            if hvd.rank() == 0:
                each = (time.perf_counter() - begin) / (step - done)
                print(f"step {step}: {mean:.3f} nats a byte, {1000 * each:.1f} ms a step",
                      flush=True)


if __name__ == "__main__":
    main()
