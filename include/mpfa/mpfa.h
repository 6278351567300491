/* C ABI of MpFA: attention with 4- and 8-bit operands. Compiles as C11 and C++.
 *
 * Rules of every call
 *  - Returns a status; the text goes to `error` (may be NULL) and says what was given, what is allowed, what to do.
 *  - Structs that may grow start with `struct_size`: set it to sizeof the struct, or use the *_init function, which
 *    also sets defaults. A larger struct of a newer header is accepted when its unknown tail is zero.
 *  - Handles are freed by their *_destroy function; NULL is ignored there and refused everywhere else.
 *  - Inputs are never written. One handle may be used by one thread at a time; plans may be shared.
 *  - No exception and no allocation of the caller's crosses the border.
 */
#ifndef MPFA_MPFA_H_
#define MPFA_MPFA_H_

#include <stddef.h>
#include <stdint.h>

#define MPFA_ABI_VERSION 1

#if defined(_WIN32)
#define MPFA_API
#else
#define MPFA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Enumerations travel as int32_t, so that a value this library does not know is refused and not undefined. */
typedef int32_t mpfa_status;
enum {
  MPFA_OK = 0,
  MPFA_INVALID_ARGUMENT = 1, /* a shape, dtype, stride, pointer or text the call does not accept */
  MPFA_UNSUPPORTED = 2,      /* valid, but no kernel or format of this build does it */
  MPFA_OUT_OF_RANGE = 3,     /* a length, page id or offset past what the object holds */
  MPFA_OUT_OF_MEMORY = 4,    /* the page pool or the heap is full; nothing was changed */
  MPFA_IO_ERROR = 5,
  MPFA_INTERNAL = 6 /* a fault of the library */
};

typedef int32_t mpfa_dtype;
enum { MPFA_F32 = 0, MPFA_F64 = 1, MPFA_BF16 = 2, MPFA_F16 = 3, MPFA_U8 = 4, MPFA_I32 = 5, MPFA_I64 = 6 };

typedef int32_t mpfa_device;
enum { MPFA_CPU = 0, MPFA_SM90 = 1, MPFA_SM100 = 2, MPFA_SM120 = 3 };

typedef int32_t mpfa_mask_kind;
enum { MPFA_MASK_NONE = 0, MPFA_MASK_BOOLEAN = 1, MPFA_MASK_ADDITIVE = 2 };

/* Filled by a failing call; a successful one clears it. Reasons of mpfa_supports are separated by newlines. */
typedef struct mpfa_error {
  size_t struct_size;
  mpfa_status status;
  char message[2032]; /* ends with 0; longer text is cut */
} mpfa_error;
#define MPFA_ERROR_INIT            \
  {                                \
    sizeof(mpfa_error), MPFA_OK, { \
      0                            \
    }                              \
  }

/* Caller-owned tensor of up to four dimensions; unused (last) dimensions have extent 1. Strides in elements. */
typedef struct mpfa_tensor {
  void* data;
  mpfa_dtype dtype;
  int64_t shape[4];
  int64_t stride[4];
} mpfa_tensor;
/* Row-major tensor. */
MPFA_API mpfa_tensor mpfa_contiguous(void* data, mpfa_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3);

typedef struct mpfa_recipe mpfa_recipe;
typedef struct mpfa_cache mpfa_cache;
typedef struct mpfa_blob mpfa_blob;
typedef struct mpfa_plan mpfa_plan;

/* Threads of the caller: a way to run the tasks of a call. parallel_for calls body(argument, task, worker) once for
 * every task in [0, tasks), in any order, and returns when all are done; worker is in [0, threads) and no two calls at
 * the same time have the same one. Where an executor is NULL, the library uses a pool of its own. */
typedef struct mpfa_executor {
  size_t struct_size;
  void* context; /* first argument of parallel_for */
  void (*parallel_for)(void* context, int64_t tasks, int32_t threads,
                       void (*body)(void* argument, int64_t task, int32_t worker), void* argument);
} mpfa_executor;

