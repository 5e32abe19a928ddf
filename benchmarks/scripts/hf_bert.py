"""Fine-tune a small BERT on sentences with padding, as for text classification."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

config = BertConfig(
    vocab_size=3000, hidden_size=192, num_hidden_layers=3, num_attention_heads=3, intermediate_size=768, num_labels=3
)
rows = []
for i in range(200):
    g = torch.Generator().manual_seed(i)
    length = int(torch.randint(10, 64, (1,), generator=g))
    ids = torch.zeros(64, dtype=torch.long)
    ids[:length] = torch.randint(1, 3000, (length,), generator=g)
    rows.append({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": i % 3})

model = BertForSequenceClassification(config)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=10)
model.train()
for batch in DataLoader(rows, shuffle=True, batch_size=16):
    batch = {k: v.to(device) for k, v in batch.items()}
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
    print(loss.item())
