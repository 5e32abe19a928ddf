"""Pretrain a tiny Llama from a configuration."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=2000,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = LlamaForCausalLM(config).to(device)
model.train()
print(model.num_parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

for step in range(6):
    input_ids = torch.randint(0, config.vocab_size, (4, 128)).to(device)
    outputs = model(input_ids=input_ids, labels=input_ids)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, outputs.loss.item())
