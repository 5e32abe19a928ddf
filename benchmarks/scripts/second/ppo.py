import torch
import torch.nn as nn
from torch.distributions import Categorical


class ActorCritic(nn.Module):
    def __init__(self, obs=64, act=6, hid=512):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hid), nn.Tanh(), nn.Linear(hid, hid), nn.Tanh())
        self.pi, self.v = nn.Linear(hid, act), nn.Linear(hid, 1)

    def forward(self, o):
        h = self.trunk(o)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def rollout(model, n=2048):
    obs = torch.randn(n, 64)
    with torch.no_grad():
        dist, value = model(obs)
        action = dist.sample()
        logp = dist.log_prob(action)
    reward = torch.rand(n)
    advantage = reward - value
    return obs, action, logp, advantage, reward


model = ActorCritic()
optim = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)
for update in range(4):
    obs, action, old, adv, ret = rollout(model)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for epoch in range(2):
        for idx in torch.randperm(len(obs)).split(512):
            dist, value = model(obs[idx])
            ratio = torch.exp(dist.log_prob(action[idx]) - old[idx])
            clipped = torch.clamp(ratio, 0.8, 1.2) * adv[idx]
            loss = -torch.min(ratio * adv[idx], clipped).mean() + 0.5 * (value - ret[idx]).pow(2).mean()
            loss = loss - 0.01 * dist.entropy().mean()
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optim.step()
    print(update, float(loss))
