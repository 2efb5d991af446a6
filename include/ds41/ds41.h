/*
 * libds41: DeepSeek-V4.1's attention layers.
 *
 * One C99 header, one prefix. What a caller may rely on is in this file; what is not written here is not promised.
 *
 * Objects      Handles are opaque. `create` and `load` put the new object into their first argument and leave it
 *              untouched on failure; `destroy` accepts NULL. Objects may be destroyed in any order: a child keeps what
 *              it needs of its parent alive.
 * Errors       A function that can fail returns ds41_status. On failure ds41_last_error() tells, on the same thread,
 *              which argument was wrong, what came and what is accepted. Unless a comment says otherwise a failed call
 *              has changed nothing.
 * Structs      A struct that starts with `struct_size` is filled by its `_init` function, which comes before any member
 *              is set and is told the caller's sizeof. Such structs grow at their end: a caller built against an older
 *              header is served with the defaults for what it does not know; a caller built against a newer one is
 *              served as long as what we do not know is zero, and refused with DS41_STATUS_UNSUPPORTED otherwise. What
 *              we fill, we zero there. Reserved members and unknown flags must be 0 (DS41_STATUS_INVALID_ARGUMENT).
 * Ownership    Each pointer is one of: borrowed for the call; borrowed until the work is done; borrowed until destroy;
 *              copied. Strings that are returned are lent, for as long as the comment says.
 * Threads      A model is shared freely once its layers are set. Any other object is used by one thread at a time;
 *              different objects may be used by different threads at once. There is no other shared state.
 * Layout       Tensors are row-major and contiguous. Shapes are written outermost first. Positions count from 0.
 *
 * "Enqueues" means that the work may go on after the call returns; ds41_ctx_synchronize() waits for it. The cpu and
 * reference backends have finished when a call returns.
 */
#ifndef DS41_DS41_H
#define DS41_DS41_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#if defined(DS41_BUILDING)
#define DS41_API __declspec(dllexport)
#elif defined(DS41_STATIC)
#define DS41_API
#else
#define DS41_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define DS41_API __attribute__((visibility("default")))
#else
#define DS41_API
#endif

/* ---- Version --------------------------------------------------------------------------------------------------- */

/* The build system reads these three lines: header, soname and package cannot disagree. */
#define DS41_VERSION_MAJOR 0
#define DS41_VERSION_MINOR 1
#define DS41_VERSION_PATCH 0

/**
 * Version of the library that is running, "major.minor.patch"; DS41_VERSION_* is what the caller was built with.
 *
 * @return A static string. Never NULL. Any thread. Since 0.1.
 */
DS41_API const char *ds41_version(void);

/* ---- Status ---------------------------------------------------------------------------------------------------- */

/** Result of a call. Numbers never change their meaning; they are grouped by tens, with gaps. */
typedef enum ds41_status {
    DS41_STATUS_OK = 0,

    /* The arguments of this call. */
    DS41_STATUS_INVALID_ARGUMENT = 10, /**< NULL where an object is needed, or a value out of its range. */
    DS41_STATUS_INVALID_STRUCT = 11,   /**< struct_size is too small: the struct's _init function was not called. */
    DS41_STATUS_INVALID_DTYPE = 12,    /**< A tensor has a dtype that this place does not accept. */
    DS41_STATUS_INVALID_SHAPE = 13,    /**< A tensor's shape disagrees with the configuration or the step. */
    DS41_STATUS_INVALID_LAYER = 14,    /**< No such layer in the configuration. */
    DS41_STATUS_INVALID_POSITION = 15, /**< A span leaves a gap, repeats tokens, or ends beyond max_seq_len. */
    DS41_STATUS_INVALID_CONFIG = 16,   /**< The configuration contradicts itself or leaves its bounds. */

    /* The state that the call found. */
    DS41_STATUS_WRONG_ORDER = 20,     /**< Right call, wrong moment: a layer out of order, a source that has not run. */
    DS41_STATUS_MISSING_WEIGHTS = 21, /**< The layer's weights have not been set. */

    /* What this build or machine offers. */
    DS41_STATUS_UNSUPPORTED = 30, /**< Known, but not available in this build, backend or version. */
    DS41_STATUS_NO_BACKEND = 31,  /**< No backend of that name, or it cannot run here. */

    /* Resources. */
    DS41_STATUS_OUT_OF_MEMORY = 40,
    DS41_STATUS_DEVICE_ERROR = 41, /**< The GPU, its driver or one of its libraries failed. */

    /* Files. */
    DS41_STATUS_IO_ERROR = 50,       /**< The operating system refused: not found, not readable, ... */
    DS41_STATUS_INVALID_FILE = 51,   /**< The bytes are not what the format demands. */
    DS41_STATUS_MISSING_TENSOR = 52, /**< The file holds no tensor or metadata entry of that name. */

    /* The caller's own will. */
    DS41_STATUS_CANCELLED = 60, /**< A progress callback asked to stop. */

    /* Ours to repair. */
    DS41_STATUS_INTERNAL = 90
} ds41_status;

/**
 * The constant's name, such as "DS41_STATUS_INVALID_SHAPE"; "unknown status" for a number that is none.
 *
 * @return A static string. Never NULL. Any thread. Since 0.1.
 */
DS41_API const char *ds41_status_name(ds41_status status);

/**
 * One sentence about the last call that failed on this thread: function, argument, what came, what is accepted.
 *
 * @return A string of this thread, valid until its next failing call; "" when none has failed. Never NULL. Since 0.1.
 */
DS41_API const char *ds41_last_error(void);

/* ---- Log ------------------------------------------------------------------------------------------------------- */

typedef enum ds41_log_level {
    DS41_LOG_ERROR = 0,
    DS41_LOG_WARNING = 1,
    DS41_LOG_INFO = 2,
    DS41_LOG_DEBUG = 3
} ds41_log_level;

/**
 * Receives what a model has to say: which backend was chosen, problems of a checkpoint, values that were rounded. The
 * library prints nothing itself.
 *
 * @param level    A ds41_log_level.
 * @param message  One line without a newline. Borrowed for the call.
 * @param user     The pointer given beside the function.
 *
 * Called on the thread of the call that caused the message. Must not call back into the library, throw, or jump out.
 * Since 0.1.
 */
typedef void (*ds41_log_fn)(int32_t level, const char *message, void *user);

/* ---- Tensor ---------------------------------------------------------------------------------------------------- */

typedef enum ds41_dtype {
    DS41_DTYPE_NONE = 0, /**< No tensor here. */
    DS41_DTYPE_F32 = 1,
    DS41_DTYPE_BF16 = 2,
    DS41_DTYPE_FP8_E4M3 = 3, /**< OCP e4m3 "fn" codes with one UE8M0 scale byte per 32 x 32 block. */
    DS41_DTYPE_Q2_K = 4,     /**< ggml Q2_K: 84 bytes per 256 values of a row. Shapes count values, not bytes. */
    DS41_DTYPE_I32 = 5,      /**< Taps and files only. */
    DS41_DTYPE_U8 = 6,       /**< Taps and files only. */
    DS41_DTYPE_I8 = 7,       /**< Files only. */
    DS41_DTYPE_F16 = 8,      /**< Files only. */
    DS41_DTYPE_UE8M0 = 9     /**< Files only: power-of-two scale bytes, value 2^(byte - 127), 255 is invalid. */
} ds41_dtype;

#define DS41_MAX_DIMS 4

/**
 * ds41_tensor.flags: multiply quantised weights with the bf16 activations as they are. Without it an FP8 or Q2_K
 * projection quantises its activations first, as DeepSeek's reference (FP8) and ggml's decode kernels (Q2_K) do.
 * The weights then stand for their exact values: FP8 expands to bf16 without loss, Q2_K to f32. No effect on other
 * dtypes.
 */
