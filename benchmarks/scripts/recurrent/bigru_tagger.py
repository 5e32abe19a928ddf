"""A tagger of words with a bidirectional GRU, time first."""

import torch
import torch.nn as nn
import torch.nn.functional as F

words, tags, length, batch = 3000, 20, 50, 40

embedding = nn.Embedding(words, 100)
gru = nn.GRU(100, 200, bidirectional=True)
tagger = nn.Linear(400, tags)
parameters = [*embedding.parameters(), *gru.parameters(), *tagger.parameters()]
optimizer = torch.optim.RMSprop(parameters, lr=1e-3)

for i in range(6):
    sentence = torch.randint(words, (length, batch))
    target = torch.randint(tags, (length, batch))
    optimizer.zero_grad()
    hidden, _ = gru(embedding(sentence))
    scores = F.log_softmax(tagger(hidden), dim=-1)
    loss = F.nll_loss(scores.view(-1, tags), target.view(-1))
    loss.backward()
    optimizer.step()
    print(i, float(loss))
