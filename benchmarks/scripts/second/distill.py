"""Train a small student on the soft labels of a frozen teacher."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


teacher = mlp(784, 2048, 2048, 2048, 10).to(device).eval()
student = mlp(784, 256, 256, 10).to(device)
loader = DataLoader(TensorDataset(torch.randn(2048, 784), torch.randint(0, 10, (2048,))), batch_size=256, shuffle=True)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
T, alpha = 4.0, 0.7
for epoch in range(3):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        with torch.no_grad():
            soft = F.softmax(teacher(x) / T, dim=1)
        logits = student(x)
        kd = F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") * T * T
        loss = alpha * kd + (1 - alpha) * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(f"epoch {epoch}: {loss.item():.4f}")
