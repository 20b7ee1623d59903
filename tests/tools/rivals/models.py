"""The models of examples/gpt and examples/resnet, parameter for parameter, with their batches and
optimizers, for all libraries.
"""

import math

import torch
from torch import nn
from torch.nn import functional


def linear(inputs, outputs, spread):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, 0.0, spread)
    return layer


class Block(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        spread = Gpt.INITIAL_SPREAD
        spread_out = spread / math.sqrt(2.0 * layers)
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.query_key_value = linear(width, 3 * width, spread)
        self.attention_out = linear(width, width, spread_out)
        self.mlp_in = linear(width, 4 * width, spread)
        self.mlp_out = linear(4 * width, width, spread_out)

    def forward(self, state):
        middle = state + self.attention(self.attention_norm(state))
        return middle + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(middle))))

    def attention(self, state):
        batch, length, width = state.shape
        query, key, value = (self.query_key_value(state)
                             .view(batch, length, 3, self.heads, width // self.heads)
                             .permute(2, 0, 3, 1, 4).unbind())
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))


class Gpt(nn.Module):
    INITIAL_SPREAD = 0.02
    BYTES = 256

    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.byte_embedding = nn.Embedding(self.BYTES, width)
        self.position_embedding = nn.Parameter(torch.empty(context, width))
        nn.init.normal_(self.byte_embedding.weight, 0.0, self.INITIAL_SPREAD)
        nn.init.normal_(self.position_embedding, 0.0, self.INITIAL_SPREAD)
        self.blocks = nn.ModuleList(Block(width, heads, layers) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)

    def forward(self, windows):
        """The mean loss of the bytes 1 … length of windows [batch, length + 1]."""
        length = windows.shape[1] - 1
        state = self.byte_embedding(windows[:, :length]) + self.position_embedding[:length]
        for block in self.blocks:
            state = block(state)
        logits = functional.linear(self.final_norm(state), self.byte_embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def convolution(inputs, outputs, size, stride):
    layer = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class Bottleneck(nn.Module):
    EXPANSION = 4

    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = self.EXPANSION * channels
        self.reduce = convolution(inputs, channels, 1, 1)
        self.reduce_norm = nn.BatchNorm2d(channels)
        self.mix = convolution(channels, channels, 3, stride)
        self.mix_norm = nn.BatchNorm2d(channels)
        self.expand = convolution(channels, outputs, 1, 1)
        self.expand_norm = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = convolution(inputs, outputs, 1, stride)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, images):
        state = torch.relu(self.reduce_norm(self.reduce(images)))
        state = torch.relu(self.mix_norm(self.mix(state)))
        state = self.expand_norm(self.expand(state))
        state += images if self.shortcut is None else self.shortcut_norm(self.shortcut(images))
        return torch.relu(state)


class ResNet50(nn.Module):
    STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride
    CLASSES = 1000

    def __init__(self):
        super().__init__()
        channels = self.STAGES[0][0]
        self.stem = convolution(3, channels, 7, 2)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.blocks = nn.ModuleList()
        for inner, blocks, stride in self.STAGES:
            for i in range(blocks):
                self.blocks.append(Bottleneck(channels, inner, stride if i == 0 else 1))
                channels = Bottleneck.EXPANSION * inner
        self.classifier = nn.Linear(channels, self.CLASSES)

    def forward(self, images, classes):
        """The mean loss."""
        state = torch.relu(self.stem_norm(self.stem(images)))
        state = torch.max_pool2d(state, kernel_size=3, stride=2, padding=1)
        for block in self.blocks:
            state = block(state)
        return functional.cross_entropy(self.classifier(state.mean((2, 3))), classes)


class GptTask:
    """The same as train_gpt --preset medium --fused."""
    optimizer = torch.optim.AdamW
    options = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.01, "fused": True}
    BATCH = 8
    CONTEXT = 128

    def model(self):
        return Gpt(layers=6, width=384, heads=6, context=self.CONTEXT)

    def batch(self):
        return (torch.randint(Gpt.BYTES, (self.BATCH, self.CONTEXT + 1)),)


class ResNetTask:
    """The same as synthetic_benchmark --image 64 --batch 8 --fused: equal images in every step."""
    optimizer = torch.optim.SGD
    options = {"lr": 0.01, "momentum": 0.9, "fused": True}
    BATCH = 8
    IMAGE = 64

    def __init__(self):
        self._batch = None

    def model(self):
        return ResNet50()

    def batch(self):
        if self._batch is None:
            self._batch = (torch.randn(self.BATCH, 3, self.IMAGE, self.IMAGE),
                           torch.randint(ResNet50.CLASSES, (self.BATCH,)))
        return self._batch


TASKS = {"gpt": GptTask, "resnet50": ResNetTask}
