#!/usr/bin/env bash
# Builds the libFuzzer targets and runs each, or those named, for the given number of seconds, one after the other.
# New inputs stay in build/fuzz/corpus; an input that breaks something is left in build/fuzz/crashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET...]}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(recipe safetensors layout page_loader capi)
case $seconds in '' | *[!0-9]* | 0)
  echo "fuzz: '$seconds' is not a number of seconds; give a whole number above 0" >&2
  exit 2
  ;;
esac

[ build/fuzz/build.ninja -nt CMakePresets.json ] || cmake --preset fuzz
cmake --build --preset fuzz --parallel "$(scripts/jobs.sh)" --target "${targets[@]/#/mpfa_fuzz_}"
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target" build/fuzz/crashes
  # The memory limit turns a header that asks for terabytes into a finding. The timeout is wall clock: a machine with
  # other work may need long for a short input.
  "build/fuzz/tests/fuzz/mpfa_fuzz_$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=60 \
    -artifact_prefix="build/fuzz/crashes/$target-" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"
done