#define DS41_TENSOR_PLAIN_ACTIVATIONS 1u

/**
 * A view of memory that somebody else owns. Fixed layout; zero it (or call ds41_tensor_init) before filling it in.
 *
 * `data` of inputs and outputs is aligned to its elements (4 bytes for F32 and I32, 2 for BF16 and F16, 1 otherwise);
 * weights that are copied need no alignment.
 */
typedef struct ds41_tensor {
    void *data;                   /**< First element. */
    const void *scales;           /**< FP8_E4M3: UE8M0 bytes, [ceil(rows / 32), cols / 32], row-major. Else NULL. */
    int64_t shape[DS41_MAX_DIMS]; /**< Elements, outermost first; unused entries are 0. */
    int64_t scale_shape[2];       /**< Shape of `scales`; 0, 0 where there are none. */
    int32_t dtype;                /**< A ds41_dtype. */
    int32_t n_dims;               /**< 1 to DS41_MAX_DIMS. */
    uint32_t flags;               /**< DS41_TENSOR_*; 0 is the default. */
    uint32_t reserved;            /**< 0. */
} ds41_tensor;

/**
 * Fill in a view of contiguous memory without scales.
 *
 * @param tensor  Filled completely. Nothing happens when it is NULL.
 * @param data    May be NULL. Kept as it is: the memory stays the caller's.
 * @param dtype   A ds41_dtype; not checked here but by the call that receives the tensor.
 * @param n_dims  Entries of `shape` to copy, at most DS41_MAX_DIMS; more are cut off, and the tensor will be refused.
 * @param shape   [n_dims], borrowed for the call.
 *
 * Host only, any thread. Since 0.1.
 */
DS41_API void ds41_tensor_init(ds41_tensor *tensor, void *data, int32_t dtype, int32_t n_dims, const int64_t *shape);

/**
 * Bytes that `data` of a tensor spans by its dtype and shape, scales not counted.
 *
 * @retval DS41_STATUS_INVALID_DTYPE  dtype is none of ds41_dtype, or NONE.
 * @retval DS41_STATUS_INVALID_SHAPE  n_dims or a dimension is out of range, a Q2_K row is no multiple of 256, or the
 *                                    product does not fit into 63 bits.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_tensor_get_bytes(const ds41_tensor *tensor, uint64_t *n_bytes);

/** "BF16" for DS41_DTYPE_BF16 and so on; "unknown dtype" for a number that is none. Static, never NULL. Since 0.1. */
DS41_API const char *ds41_dtype_name(int32_t dtype);

/* ---- Configuration --------------------------------------------------------------------------------------------- */

/** Most layers that a configuration can list, draft layers included. */
#define DS41_MAX_LAYERS 256

/**
 * Geometry of the model. Names are those of DeepSeek's reference (ModelArgs); no size is built in.
 *
 * A layer's ratio is compress_ratios[layer]: 0 attends to its window alone; r > 0 attends also to selected compressed
 * rows, one per r tokens. A layer with ratio > 0 that is no kv source reads the rows of the nearest kv source before
 * it; one that is no index source takes the selection of the nearest index source before it. Layers from n_layers on
 * (the draft layers) have ratio 0.
 */
typedef struct ds41_config {
    uint32_t struct_size;
    int32_t n_layers;               /**< Layers of the backbone. */
    int32_t n_compress_ratios;      /**< Layers in all, n_layers or more: the rest are draft layers. */
    int32_t n_kv_source_layers;     /**< Entries used of kv_source_layers. */
    int32_t n_index_source_layers;  /**< Entries used of index_source_layers. */
    int32_t candidate_source_layer; /**< An index source, or -1: no candidate blocks. */
    int32_t dim;                    /**< Width of x and out. */
    int32_t n_heads;                /**< A multiple of o_groups. */
    int32_t head_dim;               /**< A multiple of 32. */
    int32_t rope_head_dim;          /**< Rotated values at the end of each head; even, at most head_dim. */
    int32_t q_lora_rank;
    int32_t o_groups;
    int32_t o_lora_rank; /**< Per group. */
    int32_t window_size; /**< Positions p - window_size + 1 .. p are attended to uncompressed. */
    int32_t index_n_heads;
    int32_t index_head_dim;        /**< A multiple of 32, at least rope_head_dim. */
    int32_t index_topk;            /**< Compressed rows selected per token. */
    int32_t candidate_topk_blocks; /**< Blocks of groups that the candidate source keeps per token. */
    int32_t candidate_block_size;  /**< Groups per block. */
    float norm_eps;                /**< Inside the root of every norm; 1e-20 in V4.1. More than 0. */
    float rope_theta;              /**< Layers of ratio 0; never with YaRN. */
    float compress_rope_theta;     /**< Layers of ratio > 0. */
    float rope_factor;             /**< YaRN, layers of ratio > 0. */
    float beta_fast;               /**< YaRN. */
    float beta_slow;               /**< YaRN. */
    int32_t reserved;              /**< 0. */
    int64_t original_seq_len;      /**< YaRN: positions of the original training; 0 switches YaRN off. */
    int64_t max_seq_len;           /**< Positions a sequence may reach. Costs nothing until they are used. */
    int32_t compress_ratios[DS41_MAX_LAYERS];
    int32_t kv_source_layers[DS41_MAX_LAYERS];    /**< Ascending. */
    int32_t index_source_layers[DS41_MAX_LAYERS]; /**< Ascending. */
} ds41_config;

/** What the lists of a configuration say about one layer. */
typedef struct ds41_layer_role {
    uint32_t struct_size;
    int32_t ratio;               /**< 0: window only. */
    int32_t kv_source;           /**< Layer whose compressed rows it reads, itself included; -1 for ratio 0. */
    int32_t index_source;        /**< Layer whose selection it takes, itself included; -1 for ratio 0. */
    int32_t is_kv_source;        /**< 0 or 1. */
    int32_t is_index_source;     /**< 0 or 1. */
    int32_t is_candidate_source; /**< 0 or 1. */
    int32_t uses_candidates;     /**< 0 or 1: an index source that scores inside the candidate source's blocks only. */
    int32_t is_draft;            /**< 0 or 1: n_layers or beyond. */
} ds41_layer_role;

/**
 * Set struct_size, no layers, no sources, -1 for the candidate source and 0 elsewhere.
 *
 * @param config       NULL is ignored.
 * @param struct_size  sizeof(ds41_config), as the caller's header has it. All _init functions take it: they write no
 *                     more than that, and what the library knows beyond has its default.
 * Host only, any thread. Since 0.1.
 */
DS41_API void ds41_config_init(ds41_config *config, size_t struct_size);

/** Set struct_size and the values of DeepSeek-V4.1-Flash (40 layers and 3 draft layers). NULL is ignored. Since 0.1. */
DS41_API void ds41_config_flash(ds41_config *config, size_t struct_size);

/** Set struct_size and 0 elsewhere. NULL is ignored. Since 0.1. */
DS41_API void ds41_layer_role_init(ds41_layer_role *role, size_t struct_size);

/**
 * Read a configuration from JSON: the release's config.json (keys under `text_config`) or the flat names of the
 * reference's ModelArgs. Keys that do not concern attention are ignored; a missing one that does is an error, except
 * those with a default: candidate_source_layer (-1, and then candidate_topk_blocks and candidate_block_size),
 * max_seq_len (1048576).
 *
 * @param config   From ds41_config_init; overwritten on success, validated as by ds41_config_validate.
 * @param json     [n_bytes] UTF-8, borrowed for the call; no terminating NUL needed.
 * @retval DS41_STATUS_INVALID_FILE    Not JSON, or a key is missing or has another type.
 * @retval DS41_STATUS_INVALID_CONFIG  Read, but refused by validation.
 *
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_config_parse(ds41_config *config, const char *json, size_t n_bytes);

/** ds41_config_parse() of a file. @retval DS41_STATUS_IO_ERROR  It cannot be read. Since 0.1. */
DS41_API ds41_status ds41_config_load(ds41_config *config, const char *path);

