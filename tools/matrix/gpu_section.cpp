#include "matrix/gpu_section.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/device_kind.hpp"
#include "attention/names.hpp"
#include "matrix/cells.hpp"
#include "matrix/text.hpp"

namespace mpfa::cli {
namespace {

using matrix::Feature;
using matrix::Phase;

/// Lists by name, in the order in which the names came.
using Groups = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add_once(Groups& groups, const std::string& name, const std::string& item) {
  auto at = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == name; });
  if (at == groups.end()) at = groups.insert(at, {name, {}});
  if (std::find(at->second.begin(), at->second.end(), item) == at->second.end()) at->second.push_back(item);
}

bool takes(const AttentionProblem& p, Device device) {
  return supports_when_built(p, device).supported();
}

std::vector<std::string> phases_taken(const std::string& format, Device device) {
  std::vector<std::string> names;
  for (const Phase& phase : matrix::phases()) {
    if (takes(matrix::plain_problem(format, format, phase, device), device)) names.push_back(phase.name);
  }
  return names;
}

/// Rows of the formats that the device takes, and their names.
std::string formats_table(Device device, std::vector<std::string>& taken) {
  std::string text = row_text({"format", "phases", "head dims", "page sizes", "query rows", "V in"}) +
                     row_text(std::vector<std::string>(6, "---"));
  const Phase& one = matrix::phases().front();
  for (const std::string& format : format_names()) {
    const std::vector<std::string> phases = phases_taken(format, device);
    if (phases.empty()) continue;
    taken.push_back(format);
    const auto range = [&](auto field) {
      return range_text([&](std::int64_t n) {
        AttentionProblem p = matrix::plain_problem(format, format, one, device);
        field(p, n);
        return takes(p, device);
      });
    };
    std::vector<std::string> v_formats;
    for (const std::string& v : format_names()) {
      if (takes(matrix::plain_problem(format, v, one, device), device)) v_formats.push_back(v);
    }
    text += row_text({"`" + format + "`", fmt::format("{}", fmt::join(phases, ", ")),
                      range([](AttentionProblem& p, std::int64_t n) { p.head_dim = p.head_dim_v = n; }),
                      range([](AttentionProblem& p, std::int64_t n) { p.page_size = n; }),
                      range([](AttentionProblem& p, std::int64_t n) { p.max_q = n; }),
                      fmt::format("{}", fmt::join(v_formats, ", "))});
  }
  return text;
}

/// Features that formats take in every phase that they have a kernel for, with the names of the formats where not all
/// do, and the reasons for features that none takes.
void sort_features(Device device, const std::vector<std::string>& formats, Groups& taken, Groups& refused) {
  for (const Feature& feature : matrix::features()) {
    if (feature.group == "head dim" || feature.group == "tokens per page") continue;  // have columns of their own
    std::vector<std::string> takers, others, reasons;
    for (const std::string& format : formats) {
      bool all = true;
      for (const Phase& phase : matrix::phases()) {
        AttentionProblem p = matrix::plain_problem(format, format, phase, device);
        if (!takes(p, device)) continue;
        feature.apply(p);
        const Support support = matrix::supports_feature(p, feature, device);
        all = all && support.supported();
        reasons.insert(reasons.end(), support.reasons.begin(), support.reasons.end());
      }
      (all ? takers : others).push_back(format);
    }
    if (!takers.empty()) {
      const bool most = others.size() < takers.size();
      const std::string names = fmt::format("{}", fmt::join(most ? others : takers, ", "));
      add_once(taken, feature.group,
               others.empty() ? feature.name : fmt::format("{} ({}{})", feature.name, most ? "not " : "", names));
    } else {
      for (const std::string& reason : reasons) add_once(refused, reason, feature.group + " " + feature.name);
    }
  }
}

}  // namespace

std::string gpu_section(Device device) {
  std::vector<std::string> formats;
  std::string text = fmt::format(
      "## Formats on {0}\n\nq, P and the output have 16 bits here. The device test `{1}` runs every cell of this "
      "section "
      "on a card and fails\nwhen one is left out.\n\n",
      device_name(device), matrix::covering_test(device));
  text += formats_table(device, formats);
  Groups taken, refused;
  sort_features(device, formats, taken, refused);
  text +=
      "\nWith each of them, or with those in brackets:\n\n" + row_text({"what", "cells"}) + row_text({"---", "---"});
  for (const auto& [group, names] : taken) text += row_text({group, fmt::format("{}", fmt::join(names, ", "))});
  text += "\nRefused with all of them, with the reason:\n\n";
  for (const auto& [reason, names] : refused) text += fmt::format("* {}: \"{}\"\n", fmt::join(names, ", "), reason);
  return text;
}

}  // namespace mpfa::cli
