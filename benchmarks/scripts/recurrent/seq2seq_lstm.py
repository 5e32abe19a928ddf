"""Translate with an LSTM encoder and a decoder of LSTM cells with attention."""

import torch
from torch import nn

source_words, target_words, dim, batch, source_length, target_length = 2000, 1500, 192, 16, 40, 30


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(source_words, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)

    def forward(self, x):
        return self.lstm(self.embed(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(target_words, dim)
        self.cell = nn.LSTMCell(2 * dim, dim)
        self.out = nn.Linear(2 * dim, target_words)

    def forward(self, targets, memory, state):
        h, c = state[0][0], state[1][0]
        logits = []
        for token in self.embed(targets).unbind(1):
            weights = torch.softmax((memory @ h.unsqueeze(-1)).squeeze(-1), dim=-1)
            context = (weights.unsqueeze(1) @ memory).squeeze(1)
            h, c = self.cell(torch.cat([token, context], dim=-1), (h, c))
            logits.append(self.out(torch.cat([h, context], dim=-1)))
        return torch.stack(logits, dim=1)


encoder, decoder = Encoder(), Decoder()
model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    source = torch.randint(source_words, (batch, source_length))
    target = torch.randint(target_words, (batch, target_length + 1))
    memory, state = encoder(source)
    logits = decoder(target[:, :-1], memory, state)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
