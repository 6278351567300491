#!/usr/bin/env bash
# Time decode and append on a Hopper card beside PyTorch and FlashInfer, all in one run.
#   bench/h200/run.sh BINARIES OUT [FLASHINFER]
# BINARIES   folder with decode_bench and append_bench (target mpfa_bench_h200)
# OUT        gets decode.jsonl, append.jsonl and decode_peers.json, from which collect.py makes results and plots
# FLASHINFER folder with what pack_flashinfer.py packed; left out, only PyTorch is timed
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
binaries=$1 out=$2 flashinfer=${3:-}
mkdir -p "$out"
# Kernels of FlashInfer are built at first use: one a processor at the same time, before anything is timed.
if [ -n "$flashinfer" ]; then
  build() {
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    PYTHONPATH=$flashinfer:$here python3 -c "import peers; peers.$1()" >/dev/null &
  }
  for heads in "32, 8, 128" "64, 8, 64" "16, 2, 256"; do
    for kind in bf16 fp8 nvfp4; do build "flashinfer_call(peers.Case(1, 4096, 1, $heads), '$kind')"; done
  done
  for heads in "64, 8, 64, 128" "16, 8, 256, 1024" "32, 8, 128, 4096"; do
    for kind in bf16 fp8 nvfp4; do build "flashinfer_call(peers.Case(1, 16384, 1, $heads), '$kind')"; done
    build "xqa_call(peers.Case(1, 16384, 1, $heads))"
  done
  for heads in "32, 8, 128" "64, 8, 128" "128, 8, 128" "64, 8, 64" "16, 2, 256"; do
    for tokens in 1 2 4 8; do build "xqa_call(peers.Case(1, 4096, $tokens, $heads))"; done
  done
  wait
fi
"$binaries/decode_bench" | tee "$out/decode.jsonl"
"$binaries/append_bench" | tee "$out/append.jsonl"
python3 "$here/peers.py" --out "$out/decode_peers.json" ${flashinfer:+--flashinfer "$flashinfer"}