/**
 * Check a configuration as ds41_model_create() does.
 *
 * @retval DS41_STATUS_INVALID_CONFIG  The message names the first member that is wrong, its value and the range.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_config_validate(const ds41_config *config);

/**
 * What a valid configuration says about a layer.
 *
 * @param layer  0 to n_compress_ratios - 1.
 * @param role   From ds41_layer_role_init.
 * @retval DS41_STATUS_INVALID_CONFIG, DS41_STATUS_INVALID_LAYER
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_config_get_role(const ds41_config *config, int32_t layer, ds41_layer_role *role);

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/** A safetensors file, mapped into memory. Immutable: shared freely between threads. */
typedef struct ds41_file ds41_file;

/**
 * Map a safetensors file and check its header: sizes, offsets, overlaps, dtypes, names. No tensor data is read.
 *
 * @param path  Copied.
 * @retval DS41_STATUS_IO_ERROR      Not found or not readable.
 * @retval DS41_STATUS_INVALID_FILE  Not a well-formed safetensors file; the message says what and where.
 *
 * The file must not be changed or truncated while it is mapped. Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_file_load(ds41_file **file, const char *path);

/** Unmap. Tensors lent by the file become invalid. NULL is ignored. Since 0.1. */
DS41_API void ds41_file_destroy(ds41_file *file);

/** Number of tensors; 0 for NULL. Since 0.1. */
DS41_API int64_t ds41_file_get_n_tensors(const ds41_file *file);

/** Name of tensor `index`, in ascending order of bytes; NULL past the end. Lent until destroy. Since 0.1. */
DS41_API const char *ds41_file_get_tensor_name(const ds41_file *file, int64_t index);

/**
 * View one tensor.
 *
 * @param name    Borrowed for the call.
 * @param tensor  Filled completely. `data` points into the mapping, read-only, valid until destroy. When the file has a
 *                tensor NAME.weight of F8_E4M3 and one of F8_E8M0 called NAME.scale, the view of the first carries the
 *                second as its scales.
 * @retval DS41_STATUS_MISSING_TENSOR  No tensor of that name.
 * @retval DS41_STATUS_INVALID_DTYPE   A dtype that has no ds41_dtype.
 * @retval DS41_STATUS_INVALID_SHAPE   More than DS41_MAX_DIMS dimensions.
 *
 * The format does not align tensors: `data` may lie at any byte. ds41_model_set_layer() takes such tensors with
 * DS41_OWNERSHIP_COPY; a caller that reads elements copies them out first.
 * Q2_K has no safetensors dtype: such tensors come as U8, [rows, cols / 256 * 84]. Any thread. Since 0.1.
 */
DS41_API ds41_status ds41_file_get_tensor(const ds41_file *file, const char *name, ds41_tensor *tensor);

/** Value of a key of the file's metadata, NUL-terminated UTF-8, lent until destroy; NULL when none. Since 0.1. */
DS41_API const char *ds41_file_get_metadata(const ds41_file *file, const char *key);

/* ---- Model ----------------------------------------------------------------------------------------------------- */

/**
 * Configuration, backend and the weights of some or all layers. Set up by one thread; immutable from the moment the
 * first context or sequence is created on it, and from then on shared freely.
 */
typedef struct ds41_model ds41_model;

/** Rule for equal scores at the cut of a selection. */
typedef enum ds41_topk_rule {
    /** Higher score first, then lower index, for groups and for candidate blocks. -inf and NaN are never taken. */
    DS41_TOPK_STABLE = 0,
    /**
     * The set that torch.topk returns on a CPU, ties included: for parity checks against outputs of the original.
     * Masked groups in reach are taken when too few others remain. The set depends on how many groups there are at the
     * end of the prefill, so chunks reproduce a whole prefill only with ds41_ctx_options.topk_end_pos. On the host.
     */
    DS41_TOPK_TORCH_CPU = 1
} ds41_topk_rule;

typedef struct ds41_model_options {
    uint32_t struct_size;
    int32_t topk_rule;   /**< A ds41_topk_rule. Default DS41_TOPK_STABLE. */
    const char *backend; /**< Name, or "auto" or NULL for the best that runs here. Borrowed for the call. */
    ds41_log_fn log;     /**< May be NULL. */
    void *log_user;      /**< Passed to `log`. Borrowed until the model and all its children are destroyed. */
} ds41_model_options;

/** Who owns the memory of weights after ds41_model_set_layer(). */
typedef enum ds41_ownership {
    DS41_OWNERSHIP_COPY = 0,  /**< Copied; the caller may free its memory at once. */
    DS41_OWNERSHIP_BORROW = 1 /**< Aligned to its elements, and borrowed until the model and all contexts and sequences
                                   of it are destroyed. Norms and sinks are small and copied all the same. */
} ds41_ownership;

/**
 * Weights of one layer, in host memory. Matrices are [out, in] as in the release's checkpoint; names are the release's,
 * with `.` as `_`. "Projection" means F32, BF16, FP8_E4M3 or Q2_K (with in a multiple of 32 for FP8 and of 256 for
 * Q2_K); "vector" means F32 or BF16. Absent tensors have dtype DS41_DTYPE_NONE.
 *
 * FP8 activations are quantised for wq_a, wq_b, wkv, wo_b and indexer_wq_b, as in the reference, unless the tensor's
 * flag says otherwise; the other projections always take them as they are.
 */
typedef struct ds41_layer_weights {
    uint32_t struct_size;
    int32_t ownership; /**< A ds41_ownership. Default DS41_OWNERSHIP_COPY. */

    /* Every layer. */
    ds41_tensor wq_a;      /**< Projection [q_lora_rank, dim]. */
    ds41_tensor q_norm;    /**< Vector [q_lora_rank]. */
    ds41_tensor wq_b;      /**< Projection [n_heads * head_dim, q_lora_rank]. */
    ds41_tensor wkv;       /**< Projection [head_dim, dim]. */
    ds41_tensor kv_norm;   /**< Vector [head_dim]. */
    ds41_tensor attn_sink; /**< Vector [n_heads]; -inf: no sink, +inf: the head gives zeros, NaN is refused. */
    ds41_tensor wo_a;      /**< Projection [o_groups * o_lora_rank, n_heads * head_dim / o_groups]. */
    ds41_tensor wo_b;      /**< Projection [dim, o_groups * o_lora_rank]. */

    /* kv sources. */
    ds41_tensor compressor_wkv;   /**< [head_dim, dim]: projection for ratio 1, F32 or BF16 for more. */
    ds41_tensor compressor_wgate; /**< [head_dim, dim], F32 or BF16; ratio > 1 only. */
    ds41_tensor compressor_norm;  /**< Vector [head_dim]. */

    /* kv sources that are index sources. */
    ds41_tensor indexer_wk;     /**< Projection [index_head_dim, head_dim]. */
    ds41_tensor indexer_k_norm; /**< Vector [index_head_dim]. */

    /* Index sources. */
    ds41_tensor indexer_wq_b;         /**< Projection [index_n_heads * index_head_dim, q_lora_rank]. */
    ds41_tensor indexer_weights_proj; /**< Projection [index_n_heads, dim]. */
} ds41_layer_weights;

