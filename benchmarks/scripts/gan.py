"""Two networks against each other, with an optimizer each."""

import torch
import torch.nn as nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
nz, ngf, size = 64, 32, 64
generator = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf * 4),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
discriminator = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(64, 128, 4, 2, 1),
    nn.BatchNorm2d(128),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(128, 1, 4, 1, 0),
).to(device)
criterion = nn.BCEWithLogitsLoss()
optD = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optG = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))

for i in range(6):
    real = torch.randn(size, 3, 16, 16).to(device)
    discriminator.zero_grad()
    label = torch.full((size,), 1.0, device=device)
    errD_real = criterion(discriminator(real).view(-1), label)
    errD_real.backward()
    fake = generator(torch.randn(size, nz, 1, 1, device=device))
    label.fill_(0.0)
    errD_fake = criterion(discriminator(fake.detach()).view(-1), label)
    errD_fake.backward()
    optD.step()
    generator.zero_grad()
    label.fill_(1.0)
    errG = criterion(discriminator(fake).view(-1), label)
    errG.backward()
    optG.step()
    print("[%d] Loss_D: %.4f Loss_G: %.4f" % (i, (errD_real + errD_fake).item(), errG.item()))
