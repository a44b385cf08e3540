#!/usr/bin/env python3
"""torch.compile(linear + cross_entropy), forward and backward, on one GPU: time and working memory.

    python3 tests/bench/peer_torch.py 8192 4096 128256      # N rows, D hidden, V vocabulary

bfloat16 hidden states and weight, mean over int64 targets, logits with a spread of about 3; one JSON
line for each of two rows, which are timed by turns in one process together with the three matrix
products alone:
    bf16        gradients as autograd leaves them, dX and dW in bfloat16
    main_grad   dW also added to a float32 main_grad, as Megatron does without its fused kernel, in
                one pass over memory and without a float32 copy of dW

    ms            median between two events on the stream, of the --iterations after --warmup
    products_ms   logits, dX and dW alone through torch.matmul, bfloat16 out: how fast the card was
    working_mib   the allocator's peak in a step above what was allocated before it and above the
                  gradients that the step leaves for its caller (bf16: dX and dW; main_grad: dX, the
                  bfloat16 dW being on its way). cuBLAS's workspace is there before and not in it
"""

import argparse
import json
import statistics

import torch


def head(hidden, weight, targets):
    logits = torch.nn.functional.linear(hidden, weight)
    return torch.nn.functional.cross_entropy(logits.float(), targets)


class Peer:
    def __init__(self, rows, width, vocab):
        torch.manual_seed(0)
        self.hidden = torch.randn(rows, width, device="cuda").bfloat16().requires_grad_()
        weight = torch.randn(vocab, width, device="cuda", dtype=torch.bfloat16)
        self.weight = weight.mul_(3 / width**0.5).requires_grad_()
        self.targets = torch.randint(vocab, (rows,), device="cuda")
        self.main_grad = torch.zeros(vocab, width, device="cuda")
        # What the products alone write to.
        self.logits = torch.empty(rows, vocab, device="cuda", dtype=torch.bfloat16)
        self.d_hidden = torch.empty_like(self.hidden)
        self.d_weight = torch.empty_like(self.weight)
        self.compiled = torch.compile(head)

    def bf16(self):
        self.loss = self.compiled(self.hidden, self.weight, self.targets)
        self.loss.backward()

    def with_main_grad(self):
        self.bf16()
        self.main_grad.add_(self.weight.grad)
        self.weight.grad = None

    @torch.no_grad()
    def products(self):
        torch.matmul(self.hidden, self.weight.t(), out=self.logits)
        torch.matmul(self.logits, self.weight, out=self.d_hidden)
        torch.matmul(self.logits.t(), self.hidden, out=self.d_weight)


def timed(peer, step):
    """Milliseconds of a step, and bytes of its peak above what it found and what it leaves."""
    peer.hidden.grad = peer.weight.grad = peer.loss = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    kept = sum(t.grad.nbytes for t in (peer.hidden, peer.weight) if t.grad is not None)
    return begin.elapsed_time(end), torch.cuda.max_memory_allocated() - before - kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("rows", "hidden", "vocab"):
        parser.add_argument(name, type=int)
    parser.add_argument("--warmup", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()

    peer = Peer(options.rows, options.hidden, options.vocab)
    steps = {"bf16": peer.bf16, "main_grad": peer.with_main_grad, "products": peer.products}
    times = {name: [] for name in steps}
    working = dict.fromkeys(steps, 0)
    for turn in range(-options.warmup, options.iterations):
        # Backwards every other turn: no step always comes after the same one.
        for name in list(steps) if turn % 2 == 0 else list(steps)[::-1]:
            milliseconds, peak = timed(peer, steps[name])
            if turn >= 0:
                times[name].append(milliseconds)
                working[name] = max(working[name], peak)

    flops = 6 * options.rows * options.hidden * options.vocab
    for name in ("bf16", "main_grad"):
        middle, products = statistics.median(times[name]), statistics.median(times["products"])
        row = {
            "peer": "torch.compile",
            "row": name,
            "problem": f"N{options.rows}_D{options.hidden}_V{options.vocab}_tp1_bf16",
            "ms": round(middle, 3),
            "products_ms": round(products, 3),
            "products_tflops": round(1e-9 * flops / products, 1),
            "working_mib": round(working[name] / 2**20, 1),
            "all_ms": [round(one, 3) for one in times[name]],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "card": torch.cuda.get_device_name(),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
