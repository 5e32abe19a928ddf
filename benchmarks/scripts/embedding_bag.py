"""Classify news with bags of words; a collate function makes the offsets."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader

random.seed(1)
news = [(random.randrange(4), [random.randrange(20000) for _ in range(random.randint(5, 60))]) for _ in range(400)]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def collate(batch):
    labels, texts, offsets = [], [], [0]
    for label, text in batch:
        labels.append(label)
        piece = torch.tensor(text, dtype=torch.int64)
        texts.append(piece)
        offsets.append(piece.size(0))
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    return torch.tensor(labels).to(device), torch.cat(texts).to(device), offsets.to(device)


class Model(nn.Module):
    def __init__(self, vocab, dim, classes):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab, dim, sparse=False)
        self.fc = nn.Linear(dim, classes)
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


model = Model(20000, 64, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.1)
criterion = torch.nn.CrossEntropyLoss()
seen = right = 0
for label, text, offsets in DataLoader(news, batch_size=64, shuffle=True, collate_fn=collate):
    optimizer.zero_grad()
    predicted = model(text, offsets)
    loss = criterion(predicted, label)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    right += (predicted.argmax(1) == label).sum().item()
    seen += label.size(0)
    print(f"{right / seen:8.3f}")
scheduler.step()