/**
 * What a deployment will take, in bytes, for this model on its backend: exactly the weights, cache pages and buffers
 * that are allocated for it. Bookkeeping beside them (some bytes per token of a step and per page) is not counted.
 */
typedef struct ds41_memory {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t weights;     /**< Held now by the model for the layers that are set; borrowed memory is not counted. */
    uint64_t window;      /**< Window rows of all sequences, every layer that is set. */
    uint64_t compressed;  /**< Compressed rows of all sequences. */
    uint64_t index_keys;  /**< Index keys of all sequences. */
    uint64_t group_state; /**< Incomplete groups of all sequences. */
    uint64_t workspace;   /**< One context, for steps of n_tokens tokens at that length. */
} ds41_memory;

/** Name of backend `index` of this build, best first, whether or not it can run here; NULL past the end. Since 0.1. */
DS41_API const char *ds41_backend_get_name(int32_t index);

/** Set struct_size and the defaults. NULL is ignored. Since 0.1. */
DS41_API void ds41_model_options_init(ds41_model_options *options, size_t struct_size);

/** Set struct_size and no tensors. NULL is ignored. Since 0.1. */
DS41_API void ds41_layer_weights_init(ds41_layer_weights *weights, size_t struct_size);

/** Set struct_size and 0 elsewhere. NULL is ignored. Since 0.1. */
DS41_API void ds41_memory_init(ds41_memory *memory, size_t struct_size);

/**
 * Create a model without weights.
 *
 * @param model    Receives the handle; destroy it with ds41_model_destroy().
 * @param config   Copied.
 * @param options  Borrowed for the call; NULL for the defaults.
 * @retval DS41_STATUS_INVALID_CONFIG  As ds41_config_validate().
 * @retval DS41_STATUS_NO_BACKEND      No such name: the message lists those that there are. Or it cannot run here, and
 *                                     the message says why: its library, the driver or a device is missing, or the
 *                                     kernels were built for other devices.
 * @retval DS41_STATUS_INVALID_ARGUMENT  options->topk_rule is none.
 * @retval DS41_STATUS_UNSUPPORTED     The rule cannot be reproduced by this build.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_model_create(ds41_model **model, const ds41_config *config,
                                       const ds41_model_options *options);

/** Give up the caller's reference. Contexts, sequences and buffers keep what they need. NULL is ignored. Since 0.1. */
DS41_API void ds41_model_destroy(ds41_model *model);

/**
 * Hand over the weights of one layer. Setting a layer again replaces its weights.
 *
 * @param layer    0 to n_compress_ratios - 1.
 * @param weights  The struct is borrowed for the call; the tensors' memory as `ownership` says. Must hold exactly the
 *                 tensors of the layer's role (ds41_config_get_role).
 * @retval DS41_STATUS_INVALID_ARGUMENT  A tensor is absent, or present without use; a scale byte is 255; a sink is NaN;
 *                                       data is NULL, or borrowed and misaligned.
 * @retval DS41_STATUS_INVALID_DTYPE, DS41_STATUS_INVALID_SHAPE
 * @retval DS41_STATUS_WRONG_ORDER       A context or sequence of the model has been created already.
 * @retval DS41_STATUS_OUT_OF_MEMORY
 * Host only, one thread at a time. Since 0.1.
 */
DS41_API ds41_status ds41_model_set_layer(ds41_model *model, int32_t layer, const ds41_layer_weights *weights);

/** Name of the backend that the model runs on, such as "reference"; "" for NULL. Static. Since 0.1. */
DS41_API const char *ds41_model_get_backend(const ds41_model *model);

/** Copy out the model's configuration. @param config  From ds41_config_init. Any thread. Since 0.1. */
DS41_API ds41_status ds41_model_get_config(const ds41_model *model, ds41_config *config);

/**
 * What sequences and a context of this model will take, before any is created.
 *
 * @param n_seqs       0 or more.
 * @param n_positions  Tokens per sequence, 0 to max_seq_len.
 * @param n_tokens     Tokens of the largest step, 1 or more. The context is one with default options: each thread that
 *                     ds41_ctx_options.n_threads allows has some memory of its own.
 * @param memory       From ds41_memory_init.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_model_estimate_memory(const ds41_model *model, int64_t n_seqs, int64_t n_positions,
                                                int64_t n_tokens, ds41_memory *memory);

/* ---- Checkpoints ----------------------------------------------------------------------------------------------- */
/*
 * A checkpoint is what people publish: the release's folder (config.json, model.safetensors.index.json and its shards),
 * one safetensors file with its config.json beside it, or a GGUF, of which any shard of a split one names the whole.
 * Tensor names are the release's (`layers.L.attn.NAME`, `mtp.M.attn.NAME` for draft layer n_layers + M) or llama.cpp's
 * (`blk.L.NAME`); everything that does not belong to these layers is left alone, its bytes are never read.
 *
 * What a type of the file becomes in a model:
 *
 *   F32, BF16              stay; norms and sinks become F32
 *   F8_E4M3 with F8_E8M0   stay (FP8_E4M3); BF16 with DS41_LOAD_EXPAND_FP8, and for compressors of ratio > 1
 *   Q2_K                   stays; F32 for compressors of ratio > 1
 *   F16                    BF16; F32 for norms, sinks and compressors of ratio > 1
 *   Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, Q3_K, MXFP4
 *                          BF16; F32 for compressors of ratio > 1
 *
 * Expanding rounds to nearest even where BF16 cannot hold a value; the log says for which tensors and how many values.
 * Other types are refused.
 */

/** An open checkpoint. Immutable: shared freely between threads. */
typedef struct ds41_checkpoint ds41_checkpoint;

/** One tensor of these layers in a checkpoint. */
typedef struct ds41_checkpoint_tensor {
    uint32_t struct_size;
    int32_t layer;      /**< 0 to n_compress_ratios - 1. */
    const char *member; /**< Its member of ds41_layer_weights, such as "wq_a". Static. */
    const char *name;   /**< As in the file. Lent until destroy. */
    const char *type;   /**< As the file calls it, such as "F8_E4M3" or "Q8_0". Static. */
    int64_t shape[2];   /**< Outermost first; [n, 0] for vectors. */
    int32_t n_dims;     /**< 1 or 2. */
    int32_t file;       /**< Index for ds41_checkpoint_get_file(). */
    int32_t dtype;      /**< The ds41_dtype that it has in a model loaded with the default options. */
    int32_t reserved;
    uint64_t n_bytes;       /**< In the file, scales included. */
    uint64_t n_model_bytes; /**< In that model, scales included. */
} ds41_checkpoint_tensor;

/**
 * Told how a load goes on.
 *
 * @param n_done   Bytes of the files that have been dealt with; never less than before. The first call has 0, the last
 *                 of a load that succeeds has n_total.
 * @param tensor   Name of a tensor that is being read, fp8 scales included. Borrowed for the call.
 * @return 0 to go on; anything else cancels the load.
 *
 * Called on the thread of the load, which waits for it; calls may be far apart, and the last one cancels as well. May
 * call the library on other objects. Must not throw or jump out. Since 0.1.
 */
typedef int32_t (*ds41_progress_fn)(uint64_t n_done, uint64_t n_total, const char *tensor, void *user);

/**
 * ds41_load_options.flags: leave weights that keep their form in the mapping of the file, where the backend computes in
 * host memory and they lie aligned to their elements; the rest is copied. The system is asked to read ahead, but pages
 * may be read as late as at their first use; files stay open, and must not be changed or truncated, until the model and
 * all its children are destroyed.
 */
#define DS41_LOAD_MAP 1u

/**
 * ds41_load_options.flags: FP8 weights become BF16, without loss but at the ends of bf16's range, and are multiplied
 * with the activations as they are.
 */
#define DS41_LOAD_EXPAND_FP8 2u

