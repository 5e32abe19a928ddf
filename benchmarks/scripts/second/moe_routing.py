import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w1, self.w2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class SparseMoE(nn.Module):
    def __init__(self, d, n=8, k=2):
        super().__init__()
        self.gate, self.experts, self.k = nn.Linear(d, n), nn.ModuleList(Expert(d) for _ in range(n)), k

    def forward(self, x):
        b, t, d = x.shape
        x = x.reshape(-1, d)
        weights, picked = torch.topk(self.gate(x), self.k)
        weights = F.softmax(weights, dim=1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(picked == i)
            out[rows] += weights[rows, nth, None] * expert(x[rows])
        return out.view(b, t, d)


class LM(nn.Module):
    def __init__(self, vocab=500, d=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(SparseMoE(d) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x))
        return self.head(x)


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(10):
    ids = torch.randint(0, 500, (8, 128))
    loss = F.cross_entropy(model(ids).view(-1, 500), ids.view(-1))
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    print(step, loss.item())
