"""A sentiment classifier: a bidirectional LSTM over sequences of different lengths, packed."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

vocab, dim, hidden, batch = 5000, 128, 192, 24


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * hidden, 2))

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(out.max(dim=1).values)


model = Classifier()
optim = torch.optim.Adam(model.parameters(), lr=1e-3)
g = torch.Generator().manual_seed(0)
for step in range(6):
    lengths = torch.randint(20, 81, (batch,), generator=g)
    tokens = torch.randint(1, vocab, (batch, 80), generator=g)
    labels = torch.randint(0, 2, (batch,), generator=g)
    loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    print(step, loss.item())
