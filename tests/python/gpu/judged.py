"""Summarises a folder of judge.py: `python judged.py FOLDER COMMIT DATE [GRIDS] > tuning.json`.

GRIDS is the commit at which the grids were measured, if that was an earlier one.

The summary has each pair's grid and arms without partitions, each outcome's claim with what was measured, and the largest gain
that any comparison of a pair measured.
"""

import json
import statistics
import sys
from pathlib import Path


def rounded(value):
    return [rounded(each) for each in value] if isinstance(value, list) else round(value, 5)


def name(arm):
    kind, *how = arm
    if kind == "priority":
        return f"priorities {how[0]} {how[1]}"
    if kind != "partition":
        return kind
    ordered = f", priorities {how[2]} {how[3]}" if any(how[2:]) else ""
    return f"{how[0]} / {how[1]}{ordered}"


def scores(pairs):
    return {name(arm): rounded(values) for arm, values in pairs}


def best(outcome):
    """The best partition of a comparison, the best arm without partitions, and the gain."""
    means = {arm: statistics.mean(values) for arm, values in outcome["scores"].items()}
    ours = max((arm for arm in means if "/" in arm), key=means.get)
    plain = max((arm for arm in means if "/" not in arm), key=means.get)
    return {"partition": ours, "plain": plain, "gain": rounded(means[ours] / means[plain] - 1)}


def main():
    folder, commit, date, *grids = Path(sys.argv[1]), *sys.argv[2:]
    pairs, outcomes = {}, []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if "judged" in record:
            judged, outcome = record["judged"], record["outcome"]
            pair, number = path.stem.rsplit("-", 1)
            claim, interval = judged.pop("claim")
            kind, measured = judged.pop("kind"), scores(judged.pop("scores"))
            about = {"name": path.stem, "pair": pair, "kind": kind, "claim": rounded(claim)}
            low, high = interval
            holds = low <= judged["gain"] <= high
            outcomes.append(
                about
                | {"interval": rounded(interval), "holds": holds, "seconds": round(outcome["seconds"], 2)}
                | {key: rounded(value) for key, value in judged.items()}
                | {"scores": measured}
            )
        elif "grid" in record:
            plain, grid = scores(record["plain"]), scores(record["grid"])
            pairs[path.stem] = {"alone": rounded(record["alone"]), "plain": plain, "grid": grid}
    for pair, record in pairs.items():
        found = [best(outcome) for outcome in outcomes if outcome["pair"] == pair]
        record["best"] = max(found, key=lambda each: each["gain"])
        record["least_gain"] = min(each["gain"] for each in found)
    regrets = [outcome["regret"] for outcome in outcomes]
    half_widths = [rounded((outcome["interval"][1] - outcome["interval"][0]) / 2) for outcome in outcomes]
    summary = {
        "outcomes": len(outcomes),
        "partitions": sum(outcome["kind"] == "partition" for outcome in outcomes),
        "intervals_that_hold": sum(outcome["holds"] for outcome in outcomes),
        "median_regret": rounded(statistics.median(regrets)),
        "largest_regret": max(regrets),
        "median_half_width": rounded(statistics.median(half_widths)),
        "largest_half_width": max(half_widths),
        "longest_seconds": max(outcome["seconds"] for outcome in outcomes),
    }
    about = json.loads((folder / "about.json").read_text()) | {"commit": commit, "date": date}
    about["grids_commit"] = (grids or [commit])[0]
    print("{" + f'"about": {json.dumps(about)},\n"summary": {json.dumps(summary)},\n"pairs": {{')
    print(",\n".join(f"{json.dumps(pair)}: {json.dumps(record)}" for pair, record in pairs.items()))
    print('},\n"outcomes": [\n' + ",\n".join(map(json.dumps, outcomes)) + "\n]}")


if __name__ == "__main__":
    main()