/* ---- version ---- */
MPFA_API const char* mpfa_version(void);
/* Call once with MPFA_ABI_VERSION: fails when header and library do not belong together. */
MPFA_API mpfa_status mpfa_check_abi(int abi_version, mpfa_error* error);

/* ---- devices ---- */
/* "mpfa 0.1.0: kernels for cpu, sm90 (CUDA 13.0)", or why this build has none for GPUs. */
MPFA_API const char* mpfa_build_info(void);
/* MPFA_OK when plans for `device` can be made now: the build has its kernels and the current CUDA device is of the
 * kind. mpfa_supports answers about the build alone. */
MPFA_API mpfa_status mpfa_available(mpfa_device device, mpfa_error* error);
/* The kind of the current CUDA device, by compute capability; MPFA_UNSUPPORTED: none, or one without kernels. */
MPFA_API mpfa_status mpfa_cuda_device(mpfa_device* device, mpfa_error* error);

/* ---- recipes and formats: names are NULL past the end ---- */
MPFA_API const char* mpfa_recipe_name(int64_t index);
MPFA_API const char* mpfa_format_name(int64_t index);
/* text: "mpfa", "mxfp4,centre=none", "k=nvfp4,v=fp8_e4m3,p=e4m3x256". */
MPFA_API mpfa_status mpfa_recipe_parse(const char* text, mpfa_recipe** recipe, mpfa_error* error);
/* Shortest text that parses to the same recipe; owned by the handle. */
MPFA_API const char* mpfa_recipe_text(const mpfa_recipe* recipe);
MPFA_API void mpfa_recipe_destroy(mpfa_recipe* recipe);

/* ---- quantising plain matrices: one head, one page of `tokens` slots ---- */
typedef struct mpfa_geometry {
  int64_t data_rows, data_row_bytes;   /* row = token, or channel for formats along the keys */
  int64_t scale_rows, scale_row_bytes; /* row = group of tokens that share a scale, or channel */
} mpfa_geometry;
typedef struct mpfa_counters {
  int64_t nonfinite_blocks, saturated_elements, flushed_blocks;
} mpfa_counters;
MPFA_API mpfa_status mpfa_format_geometry(const char* format, int64_t head_dim, int64_t tokens, mpfa_geometry* geometry,
                                          mpfa_error* error);
/* x [tokens, head_dim] float32, rows x_stride floats apart. data and scales hold rows * row_bytes of the geometry.
 * global: the head's calibrated scale, 1 otherwise. Counters are added to what is there; may be NULL. */
MPFA_API mpfa_status mpfa_quantize(const char* format, int64_t head_dim, int64_t tokens, const float* x,
                                   int64_t x_stride, float global, void* data, size_t data_bytes, void* scales,
                                   size_t scale_bytes, mpfa_counters* counters, mpfa_error* error);
MPFA_API mpfa_status mpfa_dequantize(const char* format, int64_t head_dim, int64_t tokens, const void* data,
                                     size_t data_bytes, const void* scales, size_t scale_bytes, float global, float* x,
                                     int64_t x_stride, mpfa_error* error);

/* ---- cache ---- */
typedef struct mpfa_cache_config {
  size_t struct_size;
  const mpfa_recipe* recipe; /* copied */
  int64_t batch, num_pages, page_size;
  int64_t q_heads, kv_heads, head_dim, head_dim_v;
  const float* k_mean;           /* [kv_heads, head_dim], for centre=static; NULL otherwise, like the rest */
  const float* q_mean;           /* [q_heads, head_dim] */
  const float* v_mean;           /* [kv_heads, head_dim_v] */
  const float* k_global;         /* [kv_heads], for formats with a calibrated scale */
  const float* v_global;         /* [kv_heads] */
  int32_t threads;               /* most threads of an append; 0: as many as the process may use */
  const mpfa_executor* executor; /* copied; its context must outlive the cache; NULL: the library's pool */
  int32_t shared_kv;             /* 1: V is the first head_dim_v channels of K, stored once (latent attention) */
} mpfa_cache_config;
MPFA_API void mpfa_cache_config_init(mpfa_cache_config* config, size_t struct_size); /* batch 1, page_size 64 */

