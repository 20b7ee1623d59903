"""Kolo for Python: `kolo.distributed` is a backend of torch.distributed."""
