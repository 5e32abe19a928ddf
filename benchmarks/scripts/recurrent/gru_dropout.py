"""A character model with a GRU of three layers and dropout between them."""

import torch
from torch import nn

torch.manual_seed(1)
chars, hidden, layers, batch, length = 96, 384, 3, 32, 60


class CharGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(chars, 128)
        self.gru = nn.GRU(128, hidden, layers, batch_first=True, dropout=0.3)
        self.out = nn.Linear(hidden, chars)

    def forward(self, x, h=None):
        y, h = self.gru(self.embed(x), h)
        return self.out(y), h


model = CharGRU()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()
for it in range(6):
    x = torch.randint(0, chars, (batch, length + 1))
    logits, _ = model(x[:, :-1])
    loss = loss_fn(logits.reshape(-1, chars), x[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, loss.item())