/** ds41_load_options.flags: Q2_K weights are multiplied with the bf16 activations (DS41_TENSOR_PLAIN_ACTIVATIONS). */
#define DS41_LOAD_PLAIN_Q2_K 4u

typedef struct ds41_load_options {
    uint32_t struct_size;
    uint32_t flags;                  /**< DS41_LOAD_*; 0 is the default. */
    const ds41_model_options *model; /**< Borrowed for the call; NULL for the defaults. */
    const ds41_config *config;       /**< Instead of the checkpoint's own. Borrowed for the call; NULL: its own. */
    int64_t max_seq_len;             /**< Instead of a valid configuration's own. 0: as it says. */
    int32_t first_layer;             /**< Default 0. */
    int32_t n_layers;                /**< 0: to the end, less draft layers of which the checkpoint holds nothing. */
    int32_t n_threads;               /**< That read and expand, the caller's included, at most 1024. 0: one per core,
                                          at most 8. */
    int32_t reserved;                /**< 0. */
    ds41_progress_fn progress;       /**< May be NULL. */
    void *progress_user;             /**< Passed to `progress`. */
} ds41_load_options;

/** Set struct_size and 0 elsewhere. NULL is ignored. Since 0.1. */
DS41_API void ds41_checkpoint_tensor_init(ds41_checkpoint_tensor *tensor, size_t struct_size);

/** Set struct_size and the defaults. NULL is ignored. Since 0.1. */
DS41_API void ds41_load_options_init(ds41_load_options *options, size_t struct_size);

/**
 * Open a checkpoint: read its configuration and the headers of the files that hold its attention tensors. What is wrong
 * with single tensors is no failure but listed by ds41_checkpoint_get_problem().
 *
 * @param path  A folder, a safetensors file, or a GGUF. Copied.
 * @retval DS41_STATUS_IO_ERROR      Not found or not readable; a shard of a split GGUF is not there. (A shard of the
 *                                   release that is not leaves a problem for the layers that it holds.)
 * @retval DS41_STATUS_INVALID_FILE  Neither format, a header that is not well formed, shards that do not belong
 *                                   together.
 * @retval DS41_STATUS_UNSUPPORTED   A GGUF that is big endian, or of another version than 2 and 3.
 * @retval DS41_STATUS_OUT_OF_MEMORY
 *
 * ds41_model_load() needs no open checkpoint: it takes the same path. The files must not be changed or truncated until
 * destroy. Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_checkpoint_load(ds41_checkpoint **checkpoint, const char *path);

/** Close the files. NULL is ignored. Since 0.1. */
DS41_API void ds41_checkpoint_destroy(ds41_checkpoint *checkpoint);

/** "safetensors" or "gguf"; "" for NULL. Static. Since 0.1. */
DS41_API const char *ds41_checkpoint_get_format(const ds41_checkpoint *checkpoint);

/** Number of files that were opened: shards of the release without attention tensors are not. 0 for NULL. Since 0.1. */
DS41_API int64_t ds41_checkpoint_get_n_files(const ds41_checkpoint *checkpoint);

/** Path of file `index`; NULL past the end. Lent until destroy. Since 0.1. */
DS41_API const char *ds41_checkpoint_get_file(const ds41_checkpoint *checkpoint, int64_t index);

/**
 * The configuration that the checkpoint comes with: config.json, or the metadata of a GGUF. A GGUF that does not list
 * its sources has them derived from the tensors that its layers hold.
 *
 * @param config  From ds41_config_init.
 * @retval DS41_STATUS_IO_ERROR        A safetensors file without a config.json beside it.
 * @retval DS41_STATUS_INVALID_FILE    A key is missing or has another type; listed sources contradict the tensors.
 * @retval DS41_STATUS_INVALID_CONFIG  Read, but refused by validation.
 * @retval DS41_STATUS_UNSUPPORTED     config.json names another quantisation than fp8 in blocks of 32 x 32.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_checkpoint_get_config(const ds41_checkpoint *checkpoint, ds41_config *config);

/**
 * Number of tensors of these layers that are right, scales counted with their weights; 0 for NULL, and where there is
 * no valid configuration. Since 0.1.
 */
DS41_API int64_t ds41_checkpoint_get_n_tensors(const ds41_checkpoint *checkpoint);

/**
 * Describe a tensor; they are in order of layers, and within one in that of ds41_layer_weights.
 *
 * @param index   0 to ds41_checkpoint_get_n_tensors() - 1.
 * @param tensor  From ds41_checkpoint_tensor_init.
 * @retval DS41_STATUS_INVALID_ARGUMENT  index is out of range.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_checkpoint_get_tensor(const ds41_checkpoint *checkpoint, int64_t index,
                                                ds41_checkpoint_tensor *tensor);

/** Number of things that keep all layers from being loaded; 0 for NULL. Since 0.1. */
DS41_API int64_t ds41_checkpoint_get_n_problems(const ds41_checkpoint *checkpoint);

/** A sentence about problem `index`, with what was expected; NULL past the end. Lent until destroy. Since 0.1. */
DS41_API const char *ds41_checkpoint_get_problem(const ds41_checkpoint *checkpoint, int64_t index);

/**
 * What a model loaded with `options`, its sequences and a context will take, as ds41_model_estimate_memory() tells once
 * it is loaded. `weights` counts what is copied; with DS41_LOAD_MAP the rest is in the files.
 *
 * @param options  Borrowed for the call; NULL for the defaults.
 * @param memory   From ds41_memory_init.
 * @retval as ds41_model_load(), but nothing is read.
 * Host only, any thread. Since 0.1.
 */
DS41_API ds41_status ds41_checkpoint_estimate_memory(const ds41_checkpoint *checkpoint,
                                                     const ds41_load_options *options, int64_t n_seqs,
                                                     int64_t n_positions, int64_t n_tokens, ds41_memory *memory);

/**
 * Create a model with the weights of a checkpoint, all layers or a range of them.
 *
 * @param model    Receives the handle; destroy it with ds41_model_destroy().
 * @param path     As ds41_checkpoint_load(). Borrowed for the call.
 * @param options  Borrowed for the call; NULL for the defaults.
 * @retval DS41_STATUS_MISSING_TENSOR, DS41_STATUS_INVALID_DTYPE, DS41_STATUS_INVALID_SHAPE, DS41_STATUS_INVALID_FILE
 *                                       Tensors of the chosen layers are missing, unexpected, wrongly typed or shaped,
 *                                       or hold what no model takes (a scale byte of 255, a sink that is NaN).
 *                                       The message names the first dozen, with what was expected, and the log gets a
 *                                       line each; the status is the first one's. Values that no model takes are told
 *                                       one at a time.
 * @retval DS41_STATUS_INVALID_LAYER     The range leaves the configuration.
 * @retval DS41_STATUS_INVALID_ARGUMENT  flags, n_threads, max_seq_len or reserved; as ds41_model_create().
 * @retval DS41_STATUS_CANCELLED         `progress` asked for it.
 * @retval others                        As ds41_checkpoint_load(), ds41_checkpoint_get_config(), ds41_model_create().
 *
 * On any failure nothing stays behind. Starts threads and ends them before it returns. The files must not be truncated
 * while their headers are read; what is truncated later is an error. Any thread. Since 0.1.
 */
DS41_API ds41_status ds41_model_load(ds41_model **model, const char *path, const ds41_load_options *options);

/* ---- Buffer ---------------------------------------------------------------------------------------------------- */

/** Memory on the model's device, for callers without a library of their own for it. */
typedef struct ds41_buffer ds41_buffer;

