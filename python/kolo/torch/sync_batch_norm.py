"""Batch normalization over the batches of all ranks."""

import torch

from .. import _kolo


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """A BatchNorm that, in training, normalizes with the mean and variance of the batches of all
    ranks together. Unlike Horovod's it runs on CPUs, too, ranks may have batches of different
    sizes or none, and several may be in one model in any order that is the same on all ranks."""

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input, got {input.dim()}D input")

    def __getstate__(self):  # copies have an operation of their own
        return {name: value for name, value in self.__dict__.items() if name != "_operation"}

    def forward(self, input):
        if not self.training:
            return super().forward(input)
        if "_operation" not in self.__dict__:
            self._operation = _kolo.SyncBatchNorm(self.num_features)
        return self._operation.forward(input, self.eps, self.momentum, self.track_running_stats,
                                       self.weight, self.bias, self.running_mean, self.running_var,
                                       self.num_batches_tracked)
