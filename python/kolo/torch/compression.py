"""What tensors are sent as."""

import torch


class Compressor:
    """A pair of functions that a program may supply: the tensors that compress() returns are
    reduced. A class with a codec, one of Kolo's, is not called: the C++ side compresses."""

    codec = None

    def __init_subclass__(cls):
        if "codec" not in vars(cls) and {"compress", "decompress"} & vars(cls).keys():
            cls.codec = None  # one that derives from a class with a codec

    @staticmethod
    def compress(tensor):
        """Returns the tensor to send, and what decompress() needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, context):
        raise NotImplementedError


class _Cast(Compressor):
    dtype = None

    @classmethod
    def compress(cls, tensor):
        is_cast = cls.dtype is not None and tensor.dtype.is_floating_point
        return (tensor.to(cls.dtype) if is_cast else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor, context):
        return tensor.to(context)


class NoneCompressor(_Cast):
    codec = "none"


class FP16Compressor(_Cast):
    codec, dtype = "fp16", torch.float16


class BF16Compressor(_Cast):
    codec, dtype = "bf16", torch.bfloat16


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor  # not in Horovod

    @staticmethod
    def named(codec):
        """Any of docs/compression.md, such as "int8" or "top_k:0.01". Not in Horovod."""
        return type(codec, (Compressor,), {"codec": codec})
