#!/usr/bin/env bash
# Runs the programs of the bundle on a GPU host, and writes the results to a folder:
#   ./run.sh [RESULTS] [verify|conformance|tests|benches|bench|cudarc|torch|reserve|distributed ...]
# The parts torch, reserve and distributed run only if named. They need a Python with torch, as python3 or
# $TORCH_PYTHON; reserve also needs Triton, JAX, CuPy, nvcc and headers of CUPTI, and distributed two GPUs.
set -uo pipefail
if [ "$(uname -m)" != @HOST@ ]; then
    echo "this bundle was built for @HOST@, and this host is $(uname -m): build it there" >&2
    exit 1
fi
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-results}
shift || true
parts=${*:-verify conformance tests benches bench cudarc}
mkdir -p "$results"
failed=0

step() { # name, command...
    echo "== $1"
    "${@:2}" || { echo "== $1: FAILED ($?)"; failed=1; }
}

kept() { # file, command...: also writes the output to the file; the status is the command's
    "${@:2}" | tee "$1"
}

{
    echo "commit @COMMIT@, $(date -u +%Y-%m-%d)"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
} | tee "$results/about.txt"

for part in $parts; do
    case $part in
        verify)
            step verify-16-24 "$here/green-ctx" --driver cuda verify --counts 16,24 --svg "$results/verify-16-24.svg"
            "$here/green-ctx" --driver cuda --json verify --counts 16,24 >"$results/verify-16-24.json"
            step verify-8-24-100 "$here/green-ctx" --driver cuda verify --counts 8,24,100
            "$here/green-ctx" --driver cuda --json verify --counts 8,24,100 >"$results/verify-8-24-100.json"
            step verify-fine "$here/green-ctx" --driver cuda verify --counts 6,10 --fine
            "$here/green-ctx" --driver cuda --json info >"$results/info.json"
            ;;
        conformance)
            step conformance "$here/conformance" --driver cuda --out "$results/conformance.jsonl"
            ;;
        tests)
            step everything "$here/everything"
            # One test at a time: the tests share the device and its ledger.
            GREEN_CTX_DRIVER=cuda step tests "$here/hardware" --test-threads=1 --skip endurance::
            GREEN_CTX_DRIVER=cuda GREEN_CTX_SECONDS=${GREEN_CTX_SECONDS:-60} \
                step endurance "$here/hardware" endurance:: --test-threads=1 --nocapture
            ;;
        benches)
            GREEN_CTX_DRIVER=cuda GREEN_CTX_RATIOS=$results/calls.json \
                step benches kept "$results/calls.txt" "$here/calls" --bench --quiet
            ;;
        bench)
            step bench "$here/green-ctx-bench" run --driver cuda --commit @COMMIT@ \
                ${CUBLAS:+--cublas "$CUBLAS"} --out "$results/bench.json"
            step bench-plot "$here/green-ctx-bench" plot "$results/bench.json" --out "$results/bench.svg"
            step bench-check "$here/green-ctx-bench" check "$results/bench.json"
            ;;
        cudarc)
            if [ -n "${CUBLAS:-}" ]; then
                folder=$CUBLAS
                [ -d "$folder" ] || folder=$(dirname "$folder")
                LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
                    step cudarc kept "$results/cudarc.json" "$here/cudarc_gemm" --json
            else
                echo "== cudarc: skipped; set CUBLAS to the path of a libcublas.so or of its folder"
            fi
            ;;
        torch | reserve | distributed)
            python=${TORCH_PYTHON:-python3}
            site=$(cd "$results" && pwd)/site
            rm -rf "$site"
            # In a separate folder, so that the machine's Python stays unchanged. It may lack pip.
            if "$python" -m pip --version >/dev/null 2>&1; then
                step torch-install "$python" -m pip install --quiet --no-index --no-deps \
                    --target "$site" "$here"/torch/*.whl
            else
                step torch-install "$python" -m zipfile -e "$here"/torch/*.whl "$site"
            fi
            export PYTHONPATH=$site
            if [ "$part" = torch ]; then
                step torch "$python" "$here/torch/test_torch.py" "$results/torch.json"
                step placement "$python" "$here/torch/placement.py" "$results/placement.json"
                step everything "$python" "$here/torch/everything.py"
                step pages "$python" "$here/torch/pages.py" "$here/pages"
                step entering "$python" "$here/torch/entering.py" "$results/entering.json"
                step captures "$python" "$here/torch/captures.py" "$results/captures.json"
                step exits "$python" "$here/torch/exits.py" "$results/exits.json"
                step libraries "$python" "$here/torch/libraries.py" "$results/libraries.json"
                step workloads "$python" "$here/torch/workloads.py" "$results/workloads.json"
                step persistent "$python" "$here/torch/persistent.py" "$results/persistent.json"
                step compiling "$python" "$here/torch/compiling.py" "$results/compiling.json"
                step tuning "$python" "$here/torch/tuning.py" "$results/tuning.json" "$results/outcome.json"
                step decode-beside-prefill kept "$results/decode_beside_prefill.txt" \
                    "$python" "$here/torch/decode_beside_prefill.py"
                step serving-loop kept "$results/serving_loop.txt" "$python" "$here/torch/serving_loop.py"
            elif [ "$part" = reserve ]; then
                step reserved "$python" "$here/torch/reserved.py" "$results/reserved.json"
                step reserved-programs "$python" "$here/torch/reserved_programs.py" "$results/reserved_programs.json" \
                    --in-front "$here/in_front" --seconds "${GREEN_CTX_SECONDS:-60}"
                step reserved-clients "$python" "$here/torch/reserved_clients.py" "$results/reserved_clients.json" \
                    --in-front "$here/in_front"
            else
                step distributed "$python" "$here/torch/distributed.py" "$results/distributed.json"
                step reserved-clients "$python" "$here/torch/reserved_clients.py" "$results/reserved_clients_2.json" \
                    --in-front "$here/in_front" --two
            fi
            unset PYTHONPATH
            rm -rf "$site"
            ;;
        *)
            echo "unknown part $part; the parts are verify, conformance, tests, benches, bench, cudarc," \
                "torch, reserve and distributed"
            failed=1
            ;;
    esac
done
exit $failed
