#!/usr/bin/env bash
# Regenerates the committed results of the model evaluation: bench/results/eval/<model>.json.
# Takes about 20 minutes (2048 tokens per recipe and model); needs an otherwise idle machine for the speeds to mean anything.
#   bench/eval/run_eval.sh [smollm2-135m|gemma3-270m ...]
set -euo pipefail
cd "$(dirname "$0")/../.."

results=bench/results/eval
recipes='bf16,fp8,fp8_loglin,int8,int4,int4;centre=none,nvfp4,nvfp4;centre=none,nvfp4_4over6,mxfp4,mxfp4;centre=none'
recipes+=',mxfp4_ocp,mxattention,mxattention;centre=mean,int4_int8,mpfa,mpfa_static,direct_p_fast,direct_p_accurate'
recipes+=',sage2,sage3,bitdecoding_nvfp4,turboquant_4bit'
stressed='bf16,int4,int4;centre=none,nvfp4,nvfp4;centre=none,mxfp4,mxfp4;centre=none,mpfa_static'
# What the two halves of rank-one smoothing do: neither, K alone, both, and both with the term itself left out.
stressed+=',mpfa;centre=none;q_centre=none,mpfa;q_centre=none,mpfa,mpfa;rank_one=off'

models=("$@")
[ ${#models[@]} -gt 0 ] || models=(smollm2-135m gemma3-270m)
mkdir -p "$results" build/eval
for model in "${models[@]}"; do
  build/venv/bin/mpfa-eval --model "$model" --recipes "$recipes" \
    --context 2048 --decode 64 --chunk 256 --stress kbias --stress-recipes "$stressed" \
    --cache-dir build/models \
    --json "$results/$model.json" --html "build/eval/$model.html"
done
