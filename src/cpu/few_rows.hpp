// Decode: with few query rows the codes are expanded in registers instead of into a tile.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// Where the output of a channel stands until restore_channels.
[[nodiscard]] std::int64_t output_place(const Scratch& scratch, std::int64_t channel);

/// Decides for a task whether K and V are read as words of codes.
void choose_words(const Task& task, Scratch& scratch);
/// Lays the queries of a task with few rows out.
void start_words(const Task& task, Scratch& scratch);
/// K or V of keys [first + c.begin, first + c.end) as floats in word order: out[column * stride + ..].
void expand_words(const Task& task, std::int64_t first, KeyRange c, bool is_k, float* out, std::int64_t stride,
                  Scratch& scratch);
/// Scores of keys [first + c.begin, first + c.end), unscaled, to scratch.s.
void score_words(const Task& task, std::int64_t first, KeyRange c, Scratch& scratch);
/// scratch.spare_o = scratch.packed.o (order of value_index()) + P V over the same keys, those left out whose bit is
/// set. False when a sum is NaN or Inf, which one in V makes even where its key has no weight.
[[nodiscard]] bool sum_words(const Task& task, std::int64_t first, KeyRange c, std::uint64_t left_out,
                             Scratch& scratch);
/// scratch.packed.o from value_index() to the order of the channels.
void restore_channels(const Task& task, Scratch& scratch);

}  // namespace mpfa::cpu
