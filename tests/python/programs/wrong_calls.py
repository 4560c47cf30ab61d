"""Makes every wrong call so many times, and prints how much memory was in use after each round."""

import json
import sys
import tracemalloc

import bad_inputs

rounds, traced = int(sys.argv[1]), sys.argv[2] == "traced"
if traced:
    tracemalloc.start()
print(json.dumps(bad_inputs.measure(rounds, traced)))
