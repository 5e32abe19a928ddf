"""Accumulate the gradients of four small batches."""

import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(d_model=192, nhead=6, dim_feedforward=768, batch_first=True), num_layers=3
)
embedding = nn.Embedding(1000, 192)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.encoder, self.head = embedding, encoder, nn.Linear(192, 20)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)))


model = Tagger().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
accumulation_steps = 4
optimizer.zero_grad()
for i in range(24):
    words = torch.randint(0, 1000, (8, 64), device=device)
    tags = torch.randint(0, 20, (8, 64), device=device)
    logits = model(words)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten()) / accumulation_steps
    loss.backward()
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        print("step", (i + 1) // accumulation_steps, loss.item() * accumulation_steps)
