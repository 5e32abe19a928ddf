"""Train a two-tower model with Adafactor."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.emb = nn.Embedding(words, dim)
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.Tanh(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return F.normalize(self.net(self.emb(x).mean(dim=1)), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Tower(5000, 256), Tower(3000, 256)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, q, d):
        return self.scale.exp() * self.a(q) @ self.b(d).T


def train(steps=5, batch=512):
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    model = TwoTowers().to(device)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    for step in range(steps):
        q = torch.randint(0, 5000, (batch, 12)).to(device)
        d = torch.randint(0, 3000, (batch, 40)).to(device)
        logits = model(q, d)
        target = torch.arange(batch, device=device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (logits.argmax(dim=1) == target).float().mean()
        print(f"{step}: {loss.item():.3f} {accuracy.item():.1%}")


train()
