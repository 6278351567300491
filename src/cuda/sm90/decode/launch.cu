#include <algorithm>
#include <type_traits>
#include <utility>

#include "cuda/sm90/decode/kernels.h"
#include "cuda/sm90/decode/launch.h"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/expand/kernels.h"
#include "cuda/sm90/verify/kernels.h"

namespace mpfa::sm90 {
namespace {

template <int kHeadDim, std::size_t... i>
DecodeKernel kernel_for(OperandPair operands, std::int32_t row_tiles, KernelCase kind, std::int32_t teams,
                        std::index_sequence<i...>) {
  DecodeKernel kernel;
  const auto take = [&](auto found) {
    if (operands != kOperandPairs[found]) return;
    kernel = decode_kernel<kHeadDim, kOperandPairs[found].key, kOperandPairs[found].value>(row_tiles, kind, teams);
  };
  (take(std::integral_constant<std::size_t, i>()), ...);
  return kernel;
}

DecodeKernel kernel_for(std::int32_t head_dim, OperandPair operands, std::int32_t row_tiles, KernelCase kind,
                        std::int32_t teams) {
  constexpr auto kAll = std::make_index_sequence<kOperandPairs.size()>();
  if (head_dim <= 64) return kernel_for<64>(operands, row_tiles, kind, teams, kAll);
  if (head_dim <= 128) return kernel_for<128>(operands, row_tiles, kind, teams, kAll);
  return kernel_for<256>(operands, row_tiles, kind, teams, kAll);
}

/// Row blocks that go over the same keys at the same time, unless that leaves more than 1 of 16 teams idle.
std::int32_t choose_abreast(std::int32_t row_blocks, std::int32_t teams) {
  return teams % row_blocks * 16 <= teams && row_blocks <= teams ? row_blocks : 1;
}

/// Whether 32 bits hold all strides, which saves instructions.
bool has_narrow_strides(const DecodeParams& p) {
  for (const std::int64_t stride :
       {p.q_batch, p.q_row, p.q_head, p.out_batch, p.out_row, p.out_head, p.page_table_stride, p.k.data_head,
        p.k.scale_head, p.v.data_head, p.v.scale_head}) {
    if (stride != static_cast<std::int32_t>(stride)) return false;
  }
  return true;
}

std::int32_t code_unit(const DecodeParams& p) {
  return stride_unit(p.k.data_page | p.v.data_page, p.k.data_row | p.v.data_row);
}
std::int32_t scale_unit(const DecodeParams& p) {
  return stride_unit(p.k.scale_page | p.v.scale_page, p.k.scale_row | p.v.scale_row);
}

bool has_aligned_quads(const DecodeMask& mask) {
  const std::int64_t bytes = mask.additive != 0 ? 4 : 1;
  const auto begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(mask.data));
  return mask.key == bytes && (begin | mask.batch | mask.head | mask.row) % (4 * bytes) == 0;
}

/// Whether a kernel that has it may go the short way. A call of one sequence is cut evenly; of several the kernel has
/// to see the lengths, but for windows, where it does not look: these must be short, or of few outputs. Idle teams may
/// be 1 of 16, or with few tiles as many as there are.
bool may_be_direct(const DecodeParams& p, const DecodeLaunch& l, std::int32_t teams) {
  const bool busy = p.splits * p.batch * p.kv_heads * 17 >= l.blocks * teams * 16 || l.few;
  const bool even = p.window_left < 0 || p.batch == 1 || l.few || l.cluster_log > 0;
  const bool rare = p.cu_seqlens_q != nullptr || p.wide != 0 || p.window_right >= 0;
  return p.fixed_split == 0 && p.splits > 0 && busy && even && !rare && has_narrow_strides(p);
}

/// Limits that hide no key become none, which have shorter ways.
void drop_limits(DecodeParams& p) {
  if (p.window_right == 0) p.causal = 1;
  if (p.causal != 0 || p.sq == 1) p.window_right = -1;
  if (p.window_left >= p.max_kv - 1) p.window_left = -1;
}

/// In clusters of 2^log blocks. cluster: room for what it points to.
cudaLaunchConfig_t launch_config(const DecodeKernel& kernel, std::int32_t blocks, std::int32_t log,
                                 cudaLaunchAttribute& cluster) {
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {1U << log, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = log > 0 ? 1 : 0;
  return config;
}

/// `log`, or less where the device has no room for `clusters` of the most blocks at once: each needs a GPC.
std::int32_t fitting_cluster(const DecodeKernel& kernel, const void* function, std::int32_t log,
                             std::int32_t clusters) {
  if (log < kMostClusterLog) return log;
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config = launch_config(kernel, clusters << log, log, cluster);
  int there = 0;
  const bool known = cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
                     cudaOccupancyMaxActiveClusters(&there, function, &config) == cudaSuccess;
  return known && there >= clusters ? log : kClusterLog;
}

}  // namespace

bool has_decode_kernel(OperandPair operands) {
  return std::find(kOperandPairs.begin(), kOperandPairs.end(), operands) != kOperandPairs.end();
}

bool reaches_pages(const DecodeParams& p) {
  const auto reaches = [&](std::int64_t page, std::int64_t row, std::int64_t unit) {
    return p.num_pages * page + p.page_size * row <= unit << 32;
  };
  const std::int32_t codes = code_unit(p), scales = scale_unit(p);
  const std::int64_t term_bytes = p.rank_one == nullptr ? 0 : p.rank_one_wide != 0 ? 4 : 2;
  return p.num_pages * (p.rank_one_page * term_bytes) <= std::int64_t{kTermUnit} << 32 &&
         reaches(p.k.data_page, p.k.data_row, codes) && reaches(p.v.data_page, p.v.data_row, codes) &&
         reaches(p.k.scale_page, p.k.scale_row, scales) && reaches(p.v.scale_page, p.v.scale_row, scales);
}

void set_scale_groups(const BlockFormat& f, std::int64_t head_dim, DecodePages& pages) {
  const std::int64_t scale = f.scale == ScaleType::f32 ? 4 : f.scale == ScaleType::f16 ? 2 : 0;
  const std::int64_t group = f.block_channels == 0 ? head_dim : f.block_channels;
  pages.scale_bytes = static_cast<std::int32_t>((head_dim + group - 1) / group * scale);
  pages.row_scale = f.block_channels == 0 ? 1 : 0;
  pages.scale_shift = f.block_channels >= 128 ? 2 : f.block_channels == 64 ? 1 : 0;
  for (int i = 0; i < 4; ++i) {
    const bool upper = (2 * i >> pages.scale_shift) % 2 != 0;
    pages.scale_select[i] = pages.scale_shift == 0 ? 0x3210 : upper ? 0x3232 : 0x1010;
  }
}

cudaError_t launch_decode(const DecodeShape& shape, const DecodeLaunch& launch, DecodeParams params, void* workspace,
                          cudaStream_t stream) {
  if (launch.blocks <= 0) return cudaSuccess;
  auto* memory = static_cast<std::uint8_t*>(workspace);
  drop_limits(params);
  params.row_blocks = launch.row_blocks;
  params.head_dim = shape.head_dim;
  params.fixed_split = launch.fixed_split;
  params.least_chunk = launch.least_chunk;
  params.cluster_log = launch.merge_log;
  params.head_div = make_divisor(static_cast<std::uint32_t>(params.kv_heads));
  params.finishes_logits = params.softcap > 0.0F || params.alibi_slopes != nullptr || params.mask.data != nullptr;
  params.mask.quads = has_aligned_quads(params.mask) ? 1 : 0;
  params.code_unit = code_unit(params), params.scale_unit = scale_unit(params);
  const bool general =
      params.finishes_logits != 0 || params.page_means != nullptr || shape.head_dim != kernel_head_dim(shape.head_dim);
  const bool halves = params.plain_keys == kTileKeys / 2 && launch.row_tiles == 1;
  const KernelCase kind = general                          ? KernelCase::general
                          : params.plain_keys == kTileKeys ? KernelCase::plain
                          : halves                         ? KernelCase::halves
                                                           : KernelCase::paged;
  const bool verify = launch.verify && !(launch.groups && kind == KernelCase::plain);
  const DecodeKernel kernel =
      launch.expand ? expand_kernel(shape.head_dim, shape.operands, launch.row_tiles * 8 / kExpandRows)
      : verify      ? verify_kernel(shape.head_dim, shape.operands, launch.row_tiles, launch.teams,
                               params.finishes_logits != 0 ? VerifyCase::masked
                                    : params.p_scale > 0.0F     ? VerifyCase::rounded
                                    : launch.merge_log > 0      ? VerifyCase::merging
                                                                : VerifyCase::plain)
                    : kernel_for(shape.head_dim, shape.operands, launch.row_tiles, kind, launch.teams);
  if (verify && params.p_scale > 0.0F) params.p_scale = verify_p_scale(params.p_scale);
  const std::int32_t outputs = params.kv_heads * launch.row_blocks;
  std::int32_t blocks = launch.blocks;
  params.splits = blocks * kernel.teams / (params.batch * outputs);
  const bool means = params.sequences != nullptr;
  const void* const short_way = params.window_left >= 0 ? (means ? kernel.window_with_means : kernel.window)
                                : means                 ? kernel.with_means
                                                        : kernel.function;
  params.direct =
      kernel.direct && short_way != nullptr && launch.row_blocks == 1 && may_be_direct(params, launch, kernel.teams);
  const void* const function = params.direct != 0 ? short_way : kernel.function;
  if (const cudaError_t e =
          cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
      e != cudaSuccess) {
    return e;
  }
  if (params.direct != 0 && launch.cluster_log >= 0) {
    params.cluster_log = fitting_cluster(kernel, function, launch.cluster_log, params.batch * outputs);
    params.splits = 1 << params.cluster_log;
    if (kernel.teams == 1) blocks = params.batch * outputs << params.cluster_log;
  }
  const std::int32_t teams = blocks * kernel.teams;
  params.pairs = params.splits == 2 && params.fixed_split == 0 && blocks % 2 == 0 && kernel.pairs ? 1 : 0;
  if (params.direct != 0 && params.pairs != 0 && kernel.clusters) params.cluster_log = 1;
  // Blocks of a pair are neighbours already, and so are those of a cluster.
  const bool neighbours = params.pairs != 0 || launch.merge_log > 0;
  const std::int32_t abreast = neighbours ? 1 : choose_abreast(launch.row_blocks, teams);
  params.abreast_div = make_divisor(static_cast<std::uint32_t>(abreast));
  params.line_div = make_divisor(static_cast<std::uint32_t>(outputs / abreast));
  params.block_div = make_divisor(static_cast<std::uint32_t>(teams / abreast));
  params.slot_step = launch.slots / abreast;
  params.split_div = make_divisor(static_cast<std::uint32_t>(params.splits));
  params.even_div = make_divisor(static_cast<std::uint32_t>(params.batch * params.splits));
  params.merge_tiles = launch.merge_tiles;
  params.taken = reinterpret_cast<std::int32_t*>(memory);
  params.arrivals = reinterpret_cast<std::uint64_t*>(memory + launch.arrivals);
  params.partial_state = reinterpret_cast<float2*>(memory + launch.states);
  params.partial_out = reinterpret_cast<float*>(memory + launch.outs);
  if (params.fixed_split > 0) {
    const cudaError_t e = cudaMemsetAsync(params.taken, 0, sizeof(std::int32_t), stream);
    if (e != cudaSuccess) return e;
  }
  cudaLaunchAttribute cluster{};
  cudaLaunchConfig_t config = launch_config(kernel, blocks, std::max(params.cluster_log, params.pairs), cluster);
  config.stream = stream;
  void* arguments[] = {&params};
  return cudaLaunchKernelExC(&config, function, arguments);
}

}  // namespace mpfa::sm90
