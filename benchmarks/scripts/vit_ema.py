"""A vision transformer with a moving average of its weights."""

import copy

import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, dim=192, depth=4, heads=3, patch=8, image=64, classes=100):
        super().__init__()
        n = (image // patch) ** 2
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim) * 0.02)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(
                nn.ModuleDict(
                    {
                        "n1": nn.LayerNorm(dim),
                        "attn": nn.MultiheadAttention(dim, heads, batch_first=True),
                        "n2": nn.LayerNorm(dim),
                        "mlp": nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)),
                    }
                )
            )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        for b in self.blocks:
            h = b["n1"](x)
            x = x + b["attn"](h, h, h, need_weights=False)[0]
            x = x + b["mlp"](b["n2"](x))
        return self.head(self.norm(x)[:, 0])


device = "cuda" if torch.cuda.is_available() else "cpu"
model = ViT().to(device)
ema = copy.deepcopy(model).eval().requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(5):
    x, y = torch.randn(32, 3, 64, 64, device=device), torch.randint(100, (32,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), ema.parameters()):
            q.mul_(0.999).add_(p, alpha=0.001)
    if loss.isnan():
        raise SystemExit("diverged")
    print(step, loss.item())