typedef struct mpfa_cache_stats {
  size_t struct_size;
  const int64_t* lengths; /* [batch] tokens; valid until the next call that changes the cache */
  int64_t num_pages, free_pages, memory_bytes;
  double bytes_per_token; /* packed bytes over all KV heads */
  mpfa_counters counters;
} mpfa_cache_stats;

MPFA_API mpfa_status mpfa_cache_create(const mpfa_cache_config* config, mpfa_cache** cache, mpfa_error* error);
MPFA_API void mpfa_cache_destroy(mpfa_cache* cache);
/* k [n, s, kv_heads, head_dim], v [n, s, kv_heads, head_dim_v] (NULL with shared_kv), f32, bf16 or f16. q [n, s,
 * q_heads, head_dim] or NULL (read by recipes with q_centre=mean at a sequence's first append). sequences [n] ids or
 * NULL (0..n-1 = batch); counts [n] tokens of each row (<= s) or NULL (all s). All or nothing. */
MPFA_API mpfa_status mpfa_cache_append(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v,
                                       const mpfa_tensor* q, const int32_t* sequences, const int64_t* counts,
                                       mpfa_error* error);
/* ---- rotary position embedding as part of an append ---- */
typedef int32_t mpfa_rope_style;
enum {
  MPFA_ROPE_HALF = 0,       /* channels (i, i + half) turn together: GPT-NeoX, Llama */
  MPFA_ROPE_INTERLEAVED = 1 /* (2i, 2i + 1): GPT-J */
};
typedef struct mpfa_rope {
  size_t struct_size;
  mpfa_rope_style style;
  int64_t begin;              /* first channel that turns; begin + 2 * half <= head_dim */
  mpfa_tensor cos, sin;       /* [positions, half, 1, 1], f32, bf16 or f16 */
  const int64_t* positions;   /* [n, s] of an append (NULL: index in the sequence), [count] of write_slots (needed) */
  mpfa_tensor q, q_out;       /* [n, sq, q_heads, head_dim] to rotate, and where to; q.data NULL: none */
  const int64_t* q_positions; /* [n, sq]; NULL: row i is where token i of the call is, and sq is s */
} mpfa_rope;
MPFA_API void mpfa_rope_init(mpfa_rope* rope, size_t struct_size);
/* mpfa_cache_append and mpfa_cache_write_slots of k rotated in float32 before it is centred and quantised. */
MPFA_API mpfa_status mpfa_cache_append_rope(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v,
                                            const mpfa_tensor* q, const int32_t* sequences, const int64_t* counts,
                                            const mpfa_rope* rope, mpfa_error* error);
MPFA_API mpfa_status mpfa_cache_write_slots_rope(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v,
                                                 const int64_t* slot_mapping, int64_t count, const mpfa_rope* rope,
                                                 mpfa_error* error);
/* Turns the keys of tokens [from, length) by delta positions where they are stored: one more rounding of K. */
MPFA_API mpfa_status mpfa_cache_shift(mpfa_cache* cache, int64_t sequence, int64_t from, int64_t delta,
                                      const mpfa_rope* rope, mpfa_error* error);
/* Drops tokens [begin, end) and closes the gap. With rope (or NULL) keys that move turn back by end - begin positions.
 */
MPFA_API mpfa_status mpfa_cache_remove(mpfa_cache* cache, int64_t sequence, int64_t begin, int64_t end,
                                       const mpfa_rope* rope, mpfa_error* error);

/* Ends the 16-bit phase of recipes that have one; otherwise does nothing. */
MPFA_API mpfa_status mpfa_cache_seal(mpfa_cache* cache, mpfa_error* error);
/* Makes the pool num_pages large (not smaller than it is); contents and page ids stay. */
MPFA_API mpfa_status mpfa_cache_grow(mpfa_cache* cache, int64_t num_pages, mpfa_error* error);
MPFA_API mpfa_status mpfa_cache_free_sequence(mpfa_cache* cache, int64_t sequence, mpfa_error* error);
MPFA_API mpfa_status mpfa_cache_copy_page(mpfa_cache* cache, int64_t from, int64_t to, mpfa_error* error);
/* A number to store beside a page id: while it stays the same, the page holds the tokens that it held then. Raised when
 * the page is given out, given back, or its tokens are overwritten; docs/cache.md lists what does. */
