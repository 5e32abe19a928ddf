"""Segment pictures with a U-Net; the learning rate falls when the loss does not."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.GroupNorm(8, cout),
        nn.SiLU(),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.GroupNorm(8, cout),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.d1, self.d2, self.mid = double(3, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.u2, self.u1 = double(6 * c, 2 * c), double(3 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        m = self.u2(torch.cat([F.interpolate(m, scale_factor=2, mode="bilinear"), b], 1))
        m = self.u1(torch.cat([F.interpolate(m, scale_factor=2, mode="bilinear"), a], 1))
        return self.out(m)


def dice(p, t):
    p = p.sigmoid()
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = UNet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, amsgrad=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
history = []
for epoch in range(5):
    image = torch.rand(8, 3, 64, 64)
    mask = (image.mean(1, keepdim=True) > 0.5).float()
    image, mask = image.to(device), mask.to(device)
    prediction = net(image)
    loss = F.binary_cross_entropy_with_logits(prediction, mask) + dice(prediction, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.detach().cpu().numpy())
    scheduler.step(loss.item())
    if min(history) < 0.01:
        break
    print(epoch, history[-1])