/**
 * Allocate. The contents are undefined.
 *
 * @param n_bytes  1 or more.
 * @retval DS41_STATUS_OUT_OF_MEMORY
 * @retval DS41_STATUS_WRONG_ORDER  This thread captures a graph; so say ds41_buffer_upload() and _download() as well.
 * Any thread. Since 0.1.
 */
DS41_API ds41_status ds41_buffer_create(ds41_buffer **buffer, ds41_model *model, uint64_t n_bytes);

/** Free. The caller sees to it that no work uses the memory any more. NULL is ignored. Since 0.1. */
DS41_API void ds41_buffer_destroy(ds41_buffer *buffer);

/** Address on the device, aligned to 64 bytes, for ds41_tensor.data; valid until destroy. NULL for NULL. Since 0.1. */
DS41_API void *ds41_buffer_get_data(const ds41_buffer *buffer);

/** Size in bytes; 0 for NULL. Since 0.1. */
DS41_API uint64_t ds41_buffer_get_bytes(const ds41_buffer *buffer);

/**
 * Copy n_bytes from the host to `offset`. Waits for the copy, not for what contexts have enqueued on the same memory:
 * ds41_ctx_synchronize() comes first.
 *
 * @retval DS41_STATUS_INVALID_ARGUMENT  Out of range.
 * @retval DS41_STATUS_DEVICE_ERROR
 * Since 0.1.
 */
DS41_API ds41_status ds41_buffer_upload(ds41_buffer *buffer, uint64_t offset, const void *source, uint64_t n_bytes);

/** Copy n_bytes from `offset` to the host. Waits. @retval DS41_STATUS_INVALID_ARGUMENT  Out of range. Since 0.1. */
DS41_API ds41_status ds41_buffer_download(const ds41_buffer *buffer, uint64_t offset, void *target, uint64_t n_bytes);

/* ---- Context --------------------------------------------------------------------------------------------------- */

/** Executes steps: a stream, workspaces, and the step in flight with what its layers publish for each other. */
typedef struct ds41_ctx ds41_ctx;

/** One part of a step's work: to be called with each index of [0, n) of the ds41_parallel_fn call that brought it. */
typedef void (*ds41_task_fn)(void *task_arg, int32_t index);

/**
 * A host's own parallel-for: call task(task_arg, i) for each i of [0, n), on any threads, at once or one after the
 * other, and return when all have returned. n is at most ds41_ctx_options.n_threads.
 *
 * @param user  The pointer given beside the function.
 *
 * Called on the thread of the call that has work to do, any number of times, never from within a task. Must not call
 * back into the library with the same context, throw, or jump out. Outputs do not depend on what it does with the
 * indices. Since 0.1.
 */
typedef void (*ds41_parallel_fn)(int32_t n, ds41_task_fn task, void *task_arg, void *user);

/** ds41_ctx_options.flags: bind each thread of the context, but not the caller's, to a CPU of its own (Linux). */
#define DS41_CTX_PIN_THREADS 1u

/** Most threads of a context. */
#define DS41_MAX_THREADS 1024

/**
 * The cpu backend computes on the caller's thread and n_threads - 1 of its own, which belong to the context, start with
 * its first step, block all signals and sleep between steps; a step too short to be shared does not wake them. Outputs
 * are the same bits for any number of threads. Backends without threads ignore the last four members.
 */
typedef struct ds41_ctx_options {
    uint32_t struct_size;
    int32_t attention_split; /**< cuda: thread blocks that share the attention of a token's heads, 1 to 8; 0, the
                                  default: as many as fill a GPU. The same bits for any. Ignored elsewhere. */
    void *stream;            /**< A CUDA stream on a CUDA backend; NULL elsewhere. Borrowed until destroy. */
    int64_t topk_end_pos; /**< DS41_TOPK_TORCH_CPU only: rank as if each prefill ended at this position (the end of the
                               whole prompt) when its chunk ends before it. 0: at the end of the chunk. */
    int32_t n_threads;    /**< Threads that a step may use, the caller's among them: 1 for none but it, at most
                               DS41_MAX_THREADS; 0, the default: as many as CPUs that the process may run on. */
    uint32_t flags;       /**< DS41_CTX_*; 0 is the default. */
    ds41_parallel_fn parallel; /**< Runs the context's work instead of threads of its own; NULL for those. */
    void *parallel_user;       /**< Passed to `parallel`. Borrowed until destroy. */
} ds41_ctx_options;

/** Set struct_size and the defaults. NULL is ignored. Since 0.1. */
DS41_API void ds41_ctx_options_init(ds41_ctx_options *options, size_t struct_size);

/**
 * Create a context. The model is immutable from here on.
 *
 * @param options  Borrowed for the call; NULL for the defaults.
 * @retval DS41_STATUS_INVALID_ARGUMENT  A stream on a backend without streams; topk_end_pos or n_threads out of range;
 *                                       flags that there are not; parallel_user without parallel.
 * @retval DS41_STATUS_NO_BACKEND        The environment variable DS41_CPU_TARGET names no instruction set of this
 *                                       machine.
 * @retval DS41_STATUS_OUT_OF_MEMORY
 * Any thread. Since 0.1.
 */
DS41_API ds41_status ds41_ctx_create(ds41_ctx **ctx, ds41_model *model, const ds41_ctx_options *options);

/** Wait for the context's work, then free it. NULL is ignored. Since 0.1. */
DS41_API void ds41_ctx_destroy(ds41_ctx *ctx);

/**
 * Wait until everything that was enqueued has finished.
 *
 * @retval DS41_STATUS_WRONG_ORDER   A graph is being captured.
 * @retval DS41_STATUS_DEVICE_ERROR  A fault of that work. With DS41_CHECK_STAGES set in the environment when the
 * context is created, every stage is waited for, and the call that enqueued it reports it. Since 0.1.
 */
DS41_API ds41_status ds41_ctx_synchronize(ds41_ctx *ctx);

/** Bytes of workspace that the context holds now; 0 for NULL. Since 0.1. */
DS41_API uint64_t ds41_ctx_get_bytes(const ds41_ctx *ctx);

/* ---- Sequence -------------------------------------------------------------------------------------------------- */

/**
 * State of one sequence in every layer: window ring, incomplete group, compressed rows, index keys. Rows are stored
 * packed (per 512 values: 528 bytes in the window, 288 compressed; 68 per index key of 128) in pages that grow with the
 * sequence. Each layer counts its own position: a layer that a caller leaves out falls behind and refuses to continue.
 */
typedef struct ds41_seq ds41_seq;

/** For ds41_seq_get_position: the furthest position that any layer has reached. */
#define DS41_ALL_LAYERS (-1)

/** Create an empty sequence. Takes no cache memory. The model is immutable from here on. Since 0.1. */
DS41_API ds41_status ds41_seq_create(ds41_seq **seq, ds41_model *model);

/**
 * Free. A step that uses the sequence is over: its further layers are refused. NULL is ignored.
 * Not while another thread runs a step with it. Since 0.1.
 */
DS41_API void ds41_seq_destroy(ds41_seq *seq);

/** Forget all tokens, in every layer; pages are kept for reuse. A step that uses the sequence is over. Since 0.1. */
DS41_API ds41_status ds41_seq_reset(ds41_seq *seq);

/**
 * Tokens that a layer has seen, which is the start_pos of its next step.
 *
 * @param layer  0 to n_compress_ratios - 1, or DS41_ALL_LAYERS.
 * @retval DS41_STATUS_INVALID_LAYER
 * Host only. Since 0.1.
 */
DS41_API ds41_status ds41_seq_get_position(const ds41_seq *seq, int32_t layer, int64_t *position);

