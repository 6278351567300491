#include "matrix/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <vector>

#include "attention/device_kind.hpp"
#include "attention/names.hpp"
#include "matrix/cells.hpp"
#include "matrix/gpu_section.hpp"
#include "matrix/text.hpp"
#include "mpfa/mpfa.hpp"
#include "output.hpp"

namespace mpfa::cli {
namespace {

using matrix::Feature;
using matrix::Phase;
using matrix::plain_problem;

constexpr std::array kDevices{Device::cpu, Device::sm90, Device::sm100, Device::sm120};

bool cpu_takes(const AttentionProblem& p) {
  return supports(p, Device::cpu).supported();
}

/// Operands that may have the format.
std::string operands_text(const std::string& format) {
  const auto takes = [](const char* q, const std::string& k, const std::string& v) {
    return parse_recipe(fmt::format("q={},k={},v={},p=f32", q, k, v)).ok();
  };
  std::string text = takes(format.c_str(), "f32", "f32") ? "Q " : "";
  if (takes("f32", format, "f32")) text += "K ";
  if (takes("f32", "f32", format)) text += "V ";
  if (!text.empty()) text.pop_back();
  return text;
}

/// A reason as it reads for any format.
std::string general(std::string reason, const std::string& format) {
  const std::size_t at = reason.find("=" + format);
  return at == std::string::npos ? reason : reason.replace(at + 1, format.size(), "...");
}

/// Refusals of a format, each sentence once, with the features it refuses.
std::map<std::string, std::vector<std::string>> refusals(const std::string& format) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const Feature& feature : matrix::features()) {
    for (const Phase& phase : matrix::phases()) {
      AttentionProblem p = plain_problem(format, format, phase, Device::cpu);
      feature.apply(p);
      const std::string name = feature.group + " " + feature.name;
      for (const std::string& reason : matrix::supports_feature(p, feature, Device::cpu).reasons) {
        std::vector<std::string>& names = by_reason[general(reason, format)];
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }
  return by_reason;
}

/// The kernel of all phases, or one for each.
std::string kernel_text(const std::string& format) {
  std::vector<std::string> kernels;
  for (const Phase& phase : matrix::phases()) {
    const Support support = supports(plain_problem(format, format, phase, Device::cpu), Device::cpu);
    kernels.push_back(support.supported() ? support.kernel : "-");
  }
  const bool same = std::count(kernels.begin(), kernels.end(), kernels.front()) == std::ssize(kernels);
  return same ? kernels.front() : fmt::format("{}", fmt::join(kernels, " / "));
}

std::string formats_table(std::vector<std::string>& notes) {
  const std::vector<std::string> head{"format", "operand",          "head dims", "page sizes",
                                      "kernel", "calibrated scale", "refused"};
  std::string text = row_text(head) + row_text(std::vector<std::string>(head.size(), "---"));
  const Phase& one = matrix::phases().front();
  for (const std::string& format : format_names()) {
    std::vector<std::string> row{"`" + format + "`", operands_text(format)};
    row.push_back(range_text([&](std::int64_t n) {
      AttentionProblem p = plain_problem(format, format, one, Device::cpu);
      p.head_dim = p.head_dim_v = n;
      return cpu_takes(p);
    }));
    row.push_back(range_text([&](std::int64_t n) {
      AttentionProblem p = plain_problem(format, format, one, Device::cpu);
      p.page_size = n;
      return cpu_takes(p);
    }));
    row.push_back(kernel_text(format));
    const BlockFormat f = plain_problem(format, format, one, Device::cpu).recipe.k;
    row.emplace_back(f.rule == ScaleRule::fixed ? "needed" : f.scale == ScaleType::e4m3 ? "may be given" : "");
    std::string refused;
    for (const auto& [reason, names] : refusals(format)) {
      // Page sizes have a column of their own.
      std::vector<std::string> kept;
      std::copy_if(names.begin(), names.end(), std::back_inserter(kept),
                   [](const std::string& name) { return !name.starts_with("tokens per page"); });
      if (kept.empty()) continue;
      const std::string note = fmt::format("{}: \"{}\"", fmt::join(kept, ", "), reason);
      auto at = std::find(notes.begin(), notes.end(), note);
      if (at == notes.end()) at = notes.insert(at, note);
      refused += fmt::format("{}{}", refused.empty() ? "" : ", ", at - notes.begin() + 1);
    }
    row.push_back(refused);
    text += row_text(row);
  }
  return text;
}

std::string features_table() {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const Feature& feature : matrix::features()) {
    if (groups.empty() || groups.back().first != feature.group) {
      const auto at =
          std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == feature.group; });
      if (at != groups.end()) {
        at->second.push_back(feature.name);
        continue;
      }
      groups.push_back({feature.group, {}});
    }
    groups.back().second.push_back(feature.name);
  }
  std::string text = row_text({"what", "cells"}) + row_text({"---", "---"});
  for (const auto& [group, names] : groups) text += row_text({group, fmt::format("{}", fmt::join(names, ", "))});
  return text;
}

