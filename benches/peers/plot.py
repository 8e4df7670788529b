"""Draws a table of peers: plot.py TABLE.tsv OUT.svg [DTYPE]. Time over bytes, both axes logarithmic, a panel for each
collective and number of ranks. Needs matplotlib. The table's columns are those of the bench that loads plugin.rs: op, impl,
ranks, dtype, bytes, us_cold, ..., check in the last."""

import collections
import csv
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

# The same file for the same table.
plt.rcParams.update({"svg.hashsalt": "crossccl", "font.size": 8})

table, out, dtype = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "f32"
panels = collections.defaultdict(lambda: collections.defaultdict(list))
with open(table, newline="") as file:
    for row in csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t"):
        if row["dtype"] != dtype or row["impl"] == "empty":
            continue
        if row["check"] != "ok":
            sys.exit(f"{table}: a wrong result: {row}")
        panels[row["op"], int(row["ranks"])][row["impl"]].append((int(row["bytes"]), float(row["us_cold"])))
if not panels:
    sys.exit(f"{table}: no rows of {dtype}")

ops = sorted({op for op, _ in panels})
ranks = sorted({n for _, n in panels})
figure, axes = plt.subplots(len(ops), len(ranks), figsize=(4 * len(ranks), 3.2 * len(ops)), sharex=True, squeeze=False)
for i, op in enumerate(ops):
    for j, n in enumerate(ranks):
        axis = axes[i][j]
        for name, points in sorted(panels[op, n].items(), key=lambda item: item[0] != "crossccl"):
            points.sort()
            wide = 2.2 if name == "crossccl" else 1.0
            axis.plot(*zip(*points), label=name, linewidth=wide, marker=".", markersize=3)
        axis.set(xscale="log", yscale="log", title=f"{op}, {n} ranks, {dtype}")
        axis.set_xscale("log", base=2)
        axis.grid(True, which="major", linewidth=0.3)
        if i == len(ops) - 1:
            axis.set_xlabel("bytes of the message, or of each rank's input")
        if j == 0:
            axis.set_ylabel("us, cold")
        axis.legend(fontsize=6)
figure.tight_layout()
figure.savefig(out, metadata={"Date": None})
