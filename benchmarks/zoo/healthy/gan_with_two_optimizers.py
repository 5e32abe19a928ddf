"""A GAN has two models and two optimizers; the discriminator is updated twice per step, the generator once.

class: healthy
culprit: none
ranks: 2
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def update_discriminator(netD, netG, optimizer):
    real, fake = torch.randn(16, 8) + 2, netG.module(torch.randn(16, 4)).detach()
    scores = netD(torch.cat([real, fake]))
    errD_real = bce(scores[:16], torch.ones(16, 1))
    errD_fake = bce(scores[16:], torch.zeros(16, 1))
    optimizer.zero_grad()
    (errD_real + errD_fake).backward()
    optimizer.step()
    return errD_real.item(), errD_fake.item()


def update_generator(netD, netG, optimizer):
    for parameter in netD.parameters():
        parameter.requires_grad_(False)
    errG = bce(netD.module(netG(torch.randn(16, 4))), torch.ones(16, 1))
    optimizer.zero_grad()
    errG.backward()
    optimizer.step()
    for parameter in netD.parameters():
        parameter.requires_grad_(True)
    return errG.item()


def main():
    netG = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)))
    netD = DDP(nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
    optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for step in range(25):
        for _ in range(2):
            real, fake = update_discriminator(netD, netG, optD)
        errG = update_generator(netD, netG, optG)
        if step % 5 == 0:
            print(f"[{step}/25] errD_real {real:.3f} errD_fake {fake:.3f} errG {errG:.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
