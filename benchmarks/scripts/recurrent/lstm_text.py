"""A language model with an LSTM, whose state is carried on from batch to batch."""

import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
vocab, hidden, layers, batch, bptt = 2000, 256, 2, 20, 35
corpus = torch.randint(0, vocab, (batch * 400,)).view(batch, -1).t().contiguous().to(device)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(vocab, hidden)
        self.rnn = nn.LSTM(hidden, hidden, layers, dropout=0.2)
        self.decoder = nn.Linear(hidden, vocab)

    def forward(self, x, state):
        out, state = self.rnn(self.drop(self.encoder(x)), state)
        return self.decoder(self.drop(out)).view(-1, vocab), state


def detach(state):
    return tuple(v.detach() for v in state)


model = RNNModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
state = (torch.zeros(layers, batch, hidden, device=device), torch.zeros(layers, batch, hidden, device=device))
total = 0.0
for number, i in enumerate(range(0, 5 * bptt, bptt)):
    data, target = corpus[i : i + bptt], corpus[i + 1 : i + 1 + bptt].reshape(-1)
    state = detach(state)
    model.zero_grad()
    output, state = model(data, state)
    loss = criterion(output, target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    total += loss.item()
    print("batch", number, "ppl", torch.exp(torch.tensor(total / (number + 1))).item())