/**
 * Allocate pages for the first n_positions tokens in every layer whose weights are set, so that steps up to there
 * allocate no cache memory. Never shrinks.
 *
 * @param n_positions  0 to max_seq_len.
 * @retval DS41_STATUS_OUT_OF_MEMORY  Pages that were allocated before the failure are kept; tokens are untouched.
 * @retval DS41_STATUS_WRONG_ORDER    This thread captures a graph.
 * Since 0.1.
 */
DS41_API ds41_status ds41_seq_reserve(ds41_seq *seq, int64_t n_positions);

/** Bytes of cache memory that the sequence holds now; 0 for NULL. Since 0.1. */
DS41_API uint64_t ds41_seq_get_bytes(const ds41_seq *seq);

/* ---- Steps ----------------------------------------------------------------------------------------------------- */
/*
 * A step is a list of spans, each some new tokens of one sequence, taken through the layers in ascending order. Layers
 * may be left out, but what a layer reads (compressed rows, a selection, candidate blocks) must have been published in
 * the same step by the layer that its role names. A step ends when another begins on the context, or when one of its
 * sequences is reset, destroyed, or taken into a step of another context; what it published ends with it.
 */

/**
 * Run one layer over new tokens of one sequence. The first call of a step begins it; calls for further layers with the
 * same sequence, n_tokens and start_pos belong to it. Chunks continue: a whole prompt and the same prompt in chunks of
 * any sizes leave the same state and give the same bits. (On the cuda backend prefills of more than 16 tokens
 * use cuBLAS and tensor cores, whose sums come in another order: the same bits there among chunks of at most 16 tokens,
 * and decode steps of any batch.)
 *
 * @param layer      A layer with weights, above those that the step has run.
 * @param x          Input [n_tokens, dim], BF16, on the model's device: the layer's input after its attention norm.
 *                   Borrowed until the work is done.
 * @param n_tokens   1 or more.
 * @param start_pos  Position of the first token: where this layer of the sequence stands (ds41_seq_get_position).
 * @param out        Output [n_tokens, dim], BF16, same device. May be x itself, but not overlap it otherwise. Untouched
 *                   when an error is returned.
 *
 * @retval DS41_STATUS_INVALID_ARGUMENT  NULL, n_tokens below 1, misaligned or overlapping data, a foreign sequence.
 * @retval DS41_STATUS_INVALID_LAYER     No such layer.
 * @retval DS41_STATUS_MISSING_WEIGHTS   The layer has no weights.
 * @retval DS41_STATUS_INVALID_DTYPE, DS41_STATUS_INVALID_SHAPE  x or out.
 * @retval DS41_STATUS_INVALID_POSITION  start_pos is not where the layer stands, or the end is beyond max_seq_len.
 * @retval DS41_STATUS_WRONG_ORDER       Not above the step's last layer, or a layer it reads from has not run in it.
 * @retval DS41_STATUS_OUT_OF_MEMORY     Pages that were allocated are kept; tokens are untouched.
 * @retval DS41_STATUS_DEVICE_ERROR      What the GPU reported, possibly of work that was enqueued earlier.
 *
 * Enqueues; may allocate. Refused during a capture with DS41_STATUS_WRONG_ORDER. Since 0.1.
 */
DS41_API ds41_status ds41_layer_prefill(ds41_ctx *ctx, int32_t layer, ds41_seq *seq, const ds41_tensor *x,
                                        int32_t n_tokens, int64_t start_pos, const ds41_tensor *out);

/** New tokens of one sequence. Fixed layout. */
typedef struct ds41_span {
    ds41_seq *seq;     /**< Each sequence at most once in a step. Borrowed until the step is over. */
    int64_t start_pos; /**< Position of the first of them. */
    int32_t n_tokens;  /**< 1 for a decode step; a few to verify drafts. */
    int32_t reserved;  /**< 0. */
} ds41_span;

/**
 * Begin a step of several sequences: the host half, once for all layers. Row i of the step's tensors is token i of the
 * spans' tokens, one span after the other.
 *
 * @param spans    [n_spans], borrowed for the call.
 * @param n_spans  1 or more.
 * @retval DS41_STATUS_INVALID_ARGUMENT  NULL, a count out of range, a sequence twice, a foreign sequence.
 * @retval DS41_STATUS_INVALID_POSITION  No layer of the sequence stands at start_pos, or the end is beyond max_seq_len.
 * @retval DS41_STATUS_MISSING_WEIGHTS   No layer of the model has weights.
 * @retval DS41_STATUS_OUT_OF_MEMORY     Pages that were allocated are kept. The previous step stays in flight.
 * @retval DS41_STATUS_WRONG_ORDER       A graph is being captured on ctx, or its stream is; nothing is touched.
 * @retval DS41_STATUS_DEVICE_ERROR      What the GPU reported, possibly of work that was enqueued earlier.
 *
 * Allocates pages and workspaces for every layer that stands at start_pos. On cuda, what layers need of the step goes
 * to the device in one asynchronous copy of what changed, which takes no longer for longer sequences. Since 0.1.
 */
DS41_API ds41_status ds41_decode_prep(ds41_ctx *ctx, const ds41_span *spans, int32_t n_spans);

/**
 * Enqueue the device half of one layer of the step last prepared on `ctx`.
 *
 * @param layer  A layer with weights, above those that the step has run.
 * @param x      Input  [n_rows, dim], BF16, on the model's device; n_rows is the sum of the spans' n_tokens.
 *               Borrowed until the work is done.
 * @param out    Output [n_rows, dim], BF16, same device. May be x itself, but not overlap it otherwise. Untouched when
 *               an error is returned.
 *
 * @retval DS41_STATUS_WRONG_ORDER       No step prepared, the step is over, the layer is not above the last one, or a
 *                                       layer it reads from has not run in this step.
 * @retval DS41_STATUS_INVALID_POSITION  This layer does not stand at the start of a span.
 * @retval DS41_STATUS_INVALID_ARGUMENT, DS41_STATUS_INVALID_LAYER, DS41_STATUS_MISSING_WEIGHTS,
 *         DS41_STATUS_INVALID_DTYPE, DS41_STATUS_INVALID_SHAPE, DS41_STATUS_DEVICE_ERROR  As ds41_layer_prefill().
 *
 * Allocates nothing, unless a tap is set (then DS41_STATUS_OUT_OF_MEMORY may come, with nothing changed). Between
 * ds41_graph_begin() and ds41_graph_end() it records instead, and refuses what cannot be captured with
 * DS41_STATUS_UNSUPPORTED. Since 0.1.
 */
DS41_API ds41_status ds41_decode_body(ds41_ctx *ctx, int32_t layer, const ds41_tensor *x, const ds41_tensor *out);

/**
 * Whether ds41_decode_body() of a layer may be captured into a graph (ds41_graph_begin) as the context stands.
 *
 * @param capturable  1 or 0. 0 on backends without graphs (cpu, reference), with DS41_TOPK_TORCH_CPU on index sources,
 *                    and while a tap is set.
 * @retval DS41_STATUS_INVALID_LAYER
 * Host only. Since 0.1.
 */
DS41_API ds41_status ds41_decode_capturable(const ds41_ctx *ctx, int32_t layer, int32_t *capturable);

/* ---- Graphs ---------------------------------------------------------------------------------------------------- */
/*
 * The device half of a decode step as one launch: a CUDA graph of one layer, several, or all.
 *
 *   ds41_decode_prep(ctx, spans, n);            any step of as many rows as the graph shall have
 *   ds41_graph_begin(ctx, 0);
 *   ds41_decode_body(ctx, layer, x, out);       for each layer: recorded, not run
 *   ds41_graph_end(ctx, &graph);
 *
 *   ds41_decode_prep(ctx, spans, n);            any sequences at any positions
 *   ds41_graph_launch(graph);                   the same bits as the layers one by one
 *
 * The capture changes no state: the step that it was made with has not run, and may be the first that is launched.
 * Positions, lengths and where the sequences' rows lie are read from device memory; what a graph keeps are the
 * addresses of its x and out, which must stay valid, and workspaces of its own that have room for max_seq_len. A
 * context may have graphs of several row counts and of several ranges of layers; in one step, graphs and layers that
 * run without one take turns, in ascending order of layers.
 */