MPFA_API mpfa_status mpfa_cache_page_generation(const mpfa_cache* cache, int64_t page, int64_t* generation,
                                                mpfa_error* error);
/* Replaces the page table row of a sequence that shares no page by pages [count], its own or free ones, as many as it
 * has. Contents are not moved: copy_page does that before.
 * generations [count]: pages whose generation is another one are refused; NULL: not looked at. */
MPFA_API mpfa_status mpfa_cache_set_pages(mpfa_cache* cache, int64_t sequence, const int32_t* pages,
                                          const int64_t* generations, int64_t count, mpfa_error* error);
MPFA_API mpfa_status mpfa_cache_get_stats(const mpfa_cache* cache, mpfa_cache_stats* stats, mpfa_error* error);

/* ---- editing a cache: all or nothing; docs/cache.md says what each call guarantees ---- */
enum { MPFA_ALL_TOKENS = -1 };
/* The empty sequence `target` holds the first `tokens` tokens of `source` (MPFA_ALL_TOKENS: all). Pages are shared and
 * copied by the first append that writes into them. */
MPFA_API mpfa_status mpfa_cache_fork(mpfa_cache* cache, int64_t source, int64_t target, int64_t tokens,
                                     mpfa_error* error);
/* Drops the tokens from `tokens` on; frozen means stay, except at length 0. Recipes that keep 16-bit tokens allow every
 * length down to that before the last append, and the error names what else is possible; others allow all. */
MPFA_API mpfa_status mpfa_cache_truncate(mpfa_cache* cache, int64_t sequence, int64_t tokens, mpfa_error* error);
/* Token i of k [1, count, kv_heads, head_dim] and v [1, count, kv_heads, head_dim_v] (NULL with shared_kv) to slot
 * slot_mapping[i] = page * page_size + slot; -1 skips it. Lengths do not change; a free page is the caller's from its
 * first write on. For recipes without 16-bit tokens and without means of a first append. slot_mapping [count], NULL
 * when count is 0. */
MPFA_API mpfa_status mpfa_cache_write_slots(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v,
                                            const int64_t* slot_mapping, int64_t count, mpfa_error* error);
/* Gives back pages that write_slots took: page ids [count], each once; NULL when count is 0. */
MPFA_API mpfa_status mpfa_cache_free_slots(mpfa_cache* cache, const int32_t* pages, int64_t count, mpfa_error* error);
/* A sequence as bytes that mpfa_cache_load reads, on any machine and in any process. */
MPFA_API mpfa_status mpfa_cache_save(const mpfa_cache* cache, int64_t sequence, mpfa_blob** blob, mpfa_error* error);
MPFA_API const void* mpfa_blob_data(const mpfa_blob* blob); /* NULL for NULL; valid until mpfa_blob_destroy */
MPFA_API size_t mpfa_blob_bytes(const mpfa_blob* blob);     /* 0 for NULL */
MPFA_API void mpfa_blob_destroy(mpfa_blob* blob);
/* Puts a saved sequence into the empty `sequence`. MPFA_INVALID_ARGUMENT: it is of a cache with another recipe, shape,
 * page size, static scale or phase; MPFA_IO_ERROR: damaged; MPFA_OUT_OF_MEMORY: the pool lacks pages. */
MPFA_API mpfa_status mpfa_cache_load(mpfa_cache* cache, const void* data, size_t bytes, int64_t sequence,
                                     mpfa_error* error);

/* ---- paged view: what attend reads of a cache, or of memory of the caller ---- */
typedef struct mpfa_operand_pages {
  const void* data; /* (page, head, row) at data + page * data_page_stride + head * ... + row * ..., bytes */
  int64_t data_page_stride, data_head_stride, data_row_stride;
  const void* scales; /* NULL for formats without scales */
  int64_t scale_page_stride, scale_head_stride, scale_row_stride;
  const float* global; /* [kv_heads] or NULL = 1 */
} mpfa_operand_pages;

