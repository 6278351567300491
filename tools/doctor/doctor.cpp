#include "doctor/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "attention/names.hpp"
#include "doctor/cuda.hpp"
#include "doctor/host.hpp"
#include "mpfa/mpfa.hpp"
#include "output.hpp"

namespace mpfa::cli {
namespace {

constexpr std::array kDevices{Device::cpu, Device::sm90, Device::sm100, Device::sm120};

struct StandardProblem {
  std::string name;
  AttentionProblem problem;
};

// Shapes of models in use: the ones a new user asks about first.
std::vector<StandardProblem> standard_problems() {
  std::vector<StandardProblem> all;
  const auto add = [&](std::string_view what, std::string_view recipe, std::int64_t rows, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t head_dim) -> AttentionProblem& {
    AttentionProblem p;
    const Result<Recipe> parsed = parse_recipe(recipe);
    if (parsed.ok()) p.recipe = parsed.value();
    p.max_q = rows;
    p.max_kv = 32768;
    p.q_heads = heads;
    p.kv_heads = kv_heads;
    p.head_dim = p.head_dim_v = head_dim;
    p.q_dtype = p.out_dtype = DType::bf16;
    p.causal = true;
    all.push_back({fmt::format("{}, {}, {}/{} heads of {}", recipe, what, heads, kv_heads, head_dim), p});
    return all.back().problem;
  };
  add("decode", "mxfp4", 1, 32, 8, 128);
  add("decode", "fp8", 1, 32, 8, 128);
  add("prefill", "mpfa", 4096, 32, 8, 128);
  add("prefill", "sage3", 4096, 32, 8, 128);
  add("decode", "bitdecoding_nvfp4", 1, 32, 8, 128).page_size = 128;
  AttentionProblem& sinks = add("decode with sinks and a window of 128", "nvfp4", 1, 64, 8, 64);
  sinks.sinks = true;
  sinks.window_left = 127;
  add("decode with softcap 50", "int8", 1, 16, 8, 256).softcap = 50.0F;
  return all;
}

/// The kernel that would run on this machine.
Support supports_here(const AttentionProblem& problem, Device device) {
  Support support = supports(problem, device);
  if (!support.supported()) return support;
  if (const Status s = available(device); !s.ok()) return {"", {s.message()}};
  return support;
}

std::string feature_text(const Host& host) {
  std::string present, absent;
  for (const auto& [name, has] : host.features) (has ? present : absent) += " " + name;
  return present + (absent.empty() ? "" : "; not" + absent);
}

Json host_json(const Host& host) {
  Json features = Json::object();
  for (const auto& [name, has] : host.features) features[name] = has;
  return {{"model", host.model}, {"threads", host.threads}, {"features", features}};
}

Json cuda_json(const Cuda& cuda) {
  Json devices = Json::array();
  for (const CudaDevice& d : cuda.devices) {
    devices.push_back({{"name", d.name},
                       {"compute_capability", fmt::format("{}.{}", d.major, d.minor)},
                       {"multiprocessors", d.multiprocessors},
                       {"memory_bytes", d.memory_bytes}});
  }
  return {{"driver", cuda.driver}, {"problem", cuda.problem}, {"devices", devices}, {"nvcc", cuda.nvcc}};
}

std::string machine_text(const Host& host, const Cuda& cuda) {
  std::string text =
      fmt::format("{}\ncpu: {}, {} threads\nfeatures:{}\n", build_text(), host.model, host.threads, feature_text(host));
  text += cuda.driver.empty() ? "" : fmt::format("cuda driver: {}\n", cuda.driver);
  text += cuda.problem.empty() ? "" : fmt::format("cuda: {}\n", cuda.problem);
  for (const CudaDevice& d : cuda.devices) {
    text += fmt::format("cuda device: {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB\n", d.name, d.major,
                        d.minor, d.multiprocessors, static_cast<double>(d.memory_bytes) / (1024.0 * 1024.0 * 1024.0));
  }
  return text + fmt::format("nvcc: {}\n", cuda.nvcc.empty() ? "not on PATH" : cuda.nvcc);
}

}  // namespace

std::string doctor_report(bool json) {
  const Host host = inspect_host();
  const Cuda cuda = inspect_cuda();
  Json problems = Json::array();
  std::vector<std::vector<std::string>> rows(1, {"kernel for"});
  for (const Device device : kDevices) rows[0].emplace_back(device_name(device));
  std::vector<std::string> reasons;  // each once, in the order met
  for (const StandardProblem& standard : standard_problems()) {
    Json by_device = Json::object();
    rows.push_back({standard.name});
    for (const Device device : kDevices) {
      const Support support = supports_here(standard.problem, device);
      by_device[device_name(device)] = {{"kernel", support.kernel}, {"reasons", support.reasons}};
      rows.back().push_back(support.supported() ? support.kernel : "-");
      for (const std::string& reason : support.reasons) {
        const bool known = std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
        if (!known) reasons.push_back(reason);
      }
    }
    problems.push_back({{"problem", standard.name}, {"devices", by_device}});
  }
  if (json) {
    return json_text({{"version", MPFA_VERSION},
                      {"build", build_text()},
                      {"cpu", host_json(host)},
                      {"cuda", cuda_json(cuda)},
                      {"problems", problems}});
  }
  std::string text = machine_text(host, cuda) + "\n" + table_text(rows);
  if (!reasons.empty()) text += "\nwhere there is no kernel:\n";
  for (const std::string& reason : reasons) text += "  " + reason + "\n";
  return text;
}

}  // namespace mpfa::cli
