// Whether two sets of pages share bytes: what is written must not also be read, or written, as something else.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "pages/pages.hpp"

namespace mpfa::pages {
namespace {

/// Codes or scales of a set of pages, addresses as numbers.
struct Part {
  std::int64_t base;
  PageStrides strides;
  std::int64_t pages, heads, rows, row_bytes;
};
struct Range {
  std::int64_t begin, end;
};

std::vector<Part> parts_of(const Pages& p) {
  const PageGeometry g = pages_geometry(p.kind).value();
  const OperandPages& o = p.bytes;
  const auto address = [](const std::byte* x) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x));
  };
  std::vector<Part> parts;
  if (p.kind.num_pages == 0) return parts;
  if (g.data_bytes() > 0) {
    parts.push_back({address(o.data),
                     {o.data_page_stride, o.data_head_stride, o.data_row_stride},
                     p.kind.num_pages,
                     p.kind.kv_heads,
                     g.data_rows,
                     g.data_row_bytes});
  }
  if (g.scale_bytes() > 0) {
    parts.push_back({address(o.scales),
                     {o.scale_page_stride, o.scale_head_stride, o.scale_row_stride},
                     p.kind.num_pages,
                     p.kind.kv_heads,
                     g.scale_rows,
                     g.scale_row_bytes});
  }
  return parts;
}

/// Addresses of the rows of `pages` pages; make_pages has seen to it that they are those of one buffer.
Range range_of(const Part& p, std::int64_t pages) {
  Range r{p.base, p.base + p.row_bytes};
  for (const Range d : {Range{p.strides.page, pages}, Range{p.strides.head, p.heads}, Range{p.strides.row, p.rows}}) {
    (d.begin < 0 ? r.begin : r.end) += d.begin * (d.end - 1);
  }
  return r;
}

bool meet(const Range& a, const Range& b) {
  return a.begin < b.end && b.begin < a.end;
}

/// Rows of one page as ranges modulo `period`, one that passes the end in two pieces.
void add_rows(const Part& p, std::int64_t period, std::vector<Range>& out) {
  for (std::int64_t h = 0; h < p.heads; ++h) {
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const std::int64_t at = (p.base + h * p.strides.head + r * p.strides.row) % period;
      const std::int64_t end = at + p.row_bytes;
      out.push_back({at, std::min(end, period)});
      if (end > period) out.push_back({0, end - period});
    }
  }
}

constexpr std::int64_t kNoPeriod = std::int64_t{1} << 62;  // past every address

/// Rows against rows; true, the careful answer, when there is no memory for the list of them.
bool rows_meet(const Part& a, const Part& b, std::int64_t period) try {
  std::vector<Range> x, y;
  add_rows(a, period, x);
  add_rows(b, period, y);
  const auto by_begin = [](const Range& l, const Range& r) { return l.begin < r.begin; };
  std::sort(x.begin(), x.end(), by_begin);
  std::sort(y.begin(), y.end(), by_begin);
  for (std::size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    if (meet(x[i], y[j])) return true;
    x[i].end <= y[j].begin ? ++i : ++j;
  }
  return false;
} catch (const std::bad_alloc&) {
  return true;
}

bool share(const Part& a, const Part& b) {
  if (!meet(range_of(a, a.pages), range_of(b, b.pages))) return false;
  if (a.pages == 1 && b.pages == 1) return rows_meet(a, b, kNoPeriod);
  const std::int64_t period = std::abs(a.strides.page);
  // Pages that interleave at two different strides meet sooner or later.
  if (period == 0 || period != std::abs(b.strides.page)) return true;
  // Parts that stay side by side within a page, as of joined pages, need no look at their rows.
  const Range x = range_of(a, 1), y = range_of(b, 1);
  const std::int64_t x0 = x.begin % period, y0 = y.begin % period;
  const Range xs{x0, x0 + x.end - x.begin}, ys{y0, y0 + y.end - y.begin};
  if (xs.end <= period && ys.end <= period && !meet(xs, ys)) return false;
  return rows_meet(a, b, period);
}

}  // namespace

bool share_bytes(const Pages& a, const Pages& b) {
  for (const Part& x : parts_of(a)) {
    for (const Part& y : parts_of(b)) {
      if (share(x, y)) return true;
    }
  }
  return false;
}

bool scales_in_codes(const Pages& p) {
  const std::vector<Part> parts = parts_of(p);
  return parts.size() == 2 && share(parts[0], parts[1]);
}

}  // namespace mpfa::pages
