// The tensors of one attention call, as a safetensors file holds them.
#pragma once

#include <string>
#include <vector>

#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa::cli {

struct Operand {
  std::vector<std::byte> bytes;
  TensorView view;  // over bytes, contiguous
};

struct Inputs {
  Operand q;     // [batch, sq, q_heads, head_dim]
  Operand k, v;  // [batch, sk, kv_heads, head_dim | head_dim_v]
  // Empty when the file has none:
  std::vector<float> k_mean;  // [kv_heads, head_dim]
  std::vector<float> q_mean;  // [q_heads, head_dim]
  std::vector<float> v_mean;  // [kv_heads, head_dim_v]
  std::vector<float> sinks;   // [q_heads]
};

/// Reads q, k, v (F32, BF16 or F16; rank 3 is a batch of one) and the optional F32 tensors k_mean, q_mean, v_mean,
/// sinks, and checks that they belong together.
[[nodiscard]] Result<Inputs> read_inputs(const std::string& path);

}  // namespace mpfa::cli
