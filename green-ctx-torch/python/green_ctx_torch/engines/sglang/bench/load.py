"""Requests that arrive at random, the same for every arm."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """A stream of requests, made of a seed.

    `arrivals` is `poisson`, or `bursty`: three requests a moment on average, at a third of the moments.
    """

    rate: float
    seconds: float
    seed: int = 1
    arrivals: str = "poisson"
    prompt_median: int = 1500
    prompt_cap: int = 8000
    output_median: int = 150
    output_cap: int = 600
    sigma: float = 0.6
    shared_prefix: int = 0
    """How many tokens all prompts begin with, for a radix cache."""

    @property
    def name(self) -> str:
        prefix = f"-prefix{self.shared_prefix}" if self.shared_prefix else ""
        return f"{self.arrivals}-{self.rate:g}-{self.seconds:g}s-seed{self.seed}{prefix}"

    def requests(self, vocabulary: int) -> list[Request]:
        """The requests in the order of their arrival."""
        # Lengths and arrivals have generators of their own, so that arrivals at another rate bring the same prompts.
        moments = random.Random(f"moments {self.seed}")
        lengths = random.Random(f"lengths {self.seed}")
        tokens = random.Random(f"tokens {self.seed}")
        prefix = tokens.choices(range(16, vocabulary - 16), k=self.shared_prefix)
        made: list[Request] = []
        now = 0.0
        while True:
            burst = 1
            if self.arrivals == "bursty":
                # A geometric number of mean 3.
                burst = 1 + int(math.log(1 - moments.random()) / math.log(2 / 3))
            elif self.arrivals != "poisson":
                raise ValueError(f"arrivals are poisson or bursty, and not {self.arrivals!r}")
            mean = 3.0 if self.arrivals == "bursty" else 1.0
            now += moments.expovariate(self.rate / mean)
            if now >= self.seconds:
                return made
            for _ in range(burst):
                length = self._length(lengths, self.prompt_median, self.prompt_cap, 4)
                output = self._length(lengths, self.output_median, self.output_cap, 2)
                rest = tokens.choices(range(16, vocabulary - 16), k=max(1, length - len(prefix)))
                made.append(Request(now, [*prefix, *rest], output))

    def _length(self, random: random.Random, median: int, cap: int, least: int) -> int:
        return min(cap, max(least, round(random.lognormvariate(math.log(median), self.sigma))))


@dataclass(frozen=True)
class Request:
    """One request."""

    arrival: float
    """Seconds from the start."""

    prompt: list[int]
    output: int
    """How many tokens are generated."""
