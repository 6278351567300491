#!/bin/bash
# Gets ggml at the commit that the results name and builds its shared libraries in build/peers/ggml:
#   bench/cpu/get_ggml.sh            clone from its public repository
#   bench/cpu/get_ggml.sh FOLDER     build a copy that is already there
# Then: build/venv/bin/python bench/cpu/run.py --ggml build/peers/ggml/build/src
set -euo pipefail
cd "$(dirname "$0")/../.."
repository=https://github.com/ggml-org/ggml
commit=d99724f2b141fed9e1a9f402213506c081433465
target=build/peers/ggml
source=${1:-$target/source}
mkdir -p "$target"
if [ $# -eq 0 ] && [ ! -d "$source/.git" ]; then
  git init -q "$source"
  git -C "$source" fetch -q --depth 1 "$repository" "$commit"
  git -C "$source" checkout -q FETCH_HEAD
fi
cmake -S "$source" -B "$target/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
  -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF
cmake --build "$target/build" --target ggml-cpu --parallel "$(scripts/jobs.sh)"
echo "$target/build/src"
