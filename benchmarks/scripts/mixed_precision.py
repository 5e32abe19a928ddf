"""Mixed precision with a gradient scaler, as in the recipes."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16


def make_model(in_size, out_size, num_layers):
    layers = []
    for _ in range(num_layers - 1):
        layers.append(torch.nn.Linear(in_size, in_size))
        layers.append(torch.nn.GELU())
    layers.append(torch.nn.Linear(in_size, out_size))
    return torch.nn.Sequential(*layers).to(device)


net = make_model(768, 768, 5)
opt = torch.optim.Adam(net.parameters(), lr=0.001)
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
loss_fn = torch.nn.MSELoss().to(device)
data = [torch.randn(512, 768, device=device) for _ in range(4)]
targets = [torch.randn(512, 768, device=device) for _ in range(4)]

for input, target in zip(data, targets):
    with torch.autocast(device_type=device, dtype=dtype):
        output = net(input)
        loss = loss_fn(output, target)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    print(loss.detach())
