"""Measures how two jobs of a speech model scale with their SMs, each twice, in processes of their own.

`python curves.py FOLDER` writes curves.json and a picture of each job. The jobs are a decode step of 16 sequences, which
reads weights and caches, and the decoder of a vocoder, which convolves. The page docs/curve.md shows them.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import green_ctx_torch

BATCH, LAYERS, WIDTH, HEADS, PAST = 16, 8, 2048, 16, 1024
KIND = {"device": "cuda", "dtype": torch.bfloat16}


class Layer(nn.Module):
    """A layer of a transformer that decodes one token of each sequence."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH, **KIND), nn.LayerNorm(WIDTH, **KIND)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, **KIND), nn.Linear(WIDTH, WIDTH, **KIND)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, **KIND), nn.Linear(4 * WIDTH, WIDTH, **KIND)
        self.past = torch.randn(2, BATCH, HEADS, PAST, WIDTH // HEADS, **KIND)

    def forward(self, tokens):
        query, key, value = self.qkv(self.first(tokens)).view(3, BATCH, HEADS, 1, -1)
        keys, values = (torch.cat([past, new], 2) for past, new in zip(self.past, (key, value)))
        found = functional.scaled_dot_product_attention(query, keys, values)
        tokens = tokens + self.out(found.reshape(BATCH, WIDTH))
        return tokens + self.down(functional.gelu(self.up(self.second(tokens))))


class Residual(nn.Module):
    """Convolutions with growing dilation, each added to its input."""

    def __init__(self, channels, kernel):
        super().__init__()
        steps = [nn.Conv1d(channels, channels, kernel, dilation=by, padding="same", **KIND) for by in (1, 3, 5)]
        self.steps = nn.ModuleList(steps)

    def forward(self, sound):
        for step in self.steps:
            sound = sound + step(functional.leaky_relu(sound, 0.1))
        return sound


class Vocoder(nn.Module):
    """A decoder from 80 mel bands to samples: four times, it upsamples and applies residual convolutions."""

    def __init__(self):
        super().__init__()
        self.begin, self.end = nn.Conv1d(80, 512, 7, padding=3, **KIND), nn.Conv1d(32, 1, 7, padding=3, **KIND)
        ups, blocks = [], []
        for level, by in enumerate((8, 8, 2, 2)):
            channels = 512 >> level
            ups.append(nn.ConvTranspose1d(channels, channels // 2, 2 * by, by, by // 2, **KIND))
            blocks.append(nn.ModuleList(Residual(channels // 2, kernel) for kernel in (3, 7, 11)))
        self.ups, self.blocks = nn.ModuleList(ups), nn.ModuleList(blocks)

    def forward(self, mel):
        sound = self.begin(mel)
        for up, blocks in zip(self.ups, self.blocks):
            sound = up(functional.leaky_relu(sound, 0.1))
            sound = sum(block(sound) for block in blocks) / len(blocks)
        return torch.tanh(self.end(functional.leaky_relu(sound, 0.1)))


def decode():
    layers, tokens = nn.Sequential(*(Layer() for _ in range(LAYERS))), torch.randn(BATCH, WIDTH, **KIND)
    return lambda: layers(tokens)


def vocoder():
    decoder, mel = Vocoder(), torch.randn(1, 80, 256, **KIND)
    return lambda: decoder(mel)


JOBS = {"decode": decode, "vocoder": vocoder}


def measure(name, picture):
    with torch.no_grad():
        curve = green_ctx_torch.curve(JOBS[name](), name=name)
    print(curve, file=sys.stderr)
    Path(picture).write_text(curve.to_svg(), encoding="utf-8")
    print(json.dumps(json.loads(curve.to_json())))


def apart(first, second):
    """By how much the second curve differs at each number of SMs, and whether the blocks of both overlap."""
    rows = []
    for one, other in zip(first["points"], second["points"]):
        ends = [(min(each["blocks_us"]), max(each["blocks_us"])) for each in (one, other)]
        overlap = ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]
        rows.append({"sms": one["sms"], "ratio": other["median_us"] / one["median_us"], "overlap": overlap})
    return rows


def main(folder):
    found = {"torch": torch.__version__}
    for name in JOBS:
        runs = []
        for run in range(2):
            command = [sys.executable, __file__, name, folder / f"curve-{name}.svg"]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            runs.append(json.loads(done.stdout))
        found[name] = {"runs": runs, "apart": apart(*runs)}
        for row in found[name]["apart"]:
            holds = abs(row["ratio"] - 1) <= 0.06 or row["overlap"]
            print(f"{name} {row['sms']:4} SMs: second run {row['ratio']:.3f} x{'' if holds else ', OUTSIDE'}")
    (folder / "curves.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] in JOBS:
        measure(sys.argv[1], sys.argv[2])
    else:
        main(Path(sys.argv[1]))
