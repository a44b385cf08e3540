"""torch.compile(linear + cross_entropy) on one GPU: milliseconds and working memory, one JSON row a shape.

The peer's forward and backward with bf16 hidden states and weight, as performance comparisons want it:
working memory is the peak above inputs and gradients, bf16 dX and dW counted as gradients.
"""

import json
import statistics

import torch

SHAPES = [(8192, 2048, 151552), (8192, 2304, 256000), (8192, 4096, 128256)]


def step(hidden, weight, targets):
    logits = torch.nn.functional.linear(hidden, weight)
    return torch.nn.functional.cross_entropy(logits.float(), targets)


def measure(rows, width, vocab, repeats=12):
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device="cuda").bfloat16().requires_grad_()
    # A logit spread of about 3, as in the project's own benchmark.
    weight = (torch.randn(vocab, width, device="cuda") * 3 / width**0.5).bfloat16().requires_grad_()
    targets = torch.randint(vocab, (rows,), device="cuda")
    compiled = torch.compile(step)
    times = []
    for repeat in range(repeats):
        hidden.grad = weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        compiled(hidden, weight, targets).backward()
        end.record()
        torch.cuda.synchronize()
        if repeat >= 4:
            times.append(begin.elapsed_time(end))
    gradients = 2 * (hidden.numel() + weight.numel())
    working = torch.cuda.max_memory_allocated() - before - gradients
    return statistics.median(times), working / 2**20


for shape in SHAPES:
    milliseconds, mebibytes = measure(*shape)
    print(
        json.dumps(
            {
                "peer": "torch.compile",
                "torch": torch.__version__,
                "card": torch.cuda.get_device_name(),
                "rows": shape[0],
                "hidden": shape[1],
                "vocab": shape[2],
                "ms": round(milliseconds, 2),
                "working_mib": round(mebibytes),
            }
        ),
        flush=True,
    )