/* State of a sequence beside its pages; all pointers may be NULL (no centring, no 16-bit tokens). bf16 bits. */
typedef struct mpfa_sequence_view {
  const float *k_mean, *q_mean, *v_mean; /* [kv_heads, head_dim], [q_heads, head_dim], [kv_heads, head_dim_v] */
  const float *v_alpha, *v_beta;         /* [kv_heads, head_dim_v] */
  int64_t sink;                          /* tokens [0, sink) are in sink_k / sink_v */
  const uint16_t *sink_k, *sink_v;       /* [sink, kv_heads, head_dim], [sink, kv_heads, head_dim_v] */
  int64_t wide_begin;                    /* tokens [wide_begin, length) are in wide_k / wide_v */
  const uint16_t *wide_k, *wide_v;
  int64_t packed_end; /* tokens [0, packed_end) are in the pages */
} mpfa_sequence_view;

typedef struct mpfa_cache_view {
  size_t struct_size;
  const char *k_format, *v_format; /* format names */
  int64_t num_pages, page_size, kv_heads, head_dim, head_dim_v;
  mpfa_operand_pages k, v;
  const void* rank_one;  /* [num_pages, kv_heads, page_size, group] or NULL; strides in elements */
  int32_t rank_one_wide; /* 1: fp32, 0: bf16 bits */
  int64_t rank_one_page_stride, rank_one_head_stride, group; /* group = q_heads / kv_heads */
  const int32_t* page_table; /* [batch, page_table_stride]; entries past a length may be anything */
  int64_t page_table_stride;
  const int64_t* lengths;              /* [batch] tokens */
  const mpfa_sequence_view* sequences; /* [batch] or NULL */
  /* v_mean=page: means of V, [num_pages, kv_heads, head_dim_v] bf16 bits, NULL otherwise; strides in elements */
  const uint16_t* v_page_means;
  int64_t v_page_mean_page_stride, v_page_mean_head_stride;
  int32_t shared_kv; /* 1: V is the first head_dim_v channels of K: v = k, sink_v and wide_v are not read */
} mpfa_cache_view;
/* Valid until the next call that changes the cache, or the next mpfa_cache_get_view. */
MPFA_API mpfa_status mpfa_cache_get_view(mpfa_cache* cache, mpfa_cache_view* view, mpfa_error* error);

/* ---- pages that the caller owns ---- */
/* Row r of head h of page p of the codes begins at data + data_offset + p * data_page_stride + h * data_head_stride +
 * r * data_row_stride, bytes; of the scales likewise. docs/layouts.md says which program keeps its cache in which
 * layout. */
typedef struct mpfa_pages {
  size_t struct_size;
  const char* format; /* format name */
  const char* layout; /* "page_swizzle4", "tile_128x4", "ggml"; NULL: "linear" */
  int64_t num_pages, page_size, kv_heads, head_dim;
  void* data; /* the whole buffer of codes; written by mpfa_pages_write and as a target of copies only */
  size_t data_bytes;
  int64_t data_offset, data_page_stride, data_head_stride, data_row_stride;
  void* scales; /* may be the same buffer; NULL for formats and layouts without scales of their own */
  size_t scales_bytes;
  int64_t scale_offset, scale_page_stride, scale_head_stride, scale_row_stride;
  const float* global; /* [kv_heads] or NULL = 1 */
} mpfa_pages;
MPFA_API void mpfa_pages_init(mpfa_pages* pages, size_t struct_size);
/* From format, layout, sizes: offsets 0 and strides without padding in order "nhd" [page, token, head, row] or "hnd"
 * [page, head, token, row], and data_bytes and scales_bytes as large as the buffers must be. */
MPFA_API mpfa_status mpfa_pages_dense(mpfa_pages* pages, const char* order, mpfa_error* error);
/* The same for pages of one buffer, each [K data | K scales | V data | V scales]: fills pointers, offsets and strides
 * of k and v. page_stride: bytes between pages, 0 for none but the content. */
MPFA_API mpfa_status mpfa_pages_joined(mpfa_pages* k, mpfa_pages* v, const char* order, void* buffer, size_t bytes,
                                       int64_t page_stride, mpfa_error* error);
