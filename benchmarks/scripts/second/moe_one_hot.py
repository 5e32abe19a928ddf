# routing as in Hugging Face's Mixtral
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden=128, experts=8, top_k=2):
        super().__init__()
        self.num_experts, self.top_k = experts, top_k
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.w = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 256), nn.SiLU(), nn.Linear(256, hidden)) for _ in range(experts)
        )

    def forward(self, hidden_states):
        b, s, h = hidden_states.shape
        hidden_states = hidden_states.view(-1, h)
        routing = F.softmax(self.gate(hidden_states), dim=1, dtype=torch.float)
        weights, selected = torch.topk(routing, self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        final = torch.zeros((b * s, h), dtype=hidden_states.dtype, device=hidden_states.device)
        mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for i in range(self.num_experts):
            idx, top_x = torch.where(mask[i])
            current = hidden_states[None, top_x].reshape(-1, h)
            current = self.w[i](current) * weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(hidden_states.dtype))
        return final.reshape(b, s, h)


model = nn.Sequential(nn.Embedding(300, 128), Block(), nn.LayerNorm(128), Block(), nn.Linear(128, 300))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(6):
    x = torch.randint(0, 300, (4, 128))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