/** A captured decode step, or some layers of one. For its context's thread. */
typedef struct ds41_graph ds41_graph;

/**
 * ds41_graph_begin() flags: the owner of the context's stream captures it, after ds41_graph_begin() and before
 * ds41_graph_end(), into a graph of its own together with what else it enqueues. It launches that graph itself, right
 * after ds41_graph_launch(), which then only checks and advances the sequences.
 */
#define DS41_GRAPH_EXTERNAL 1u

/**
 * Begin a capture: until ds41_graph_end(), ds41_decode_body() records. The step in flight gives the number of rows.
 *
 * @param flags  0 or DS41_GRAPH_EXTERNAL.
 * @retval DS41_STATUS_UNSUPPORTED       The backend has no graphs.
 * @retval DS41_STATUS_WRONG_ORDER       No decode step in flight, the step is over or a layer of it has run, a tap is
 *                                       set, a capture is going on already.
 * @retval DS41_STATUS_INVALID_ARGUMENT  Unknown flags.
 * @retval DS41_STATUS_OUT_OF_MEMORY     For selections and scores up to max_seq_len; nothing has changed.
 * @retval DS41_STATUS_DEVICE_ERROR
 *
 * Until the end, ds41_decode_prep(), ds41_layer_prefill(), ds41_ctx_synchronize() and a tap of `ctx`, and whatever
 * allocates or copies device memory on the same thread, are refused with DS41_STATUS_WRONG_ORDER; what is freed goes
 * afterwards. While recording, ds41_decode_body() leaves it to launches to check that what a layer reads has been
 * published. An owner's own capture is in relaxed mode, or its thread does nothing else meanwhile. Since 0.1.
 */
DS41_API ds41_status ds41_graph_begin(ds41_ctx *ctx, uint32_t flags);

/**
 * End the capture that was begun on `ctx`, on the thread that began it.
 *
 * @param graph  Receives the handle; destroy it with ds41_graph_destroy(). Untouched when an error is returned.
 * @retval DS41_STATUS_WRONG_ORDER    No capture; one without a layer, or in which a layer failed, which is given up;
 *                                    with DS41_GRAPH_EXTERNAL, the stream is still being captured, and the capture
 *                                    goes on.
 * @retval DS41_STATUS_DEVICE_ERROR, DS41_STATUS_OUT_OF_MEMORY  The capture is given up.
 * Since 0.1.
 */
DS41_API ds41_status ds41_graph_end(ds41_ctx *ctx, ds41_graph **graph);

/**
 * Run the graph's layers on the step last prepared on its context, which may have fewer rows than the graph: the rows
 * of `out` behind them become zeros, and nothing else is written for them.
 *
 * @retval DS41_STATUS_INVALID_SHAPE     The step has more rows than the graph.
 * @retval DS41_STATUS_INVALID_ARGUMENT  The graph is stale: the memory of x or out of a layer was freed. Capture it
 *                                       again.
 * @retval DS41_STATUS_WRONG_ORDER       As ds41_decode_body() for any of its layers; a tap is set; a capture is going
 *                                       on; the context was destroyed; the graph is stale: a selection that it takes
 *                                       from a layer outside of it lies elsewhere since a larger step ran.
 * @retval DS41_STATUS_INVALID_POSITION  A layer does not stand at the start of a span.
 * @retval DS41_STATUS_DEVICE_ERROR
 *
 * On failure no sequence advances. Enqueues one launch; allocates nothing. Since 0.1.
 */
DS41_API ds41_status ds41_graph_launch(ds41_graph *graph);

/**
 * Wait for the context's work, then free. May come after the context's own end, but not beside a call of a context that
 * lives. NULL is ignored. Since 0.1.
 */
DS41_API void ds41_graph_destroy(ds41_graph *graph);

/* ---- Taps ------------------------------------------------------------------------------------------------------ */
/*
 * Named intermediates of a layer, for parity checks and for looking inside, in order of delivery. T: the span's tokens.
 * W: window_size. P: groups complete at the end of the span, G of them completed by it. R: window rows in reach, those
 * of positions max(0, start_pos - W + 1) .. end - 1. A tap without values (no group completed, an intermediate that the
 * layer's role does not have) is not delivered.
 *
 *   q              BF16 [T, n_heads, head_dim]              queries after RoPE
 *   latent         BF16 [G, head_dim]                       normed latents before RoPE; kv sources
 *   index_k        BF16 [G, index_head_dim]                 index keys as stored; kv sources that are index sources
 *   comp_rows      BF16 [G, head_dim]                       compressed rows as stored; kv sources
 *   index_q        BF16 [T, index_n_heads, index_head_dim]  index queries, rotated and quantised; index sources
 *   index_weights  BF16 [T, index_n_heads]                  weights of the index heads; index sources
 *   scores         F32  [T, P]                              group scores, -inf where masked; index sources
 *   candidates     U8   [T, P]                              1: in a block that the token keeps; candidate source
 *   kv_rows        BF16 [R + P, head_dim]                   all rows in reach: window by position, then groups
 *   idx            I32  [T, min(W, R) + min(index_topk, P)] rows of kv_rows that the token attends to: window columns
 *                                                           ascending, then groups ascending, each padded with -1
 *   o              BF16 [T, n_heads, head_dim]              attention output before the inverse RoPE
 *   ring           BF16 [W, head_dim]                       window rows after the span by position % W, else zeros
 *   state_kv       F32  [ratio, head_dim]                   compressor products of the incomplete group by position
 *   state_gate     F32  [ratio, head_dim]                   % ratio, else zeros; kv sources with ratio > 1
 *
 * index_q, index_weights, scores and candidates are not delivered while no group is complete: no indexer runs then.
 */

/** One intermediate, as delivered to a tap. */
typedef struct ds41_tap {
    uint32_t struct_size;
    int32_t layer;
    int32_t span;       /**< Index of the span in the step. */
    int32_t n_tokens;   /**< Tokens of the span. */
    int64_t start_pos;  /**< Position of its first token. */
    const char *name;   /**< One of the names above. Static. */
    ds41_tensor tensor; /**< In host memory, read-only, borrowed for the call. */
} ds41_tap;

/**
 * Receives intermediates during ds41_layer_prefill() or ds41_decode_body(), on the caller's thread, before the call
 * returns. Must not call back into the library with the same context or its sequences, throw, or jump out. Since 0.1.
 */
typedef void (*ds41_tap_fn)(const ds41_tap *tap, void *user);

/**
 * Deliver intermediates of further layers to a function; replaces the previous one. Outputs are the same bits with or
 * without a tap. Tapped steps wait for the device, allocate, and cannot be captured.
 *
 * @param names    [n_names] names of the table above, copied; n_names 0 for all.
 * @param tap      NULL removes the tap; names and user are then ignored.
 * @param user     Passed to `tap`. Borrowed until the tap is replaced or the context destroyed.
 * @retval DS41_STATUS_INVALID_ARGUMENT  A name that is not in the table; the tap stays as it was.
 * Since 0.1.
 */
DS41_API ds41_status ds41_ctx_set_tap(ds41_ctx *ctx, const char *const *names, int32_t n_names, ds41_tap_fn tap,
                                      void *user);

#ifdef __cplusplus
}
#endif

#endif /* DS41_DS41_H */
