"""Switch routing: each token goes to one expert, by a boolean mask."""

import torch
from torch import nn
import torch.nn.functional as F


class Switch(nn.Module):
    def __init__(self, d=192, n=4):
        super().__init__()
        self.router = nn.Linear(d, n)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(n)
        )

    def forward(self, x):
        flat = x.flatten(0, 1)
        weight, chosen = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out[mine] = expert(flat[mine]) * weight[mine].unsqueeze(-1)
        return x + out.view_as(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.a, self.b, self.out = nn.Embedding(256, 192), Switch(), Switch(), nn.Linear(192, 256)

    def forward(self, t):
        return self.out(self.b(self.a(self.emb(t))))


net = Model()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for i in range(8):
    t = torch.randint(0, 256, (16, 64))
    loss = F.cross_entropy(net(t).transpose(1, 2), t)
    loss.backward()
    opt.step()
    opt.zero_grad()