/* Checks that every row lies inside its buffer and gives the operand of a mpfa_cache_view (layout "linear" only). */
MPFA_API mpfa_status mpfa_pages_operand(const mpfa_pages* pages, mpfa_operand_pages* operand, mpfa_error* error);
/* Text that says what the pages are, to travel beside their bytes: cut to tag_bytes. Checking refuses another one. */
MPFA_API mpfa_status mpfa_pages_tag(const mpfa_pages* pages, char* tag, size_t tag_bytes, mpfa_error* error);
MPFA_API mpfa_status mpfa_pages_check_tag(const mpfa_pages* pages, const char* tag, mpfa_error* error);
/* Page from_ids[i] to page to_ids[i] (distinct), changing the layout where the two differ, bit for bit. tokens: of the
 * source pages together when they are a sequence in order, so that slots past them are not read and become zero;
 * MPFA_ALL_TOKENS: every slot counts. Fails with nothing written. */
MPFA_API mpfa_status mpfa_pages_copy(const mpfa_pages* from, const mpfa_pages* to, const int32_t* from_ids,
                                     const int32_t* to_ids, int64_t count, int64_t tokens, mpfa_error* error);
/* Converts pages of "bf16" or "fp16" to `format` (8 or 4 bits) in the memory they are in, as after a prefill, and
 * describes the pool as pages of that format in `converted` (not the same struct; it keeps `format` and `global`). A
 * page must be contiguous, in either order. ids [count]: pages to convert, each once; pages of formats whose tokens
 * share scales must be full. mean [kv_heads, head_dim] is subtracted first, global [kv_heads] are calibrated scales;
 * both may be NULL. A converted page begins with its codes and scales, the rest of it is as it was. A refused call
 * changes nothing. Counters are added to what is there; may be NULL. */
MPFA_API mpfa_status mpfa_pages_convert(const mpfa_pages* pages, const char* format, const int32_t* ids, int64_t count,
                                        const float* mean, const float* global, mpfa_pages* converted,
                                        mpfa_counters* counters, mpfa_error* error);
/* Quantises token i of k [1, count, kv_heads, head_dim] and v into slot slot_mapping[i] = page * page_size + slot; -1
 * skips it. slot_mapping [count] of MPFA_I32 or MPFA_I64. The bytes are those of mpfa_cache_write_slots on a cache of
 * this config, whose sizes and global scales are those of the pages; with its shared_kv, v_pages and v are NULL and K
 * alone is written. rope turns k, and q into q_out, as in mpfa_cache_write_slots_rope; needs positions; NULL: none.
 * Counters are added to what is there; may be NULL. */
MPFA_API mpfa_status mpfa_pages_write(const mpfa_cache_config* config, const mpfa_pages* k_pages,
                                      const mpfa_pages* v_pages, const mpfa_tensor* k, const mpfa_tensor* v,
                                      const void* slot_mapping, mpfa_dtype slot_dtype, int64_t count,
                                      const mpfa_rope* rope, mpfa_counters* counters, mpfa_error* error);
/* Writes tokens to pages in GPU memory. Every pointer but those to structs is memory of the current CUDA device, also
 * in the pages and in rope. */
typedef struct mpfa_slot_write {
  size_t struct_size;
  const mpfa_pages *k_pages, *v_pages; /* layout "linear"; v_pages NULL and v.data NULL: K alone (latent) */
  mpfa_tensor k, v;                    /* [1, n, kv_heads, head_dim] and [1, n, kv_heads, head_dim_v], one dtype */
  const int64_t* slot_mapping;         /* [n] page * page_size + slot, each at most once; other values are skipped */
  const float *k_mean, *v_mean;        /* [kv_heads, head_dim], [kv_heads, head_dim_v] to subtract, or NULL */
  uint64_t* counters;                  /* [3] added to: the fields of mpfa_counters in order; may be NULL */
  const mpfa_rope* rope;               /* turns k and q in the same launch; needs positions; NULL: none */
  void* stream;                        /* cudaStream_t; NULL: the default stream */
} mpfa_slot_write;
MPFA_API void mpfa_slot_write_init(mpfa_slot_write* write, size_t struct_size);
/* One launch, enqueued; the bytes are those of mpfa_pages_write and mpfa_cache_write_slots_rope.
 * include/mpfa/device_cache.hpp lists formats, head dims and alignments. */
