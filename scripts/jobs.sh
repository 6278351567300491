#!/usr/bin/env bash
# Prints how many compilers may run at once: one per core, and 2 GiB of free memory for each.
set -euo pipefail
cores=$(nproc)
by_memory=$(awk '/^MemAvailable:/ { print int($2 / (2 * 1024 * 1024)) }' /proc/meminfo)
jobs=$((cores < by_memory ? cores : by_memory))
echo $((jobs < 1 ? 1 : jobs))
