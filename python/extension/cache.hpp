// mpfa._core.Cache: the paged cache as Python holds it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "extension/bindings.hpp"
#include "extension/device_state.hpp"
#include "extension/page_set.hpp"
#include "extension/runner.hpp"
#include "mpfa/cache.hpp"

namespace mpfa::python {

class Cache {
 public:
  /// `grows`: the pool becomes larger when a call lacks pages.
  Cache(PagedCache cache, bool grows);

  void append(nb::handle k, nb::handle v, nb::handle q, nb::handle sequences, nb::handle counts, nb::handle rope);
  void attend(nb::handle q, nb::handle out, nb::handle lse, const nb::tuple& options);
  void seal();
  void reserve(std::int64_t tokens);

  void free_sequence(std::int64_t sequence);
  void fork(std::int64_t source, std::int64_t target, std::int64_t tokens);  // tokens: -1 for all
  void truncate(std::int64_t sequence, std::int64_t tokens);
  void shift(std::int64_t sequence, std::int64_t from, std::int64_t delta, nb::handle rope);
  void remove(std::int64_t sequence, std::int64_t begin, std::int64_t end, nb::handle rope);
  void write_slots(nb::handle k, nb::handle v, nb::handle slot_mapping, nb::handle rope);
  void free_slots(nb::handle pages, nb::handle generations);
  [[nodiscard]] nb::bytes save(std::int64_t sequence);
  void load(std::int64_t sequence, nb::bytes data);
  void import_pages(std::int64_t sequence, const PageSet& k, const PageSet& v, nb::handle ids, std::int64_t tokens);
  /// The pages of a sequence to pages `ids` of k and v, in token order. Refused for sequences that keep more than pages
  /// and means of K and V, unless `packed` asks for what is in pages.
  void export_pages(std::int64_t sequence, const PageSet& k, const PageSet& v, nb::handle ids, bool packed);
  /// Whether sequences keep more than that: 16-bit tokens, means of pages, a centred Q.
  [[nodiscard]] bool has_state();
  /// All of it on the current device.
  [[nodiscard]] std::unique_ptr<DeviceState> device_state(std::int64_t max_kv);
  /// Means of each sequence to float32 arrays k [batch, kv_heads, head_dim] and v [batch, kv_heads, head_dim_v], zero
  /// where there are none. Returns whether K and V have any.
  [[nodiscard]] nb::tuple copy_means(nb::handle k, nb::handle v);
  void copy_page(std::int64_t from, std::int64_t to);
  void set_pages(std::int64_t sequence, nb::handle pages, nb::handle generations);
  [[nodiscard]] std::int64_t page_generation(std::int64_t page);

  /// What `question` answers about the cache while no other thread changes it.
  template <class Question>
  [[nodiscard]] auto ask(Question question) {
    nb::gil_scoped_release released;
    std::lock_guard lock(mutex_);
    return question(std::as_const(cache_));
  }

 private:
  /// Runs `body` with the GIL released and no other thread in this cache; the lock is never waited for with the GIL.
  template <class Body>
  Status exclusively(Body body) {
    nb::gil_scoped_release released;
    std::lock_guard lock(mutex_);
    return body();
  }
  /// Runs `body`; when it lacks pages and the pool grows, makes room for `missing()` more pages and runs it again.
  Status with_room(const std::function<Status()>& body, const std::function<std::int64_t()>& missing);
  /// Room for copies of all pages of a sequence, should it share them.
  [[nodiscard]] std::int64_t pages_of(std::int64_t sequence) const;
  [[nodiscard]] std::int64_t longest() const;

  PagedCache cache_;
  Runner runner_;
  bool grows_;
  std::mutex mutex_;
};

/// Pages for `tokens` of each of `batch` sequences; a hostile product becomes a number that create() refuses.
[[nodiscard]] std::int64_t pages_for(std::int64_t tokens, std::int64_t batch, std::int64_t page_size);
/// Ids as the library takes them; `name` is for messages.
[[nodiscard]] std::int32_t narrow(std::int64_t id, const char* name);

}  // namespace mpfa::python