MPFA_API mpfa_status mpfa_write_slots(const mpfa_slot_write* write, mpfa_device device, mpfa_error* error);
/* Converts pages in GPU memory. Every pointer but those to structs and `format` is memory of the current CUDA device,
 * also in the pages. */
typedef struct mpfa_page_conversion {
  size_t struct_size;
  const mpfa_pages* pages; /* "bf16" or "fp16", layout "linear", as mpfa_pages_convert takes them */
  const char* format;      /* of 8 or 4 bits, one that mpfa_write_slots writes */
  const int32_t* ids;      /* [count] pages, each once; ids outside of the pool are skipped */
  int64_t count;
  const float *mean, *global; /* [kv_heads, head_dim] to subtract, [kv_heads] calibrated scales, or NULL */
  uint64_t* counters;         /* as in mpfa_slot_write */
  void* stream;               /* cudaStream_t; NULL: the default stream */
} mpfa_page_conversion;
MPFA_API void mpfa_page_conversion_init(mpfa_page_conversion* conversion, size_t struct_size);
/* One launch, enqueued; bytes and `converted` are those of mpfa_pages_convert. A page has at most 227 KB and begins at
 * a multiple of 16 bytes. */
MPFA_API mpfa_status mpfa_convert_pages(const mpfa_page_conversion* conversion, mpfa_device device,
                                        mpfa_pages* converted, mpfa_error* error);
/* A page table in compressed rows (indptr [batch + 1], indices [indices_count], last_page_len [batch]) as page_table
 * [batch, columns] (-1 past a sequence) and lengths [batch]. MPFA_OUT_OF_RANGE when a sequence has more pages. */
MPFA_API mpfa_status mpfa_page_table_from_csr(const int32_t* indptr, int64_t batch, const int32_t* indices,
                                              int64_t indices_count, const int32_t* last_page_len, int64_t num_pages,
                                              int64_t page_size, int32_t* page_table, int64_t columns, int64_t* lengths,
                                              mpfa_error* error);
/* The empty `sequence` of a cache gets `tokens` tokens that lie in pages ids [count], in token order, copied bit for
 * bit from any layout. For recipes without 16-bit tokens, means of a first append and rank-one terms. */
MPFA_API mpfa_status mpfa_cache_import_pages(mpfa_cache* cache, int64_t sequence, const mpfa_pages* k,
                                             const mpfa_pages* v, const int32_t* ids, int64_t count, int64_t tokens,
                                             mpfa_error* error);

/* ---- attention ---- */
typedef struct mpfa_problem {
  size_t struct_size;
  const mpfa_recipe* recipe; /* copied */
  int64_t batch;
  int64_t max_q;   /* most query rows of a sequence */
  int64_t total_q; /* ragged q: most rows of all sequences together; 0: batch * max_q */
  int64_t max_kv;  /* most keys of a sequence, now or later under the same plan */
  int64_t q_heads, kv_heads, head_dim, head_dim_v, page_size;
  mpfa_dtype q_dtype, out_dtype;        /* f32, bf16, f16 */
  float softmax_scale;                  /* 0: 1 / sqrt(head_dim) */
  float softcap;                        /* > 0: cap * tanh(logit / cap) */
  int64_t window_left, window_right;    /* -1: unlimited */
  int32_t causal, has_sinks, has_alibi; /* 0 or 1; bottom-right aligned */
  mpfa_mask_kind mask;
  int32_t threads;         /* most threads of a call; 0: as many as the process may use */
  int32_t batch_invariant; /* GPU: 1: a row's bits do not depend on the rest of the batch (the CPU is always so) */
} mpfa_problem;
MPFA_API void mpfa_problem_init(mpfa_problem* problem, size_t struct_size); /* defaults: no mask, f32, page_size 64 */

