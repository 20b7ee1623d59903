#!/usr/bin/env python3
"""Trains a model with a library and writes how much of the speed without communication is left:

    OMP_NUM_THREADS=1 mpirun -np 2 python3 train.py <library> <gpt|resnet50> <pairs> <json file>

in pairs of blocks of a second, and checks that the library did its work. compare.py runs it for all
libraries.
"""

import hashlib
import json
import sys

import torch
from torch.distributed.tensor import DTensor

import efficiency
import libraries
import models

PARAMETERS = {"gpt": 10_774_272, "resnet50": 25_557_032}  # as Kolo's have
CHECKED_STEPS = 3


def mean_over_ranks(ranks, value):
    return ranks.gather(torch.tensor(value, dtype=torch.float64)).mean().item()


def fingerprint(model):
    """Of all parameters."""
    digest = hashlib.blake2b(digest_size=7)
    for parameter in model.parameters():
        whole = parameter.detach()
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()  # collective
        digest.update(whole.contiguous().numpy())
    return int.from_bytes(digest.digest(), "little")


def fingerprints(ranks, model):
    """Checks this on every rank."""
    return set(ranks.gather(torch.tensor(fingerprint(model))).tolist())


def train_by_hand(ranks, training, batch):
    """Checks that a library steps with the mean of all ranks' gradients."""
    training.optimizer.zero_grad()
    training.model(*batch).backward()
    for parameter in training.model.parameters():
        parameter.grad = ranks.gather(parameter.grad).mean(0)
    training.optimizer.step()


def check_first_steps(ranks, task, alone, training):
    """Compares bits, as the mean of two numbers is exact in any order."""
    start = fingerprint(training.model)
    for step in (lambda: train_by_hand(ranks, alone, task.batch()),
                 lambda: training.step(task.batch())):
        torch.manual_seed(2 + ranks.rank)  # different batches per rank
        for _ in range(CHECKED_STEPS):
            step()
    expected = fingerprint(alone.model)
    if expected == start or fingerprints(ranks, training.model) != {expected}:
        raise SystemExit("error: the library does not train with the mean of the gradients")


def check_end(ranks, alone, training, is_library):
    if is_library and len(fingerprints(ranks, training.model)) != 1:
        raise SystemExit("error: the parameters differ between ranks")
    if len(fingerprints(ranks, alone.model)) != ranks.size:
        raise SystemExit("error: ranks had the same batches")


def main(library, name, pairs, file):
    is_library = library != "alone"
    ranks_of, training_of = libraries.library(library)
    task = models.TASKS[name]()
    ranks = ranks_of()
    torch.manual_seed(1)  # the same model on all ranks, and in both trainings
    alone = libraries.alone(task, ranks)
    torch.manual_seed(1)
    training = training_of(task, ranks)
    count = sum(parameter.numel() for parameter in training.model.parameters())
    if count != PARAMETERS[name]:
        raise SystemExit(f"error: {count} parameters, but Kolo's {name} has {PARAMETERS[name]}")
    torch.manual_seed(2 + ranks.rank)
    if is_library:
        check_first_steps(ranks, task, alone, training)
    result = efficiency.measure(lambda: alone.step(task.batch()),
                                lambda: training.step(task.batch()),
                                lambda value: mean_over_ranks(ranks, value), int(pairs))
    check_end(ranks, alone, training, is_library)
    if ranks.rank == 0:
        with open(file, "w", encoding="utf-8") as output:
            json.dump({**result, "parameters": count}, output)
    ranks.finish()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
