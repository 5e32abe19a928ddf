"""Forecast many series with an LSTM whose hidden state is projected, then a plain one."""

import torch
from torch import nn

series, history, batch, hidden = 12, 96, 48, 320


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(series, hidden, proj_size=64, batch_first=True)
        self.second = nn.LSTM(64, hidden, batch_first=True)
        self.head = nn.Linear(hidden, series)

    def forward(self, x):
        y, _ = self.first(x)
        y, (h, _) = self.second(y)
        return self.head(h[-1])


model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20)
for step in range(6):
    x = torch.randn(batch, history, series).cumsum(1)
    loss = nn.functional.l1_loss(model(x), x[:, -1] + 0.1 * torch.randn(batch, series))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item())
