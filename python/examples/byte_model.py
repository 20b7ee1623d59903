"""What both examples train: a small language model of bytes, on the text of files."""

import argparse
import pathlib

import torch

DOCUMENTS = sorted(pathlib.Path(__file__).resolve().parents[2].glob("docs/*.md"))


def parser(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="*", type=pathlib.Path, default=DOCUMENTS,
                        help="text to train on (default: Kolo's documentation)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=4e-3)
    return parser


class ByteModel(torch.nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.layers = torch.nn.GRU(width, width, num_layers=2, batch_first=True)
        self.logits = torch.nn.Linear(width, 256)

    def forward(self, windows):
        """The mean loss in nats per byte of windows [batch, length] of bytes."""
        hidden, _ = self.layers(self.embedding(windows[:, :-1]))
        return torch.nn.functional.cross_entropy(self.logits(hidden).flatten(0, 1),
                                                 windows[:, 1:].flatten())


class Windows:
    """Random windows of the files' bytes; other ones on each rank and in each step."""

    def __init__(self, files, rank, length=65):
        text = b"\n".join(path.read_bytes() for path in files)
        if len(text) < length:
            raise SystemExit(f"the files have {len(text)} bytes; a window needs {length}")
        self._windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, length, 1)
        self._rank = rank

    def batch(self, step, size):
        generator = torch.Generator().manual_seed(1_000_003 * step + self._rank)
        chosen = torch.randint(len(self._windows), (size,), generator=generator)
        return self._windows[chosen].long()
