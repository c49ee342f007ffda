# SPDX-License-Identifier: BSD-3-Clause
"""A small GPT over bytes: 10.8 M parameters, tied embeddings, dropout (so the RNG matters)."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
CONTEXT = 64


class Block(nn.Module):
    """Attention over earlier bytes, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, width // self.heads).unbind(2)
        y = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + functional.dropout(self.mix(y.transpose(1, 2).reshape(batch, time, width)), self.dropout, self.training)
        return x + functional.dropout(self.mlp(self.norm_2(x)), self.dropout, self.training)


class GPT(nn.Module):
    """Predicts the next byte from up to CONTEXT bytes."""

    def __init__(self, layers: int = 6, heads: int = 6, width: int = 384, dropout: float = 0.1):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.h = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._start)
        self.head.weight = self.token.weight  # tied: one tensor under two names

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Map (batch, time) bytes to (batch, time, VOCABULARY) logits."""
        x = self.token(data) + self.position(torch.arange(data.shape[1], device=data.device))
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the mean cross entropy."""
        return functional.cross_entropy(self(data).flatten(0, 1), target.flatten())
