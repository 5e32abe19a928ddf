import copy
import math

import torch
from torch import nn


class Time(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.SiLU(), nn.Linear(dim * 4, dim))

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        angles = t[:, None].float() * freqs[None]
        return self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))


class Denoiser(nn.Module):
    def __init__(self, data=256, width=1024, depth=6):
        super().__init__()
        self.time, self.inp = Time(width), nn.Linear(data, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width * 2), nn.SiLU(), nn.Linear(width * 2, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, data)

    def forward(self, x, t):
        h, emb = self.inp(x), self.time(t)
        for block in self.blocks:
            h = h + block(h + emb)
        return self.out(h)


steps = 1000
betas = torch.linspace(1e-4, 0.02, steps)
alphas = torch.cumprod(1 - betas, dim=0)
model = Denoiser()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01)
for i in range(20):
    x0 = torch.randn(512, 256)
    t = torch.randint(0, steps, (512,))
    noise = torch.randn_like(x0)
    a = alphas[t][:, None]
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    loss = (model(xt, t) - noise).pow(2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), ema.parameters()):
            q.mul_(0.999).add_(p, alpha=0.001)
    if i % 5 == 0:
        print(i, loss.item())
