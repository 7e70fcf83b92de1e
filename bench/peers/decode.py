"""The model of examples/decode.lua in PyTorch, eagerly and as a graph, on the same weights, which
`gpulua examples/decode.lua TOKENS FOLDER` writes. Usage: python3 bench/peers/decode.py TOKENS FOLDER"""
import sys
import time

import numpy
import torch
import torch.nn.functional as F

count, folder = int(sys.argv[1]), sys.argv[2]
LAYERS, WIDTH, VOCABULARY, CONTEXT, HEADS = 4, 64, 256, 1024, 4
SIZE = WIDTH // HEADS
torch.backends.cuda.matmul.allow_tf32 = False


def load(name, rows, columns):
    """As the kernels read it, row by row; for x @ w."""
    flat = torch.from_numpy(numpy.load(f"{folder}/{name}.npy").copy()).cuda()
    return flat.view(rows, columns).T.contiguous()


words = load("words", VOCABULARY, WIDTH).T  # [token, i]
places = load("places", CONTEXT, WIDTH).T
last = load("last", VOCABULARY, WIDTH)
layers = [
    {
        "qkv": load(f"qkv{l}", 3 * WIDTH, WIDTH),
        "out": load(f"out{l}", WIDTH, WIDTH),
        "up": load(f"up{l}", 4 * WIDTH, WIDTH),
        "down": load(f"down{l}", WIDTH, 4 * WIDTH),
        "keys": torch.zeros(CONTEXT, HEADS, SIZE, device="cuda"),
        "values": torch.zeros(CONTEXT, HEADS, SIZE, device="cuda"),
    }
    for l in range(1, LAYERS + 1)
]
token = torch.zeros(1, dtype=torch.long, device="cuda")
at = torch.zeros(1, dtype=torch.long, device="cuda")
written = torch.full((CONTEXT,), -1, dtype=torch.long, device="cuda")
positions = torch.arange(CONTEXT, device="cuda")


def norm(x):
    return x * torch.rsqrt((x * x).mean() + 1e-5)


def step():
    x = words[token] + places[at]
    mask = torch.where(positions <= at, 0.0, float("-inf"))
    for l in layers:
        q, k, v = (norm(x) @ l["qkv"]).view(3, 1, HEADS, SIZE)
        l["keys"].index_copy_(0, at, k)
        l["values"].index_copy_(0, at, v)
        y = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            l["keys"].transpose(0, 1).unsqueeze(0),
            l["values"].transpose(0, 1).unsqueeze(0),
            attn_mask=mask.view(1, 1, 1, CONTEXT),
        )
        x = x + y.reshape(1, WIDTH) @ l["out"]
        x = x + F.gelu(norm(x) @ l["up"]) @ l["down"]
    best = (norm(x) @ last).argmax(dim=1)
    token.copy_(best)
    written.index_copy_(0, at, best)


def decode(name, run):
    token.fill_(1)
    at.fill_(0)
    run()
    token.fill_(1)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(count):
        at.fill_(i)
        run()
    tokens = written[:count].tolist()
    print(f"{name} {count / (time.perf_counter() - start):.0f} tokens/s")
    return tokens


with torch.no_grad():
    eager = decode("torch_eager", step)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graphed = decode("torch_graph", graph.replay)
print("tokens", *eager)
print("# the graph wrote", "the same" if eager == graphed else "others")
