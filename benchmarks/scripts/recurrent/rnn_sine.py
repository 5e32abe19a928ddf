"""An Elman network that predicts the next value of noisy sine waves."""

import torch

steps, batch, hidden = 200, 64, 256
time = torch.linspace(0, 20, steps + 1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.RNN(1, hidden, num_layers=2, nonlinearity="tanh", batch_first=True)
        self.fc = torch.nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.fc(h)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
for epoch in range(6):
    phase = torch.rand(batch, 1) * 6.28
    wave = torch.sin(time + phase) + 0.1 * torch.randn(batch, steps + 1)
    x, y = wave[:, :-1, None], wave[:, 1:, None]
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
