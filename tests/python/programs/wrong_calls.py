"""Makes every wrong call in each of several rounds, and prints the memory in use after each round."""

import json
import sys
import tracemalloc

import bad_inputs

rounds, traced = int(sys.argv[1]), sys.argv[2] == "traced"
if traced:
    tracemalloc.start()
print(json.dumps(bad_inputs.measure(rounds, traced)))