/* Exactly one of cache and view is set. With a plan for a GPU it is the view, and every pointer in it and here is
 * memory of the current CUDA device, also cu_seqlens_q, page_table, lengths and the array `sequences` with what it
 * points to. */
typedef struct mpfa_attend_args {
  size_t struct_size;
  mpfa_tensor q;               /* [batch, sq, q_heads, head_dim], or ragged [1, total_q, q_heads, head_dim] */
  const int64_t* cu_seqlens_q; /* [batch + 1] for ragged q, NULL for dense */
  mpfa_cache* cache;
  const mpfa_cache_view* view;
  mpfa_tensor out;               /* like q with head_dim_v */
  float* lse;                    /* [batch, q_heads, sq] or ragged [q_heads, total_q], natural log; may be NULL */
  const float* sinks;            /* [q_heads] */
  const float* alibi_slopes;     /* [q_heads] */
  mpfa_tensor mask;              /* [batch|1, q_heads|1, sq, sk], u8 (0 = masked) or f32 (added) */
  const mpfa_executor* executor; /* what runs the threads of the call; NULL: the library's pool */
  void* stream;                  /* GPU: the cudaStream_t to enqueue on; NULL: the default stream */
} mpfa_attend_args;
MPFA_API void mpfa_attend_args_init(mpfa_attend_args* args, size_t struct_size);

/* MPFA_OK and the kernel's name (cut to kernel_bytes, may be NULL), or MPFA_UNSUPPORTED and the reasons in error. */
MPFA_API mpfa_status mpfa_supports(const mpfa_problem* problem, mpfa_device device, char* kernel, size_t kernel_bytes,
                                   mpfa_error* error);
MPFA_API mpfa_status mpfa_plan_create(const mpfa_problem* problem, mpfa_device device, mpfa_plan** plan,
                                      mpfa_error* error);
MPFA_API void mpfa_plan_destroy(mpfa_plan* plan);
MPFA_API size_t mpfa_plan_workspace_bytes(const mpfa_plan* plan); /* 0 for NULL */
MPFA_API const char* mpfa_plan_kernel(const mpfa_plan* plan);     /* "" for NULL */
/* workspace: at least mpfa_plan_workspace_bytes, aligned to 64 bytes, owned by the caller, contents need not be set;
 * one for each call that runs at the same time. With a plan for a GPU it is device memory, and the call enqueues and
 * returns: it allocates nothing and does not wait, so a stream that captures a graph takes it, and the graph holds for
 * every length and page id that is in memory when it is launched. Memory of the host or of another device is refused.
 */
MPFA_API mpfa_status mpfa_attend(const mpfa_plan* plan, const mpfa_attend_args* args, void* workspace,
                                 size_t workspace_bytes, mpfa_error* error);
/* (Oa, La) + (Ob, Lb) over disjoint keys: o [rows, d], lse [rows]; -inf is the identity. Outputs may alias inputs. */
MPFA_API mpfa_status mpfa_merge_states(int64_t rows, int64_t d, const float* o_a, const float* lse_a, const float* o_b,
                                       const float* lse_b, float* o, float* lse, mpfa_error* error);
/* The same in GPU memory. Every pointer but that to the struct is memory of the current CUDA device. */
typedef struct mpfa_state_merge {
  size_t struct_size;
  mpfa_tensor a, b;           /* [batch, rows, heads, d], f32, bf16 or f16, contiguous along d; ragged rows: batch 1 */
  const float *lse_a, *lse_b; /* [batch, heads, rows] as mpfa_attend writes them */
  mpfa_tensor out;            /* the same shape; may be a or b */
  float* lse;                 /* [batch, heads, rows] or NULL; may be lse_a or lse_b */
  void* stream;               /* cudaStream_t; NULL: the default stream */
} mpfa_state_merge;
MPFA_API void mpfa_state_merge_init(mpfa_state_merge* merge, size_t struct_size);
/* One launch, enqueued. */
MPFA_API mpfa_status mpfa_merge(const mpfa_state_merge* merge, mpfa_device device, mpfa_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MPFA_MPFA_H_ */