/// Ordered pairs of formats for K and V that have a kernel in every phase, and those that have none.
std::string pairs_text() {
  std::size_t taken = 0;
  std::vector<std::string> refused;
  for (const std::string& k : format_names()) {
    for (const std::string& v : format_names()) {
      const auto& all = matrix::phases();
      const bool takes = std::all_of(all.begin(), all.end(), [&](const Phase& phase) {
        return cpu_takes(plain_problem(k, v, phase, Device::cpu));
      });
      takes ? void(++taken) : refused.push_back(fmt::format("k={},v={}", k, v));
    }
  }
  return fmt::format("K and V have formats of their own: {} of {} ordered pairs run{}.\n", taken,
                     taken + refused.size(), refused.empty() ? "" : fmt::format(", not {}", fmt::join(refused, ", ")));
}

std::string devices_table() {
  std::string text = row_text({"device", "kernel", "test that runs every cell, or why there is none"}) +
                     row_text({"---", "---", "---"});
  for (const Device device : kDevices) {
    std::vector<std::string> kernels, reasons;
    for (const std::string& format : format_names()) {
      for (const Phase& phase : matrix::phases()) {
        const Support support = supports_when_built(plain_problem(format, format, phase, device), device);
        const auto once = [](std::vector<std::string>& all, const std::string& x) {
          if (std::find(all.begin(), all.end(), x) == all.end()) all.push_back(x);
        };
        if (support.supported()) once(kernels, "`" + support.kernel + "`");
        for (const std::string& reason : support.reasons) once(reasons, reason);
      }
    }
    text += row_text({device_name(device), kernels.empty() ? "-" : fmt::format("{}", fmt::join(kernels, ", ")),
                      kernels.empty() ? fmt::format("{}", fmt::join(reasons, "; ")) : matrix::covering_test(device)});
  }
  return text;
}

/// Requests just outside of what any format takes, with the answers.
std::string limits_list() {
  struct Limit {
    const char* what;
    const char* recipe;
    std::function<void(AttentionProblem&)> apply;
  };
  const std::vector<Limit> limits{
      {"head dim 1025", "k=bf16,v=bf16", [](AttentionProblem& p) { p.head_dim = 1025; }},
      {"5 query heads over 2 KV heads", "k=bf16,v=bf16", [](AttentionProblem& p) { p.q_heads = 5; }},
      {"tiles of 16 tokens in pages of 24", "k=int8_tile16,v=bf16", [](AttentionProblem& p) { p.page_size = 24; }},
      {"rotation of an odd head dim", "k=bf16,v=bf16,rotate=qk", [](AttentionProblem& p) { p.head_dim = 33; }},
      {"q in float64", "k=bf16,v=bf16", [](AttentionProblem& p) { p.q_dtype = DType::f64; }},
  };
  std::string text;
  for (const Limit& limit : limits) {
    AttentionProblem p = plain_problem("bf16", "bf16", matrix::phases().front(), Device::cpu);
    p.recipe = parse_recipe(limit.recipe).value();
    limit.apply(p);
    text += fmt::format("* {}: \"{}\"\n", limit.what, fmt::join(supports(p, Device::cpu).reasons, "; "));
  }
  for (const char* text_of : {"q=nvfp4@keys", "q=fp8_e4m3_static"}) {
    text += fmt::format("* {}: \"{}\"\n", text_of,
                        parse_recipe(fmt::format("{},k=bf16,v=bf16", text_of)).status().message());
  }
  return text;
}

std::string markdown() {
  std::vector<std::string> notes;
  std::string text =
      "# What is supported\n\n"
      "This page is the output of `mpfa matrix`, which asks `supports` for every cell; a test compares the two. "
      "`mpfa matrix --json`\nlists the cells one by one, and the tests in the last column run every cell that a device "
      "takes against the reference.\n"
      "The page is of a build with every kernel; `mpfa doctor` says what a build and a machine have.\n\n## Devices\n\n";
  text += devices_table();
  const std::vector<Phase>& all = matrix::phases();
  text += fmt::format(
      "\n## Formats on the CPU\n\nFor a cache that holds K and V in the format, and {} ({} query rows), {} ({}) and {} "
      "({}). Everything in the\nlist of [features](#features) is taken unless the last column names a "
      "[refusal](#refusals-of-the-cpu).\n\n",
      all[0].name, all[0].rows, all[1].name, all[1].rows, all[2].name, all[2].rows);
  text += formats_table(notes) + "\n" + pairs_text();
  text += "\n## Features\n\nTried with every format and number of rows.\n\n" + features_table();
  text += "\n## Refusals of the CPU\n\nOf single formats:\n\n";
  for (std::size_t i = 0; i < notes.size(); ++i) text += fmt::format("{}. {}\n", i + 1, notes[i]);
  return text + "\nOf any format, one step past what is allowed:\n\n" + limits_list() + "\n" +
         gpu_section(Device::sm90);
}

}  // namespace

std::string matrix_report(bool json) {
  if (!json) return markdown();
  Json cells = Json::array();
  for (const std::string& format : format_names()) {
    for (const Phase& phase : matrix::phases()) {
      for (const Feature& feature : matrix::features()) {
        Json devices = Json::object();
        for (const Device device : kDevices) {
          AttentionProblem p = plain_problem(format, format, phase, device);
          feature.apply(p);
          const Support support = matrix::supports_feature(p, feature, device);
          devices[device_name(device)] = {{"kernel", support.kernel}, {"reasons", support.reasons}};
        }
        cells.push_back({{"format", format},
                         {"phase", phase.name},
                         {"group", feature.group},
                         {"feature", feature.name},
                         {"devices", devices}});
      }
    }
  }
  return json_text(cells);
}

}  // namespace mpfa::cli
