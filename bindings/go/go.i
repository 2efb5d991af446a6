/*
 * What SWIG's Go target has to be told beside ds41.i. The raw package that comes out of it is internal: its functions
 * are those of the header without their prefix, and they see to three things.
 *
 * Errors       A goroutine may move to another thread between two native calls, so each function that returns
 *              ds41_status reads ds41_last_error() before it returns to Go.
 * Go memory    C gets no Go pointer that leads to another one. A tensor is handed over as its form (no pointers in it)
 *              and its bytes; the ds41_tensor is put together on the C side and is gone when the call returns. Bytes
 *              travel as (char *, length): cgo then looks at these bytes alone, and not at the whole struct that a
 *              slice may have been cut from.
 * Handles      Are pointers to C memory of a Go type each, so that none can be taken for another.
 *
 * A new function needs something here only when it takes tensors, arrays of structs, or callbacks; a new kind of object
 * needs a line under Handles, a new struct with struct_size one under Structs.
 */

%{
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
%}

%go_import("strings")

%rename("%(strip:[ds41_])s") "";

/* ---- Status ---------------------------------------------------------------------------------------------------- */

%{
/* Status and sentence of a call that failed: 4 bytes, then the text. Without memory for it, the status as length. */
static _gostring_ ds41_go_failure(ds41_status status) {
    const int32_t number = (int32_t)status;
    _gostring_ failure = {NULL, (intgo)number};
    const char *sentence;
    size_t n_bytes;
    if (status == DS41_STATUS_OK) return failure;
    sentence = ds41_last_error();
    n_bytes = strlen(sentence);
    failure.p = (char *)malloc(sizeof(number) + n_bytes);
    if (!failure.p) return failure;
    memcpy(failure.p, &number, sizeof(number));
    memcpy(failure.p + sizeof(number), sentence, n_bytes);
    failure.n = (intgo)(sizeof(number) + n_bytes);
    return failure;
}
%}

%typemap(gotype) ds41_status "*Failure"
%typemap(imtype) ds41_status "string"
%typemap(out) ds41_status %{ $result = ds41_go_failure($1); %}
%typemap(goout) ds41_status %{ $result = takeFailure($1) %}

%typemap(gotype) ds41_status status "int32"
%typemap(imtype) ds41_status status "int32"
%typemap(goin) ds41_status status %{ $result = $input %}
%typemap(in) ds41_status status %{ $1 = (ds41_status)$input; %}

/* Right only on the thread of the call that failed, see above. */
%ignore ds41_last_error;

/* ---- Numbers, strings, bytes ----------------------------------------------------------------------------------- */

%typemap(gotype) int32_t "int32"
%typemap(gotype) uint32_t "uint32"
%typemap(gotype) int32_t *, int32_t [ANY] "*int32"
%typemap(gotype) void *, const void * "unsafe.Pointer"
%typemap(gotype) void ** "*unsafe.Pointer"

/* Go passes strings with a NUL behind them (and refuses those that hold one), so nothing has to be copied. */
%typemap(goin) const char * %{ $result = $input + "\x00" %}
%typemap(in) const char * %{ $1 = ($1_ltype)$input.p; %}
%typemap(freearg) const char * ""

/* Strings that are returned are static, or lent until an object is destroyed that the caller holds. */
%typemap(out) const char * %{ $result.p = (char *)$1; $result.n = $1 ? (intgo)strlen($1) : 0; %}
%typemap(goout) const char * %{ $result = strings.Clone($1) %}

/* Where no string differs from an empty one. */
%typemap(gotype) const char *ds41_file_get_metadata "*string"
%typemap(imtype) const char *ds41_file_get_metadata "string"
%typemap(goout) const char *ds41_file_get_metadata %{ $result = cloneUnlessNull($1) %}

%typemap(gotype) (const char *json, size_t n_bytes) "string"
%typemap(imtype) (const char *json, size_t n_bytes) "string"
%typemap(goin) (const char *json, size_t n_bytes) %{ $result = $input %}
%typemap(in) (const char *json, size_t n_bytes) %{
  $1 = $input.n > 0 ? ($1_ltype)$input.p : ($1_ltype)"";
  $2 = (size_t)$input.n;
%}
%typemap(freearg) (const char *json, size_t n_bytes) ""

%define %bytes_argument(ARGUMENTS)
%typemap(gotype) ARGUMENTS "[]byte"
%typemap(imtype) ARGUMENTS "string"
%typemap(goin) ARGUMENTS %{ $result = viewBytes($input) %}
%typemap(in) ARGUMENTS %{ $1 = ($1_ltype)$input.p; $2 = ($2_ltype)$input.n; %}
%enddef
%bytes_argument((const void *source, uint64_t n_bytes))
%bytes_argument((void *target, uint64_t n_bytes))

/* ---- Handles --------------------------------------------------------------------------------------------------- */

%define %handle(CTYPE, GOTYPE)
%typemap(gotype) CTYPE *, const CTYPE * "*GOTYPE"
%typemap(gotype) CTYPE ** "**GOTYPE"
%enddef
/* The Go types are in raw.go. */
%handle(ds41_file, File)
%handle(ds41_model, Model)
%handle(ds41_checkpoint, Checkpoint)
%handle(ds41_buffer, Buffer)
%handle(ds41_ctx, Ctx)
%handle(ds41_seq, Seq)
%handle(ds41_graph, Graph)

/* ---- Structs that stay in C memory ----------------------------------------------------------------------------- */

/* struct_size is for callers whose header is older or newer; here it is always that of the header in use. */
%define %struct_init(CTYPE, NAME)
%typemap(in) (CTYPE *NAME, size_t struct_size) %{ $1 = *(CTYPE **)&$input; $2 = sizeof(CTYPE); %}
%typemap(gotype) (CTYPE *NAME, size_t struct_size) "uintptr"
%enddef
%struct_init(ds41_config, config)
%struct_init(ds41_layer_role, role)
%struct_init(ds41_model_options, options)
%struct_init(ds41_memory, memory)
%struct_init(ds41_checkpoint_tensor, tensor)
%struct_init(ds41_load_options, options)
%struct_init(ds41_ctx_options, options)

%feature("immutable") struct_size;
%feature("immutable") ds41_checkpoint_tensor::member;
%feature("immutable") ds41_checkpoint_tensor::name;
%feature("immutable") ds41_checkpoint_tensor::type;
%rename(file_type) ds41_checkpoint_tensor::type; /* `type` is a keyword. */

/* ---- Callbacks ------------------------------------------------------------------------------------------------- */

%ignore ds41_model_options::backend;
%ignore ds41_model_options::log;
%ignore ds41_model_options::log_user;
%ignore ds41_load_options::progress;
%ignore ds41_load_options::progress_user;
/* A step's work has to run on any thread without the runtime of Go in between: a host's parallel-for is left to C. */
%ignore ds41_ctx_options::parallel;
%ignore ds41_ctx_options::parallel_user;
%ignore ds41_ctx_set_tap;

%{
/* In callbacks.go. `user` is a cgo.Handle throughout. */
extern void ds41GoLog(int32_t level, char *message, uintptr_t user);
extern int32_t ds41GoProgress(uint64_t n_done, uint64_t n_total, char *tensor, uintptr_t user);
extern void ds41GoTap(void *tap, uintptr_t user);

static void ds41_go_log(int32_t level, const char *message, void *user) {
    ds41GoLog(level, (char *)message, (uintptr_t)user);
}

static int32_t ds41_go_progress(uint64_t n_done, uint64_t n_total, const char *tensor, void *user) {
    return ds41GoProgress(n_done, n_total, (char *)tensor, (uintptr_t)user);
}

static void ds41_go_tap(const ds41_tap *tap, void *user) { ds41GoTap((void *)tap, (uintptr_t)user); }
%}

%extend ds41_model_options {
    /* `name` is C memory, or NULL, and has to outlive the options. */
    void use_backend(void *name) { $self->backend = (const char *)name; }
    void use_log(uintptr_t user) {
        $self->log = ds41_go_log;
        $self->log_user = (void *)user;
    }
}

%extend ds41_load_options {
    void use_progress(uintptr_t user) {
        $self->progress = ds41_go_progress;
        $self->progress_user = (void *)user;
    }
}

%inline %{
#define DS41_GO_MAX_TAP_NAMES 64

/* `names`: n_names strings, each with its NUL. user 0 removes the tap. */
static ds41_status ctx_set_tap(ds41_ctx *ctx, const char *names, int32_t n_names, uintptr_t user) {
    const char *list[DS41_GO_MAX_TAP_NAMES];
    for (int32_t i = 0; i < n_names && i < DS41_GO_MAX_TAP_NAMES; ++i) {
        list[i] = names;
        names += strlen(names) + 1;
    }
    return ds41_ctx_set_tap(ctx, list, n_names, user ? ds41_go_tap : NULL, (void *)user);
}
%}

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

%ignore ds41_tensor;
%ignore ds41_tap;
%ignore ds41_span;
%ignore ds41_layer_weights;
%ignore ds41_tensor_init;
%ignore ds41_tensor_get_bytes;
%ignore ds41_layer_weights_init;
%ignore ds41_file_get_tensor;
%ignore ds41_model_set_layer;
%ignore ds41_layer_prefill;
%ignore ds41_decode_body;

%typemap(gotype) ds41_go_bytes "[]byte"
%typemap(imtype) ds41_go_bytes "string"
%typemap(goin) ds41_go_bytes %{ $result = viewBytes($input) %}
%typemap(in) ds41_go_bytes %{ $1.p = $input.p; $1.n = $input.n; %}

%typemap(gotype) const ds41_go_form * "*Form"
%typemap(imtype) const ds41_go_form * "string"
%typemap(goin) const ds41_go_form * %{ $result = viewForm($input) %}
%typemap(in) const ds41_go_form * %{ $1 = ($1_ltype)$input.p; %}
%typemap(gotype) ds41_go_form *form "*Form"

%typemap(gotype) const ds41_go_form *forms "*LayerForms"
%typemap(imtype) const ds41_go_form *forms "string"
%typemap(goin) const ds41_go_form *forms %{ $result = viewLayerForms($input) %}
%typemap(in) const ds41_go_form *forms %{ $1 = ($1_ltype)$input.p; %}

/* The Go struct Span has the layout of ds41_span; the handles in it are C memory. */
%typemap(gotype) (const ds41_span *spans, int32_t n_spans) "[]Span"
%typemap(imtype) (const ds41_span *spans, int32_t n_spans) "[]Span"
%typemap(goin) (const ds41_span *spans, int32_t n_spans) %{ $result = $input %}
%typemap(in) (const ds41_span *spans, int32_t n_spans) %{
  $1 = ($1_ltype)$input.array;
  $2 = $input.len > INT32_MAX ? INT32_MAX : (int32_t)$input.len;
%}

%{
typedef _gostring_ ds41_go_bytes;

/* A ds41_tensor without its pointers, and with the layout of Form in Go. */
typedef struct ds41_go_form {
    int64_t shape[DS41_MAX_DIMS];
    int64_t scale_shape[2];
    int32_t dtype;
    int32_t n_dims;
    uint32_t flags;
    uint32_t reserved;
} ds41_go_form;

typedef char ds41_go_form_is_the_rest[sizeof(ds41_go_form) + offsetof(ds41_tensor, shape) == sizeof(ds41_tensor) ? 1
                                                                                                                 : -1];

static ds41_tensor ds41_go_tensor(const ds41_go_form *form, ds41_go_bytes data, ds41_go_bytes scales) {
    ds41_tensor tensor;
    memset(&tensor, 0, sizeof(tensor));
    memcpy(tensor.shape, form, sizeof(*form));
    tensor.data = data.p;
    tensor.scales = scales.p;
    return tensor;
}
%}

%inline %{
static ds41_status tensor_bytes(const ds41_go_form *x, uint64_t *n_bytes) {
    const ds41_go_bytes none = {NULL, 0};
    const ds41_tensor tensor = ds41_go_tensor(x, none, none);
    return ds41_tensor_get_bytes(&tensor, n_bytes);
}

/* Fills the form; data and scales point into the file's mapping. */
static ds41_status file_tensor(const ds41_file *file, const char *name, ds41_go_form *form, void **data,
                               void **scales) {
    ds41_tensor tensor;
    const ds41_status status = ds41_file_get_tensor(file, name, &tensor);
    if (status != DS41_STATUS_OK) return status;
    memcpy(form, tensor.shape, sizeof(*form));
    *data = tensor.data;
    *scales = (void *)tensor.scales;
    return status;
}

static ds41_status layer_prefill(ds41_ctx *ctx, int32_t layer, ds41_seq *seq, const ds41_go_form *x,
                                 ds41_go_bytes x_data, int32_t n_tokens, int64_t start_pos, const ds41_go_form *out,
                                 ds41_go_bytes out_data) {
    const ds41_go_bytes none = {NULL, 0};
    const ds41_tensor x_tensor = ds41_go_tensor(x, x_data, none), out_tensor = ds41_go_tensor(out, out_data, none);
    return ds41_layer_prefill(ctx, layer, seq, &x_tensor, n_tokens, start_pos, &out_tensor);
}

static ds41_status decode_body(ds41_ctx *ctx, int32_t layer, const ds41_go_form *x, ds41_go_bytes x_data,
                               const ds41_go_form *out, ds41_go_bytes out_data) {
    const ds41_go_bytes none = {NULL, 0};
    const ds41_tensor x_tensor = ds41_go_tensor(x, x_data, none), out_tensor = ds41_go_tensor(out, out_data, none);
    return ds41_decode_body(ctx, layer, &x_tensor, &out_tensor);
}

/* Go memory cannot hold pointers to Go memory on the way to C: hence an argument for each tensor's data and scales. */
static ds41_status model_set_layer(
    ds41_model *model, int32_t layer, int32_t ownership, const ds41_go_form *forms,
    ds41_go_bytes wq_a, ds41_go_bytes wq_a_scales,
    ds41_go_bytes q_norm, ds41_go_bytes q_norm_scales,
    ds41_go_bytes wq_b, ds41_go_bytes wq_b_scales,
    ds41_go_bytes wkv, ds41_go_bytes wkv_scales,
    ds41_go_bytes kv_norm, ds41_go_bytes kv_norm_scales,
    ds41_go_bytes attn_sink, ds41_go_bytes attn_sink_scales,
    ds41_go_bytes wo_a, ds41_go_bytes wo_a_scales,
    ds41_go_bytes wo_b, ds41_go_bytes wo_b_scales,
    ds41_go_bytes compressor_wkv, ds41_go_bytes compressor_wkv_scales,
    ds41_go_bytes compressor_wgate, ds41_go_bytes compressor_wgate_scales,
    ds41_go_bytes compressor_norm, ds41_go_bytes compressor_norm_scales,
    ds41_go_bytes indexer_wk, ds41_go_bytes indexer_wk_scales,
    ds41_go_bytes indexer_k_norm, ds41_go_bytes indexer_k_norm_scales,
    ds41_go_bytes indexer_wq_b, ds41_go_bytes indexer_wq_b_scales,
    ds41_go_bytes indexer_weights_proj, ds41_go_bytes indexer_weights_proj_scales) {
    ds41_layer_weights weights;
    ds41_layer_weights_init(&weights, sizeof(weights));
    weights.ownership = ownership;
    weights.wq_a = ds41_go_tensor(forms++, wq_a, wq_a_scales);
    weights.q_norm = ds41_go_tensor(forms++, q_norm, q_norm_scales);
    weights.wq_b = ds41_go_tensor(forms++, wq_b, wq_b_scales);
    weights.wkv = ds41_go_tensor(forms++, wkv, wkv_scales);
    weights.kv_norm = ds41_go_tensor(forms++, kv_norm, kv_norm_scales);
    weights.attn_sink = ds41_go_tensor(forms++, attn_sink, attn_sink_scales);
    weights.wo_a = ds41_go_tensor(forms++, wo_a, wo_a_scales);
    weights.wo_b = ds41_go_tensor(forms++, wo_b, wo_b_scales);
    weights.compressor_wkv = ds41_go_tensor(forms++, compressor_wkv, compressor_wkv_scales);
    weights.compressor_wgate = ds41_go_tensor(forms++, compressor_wgate, compressor_wgate_scales);
    weights.compressor_norm = ds41_go_tensor(forms++, compressor_norm, compressor_norm_scales);
    weights.indexer_wk = ds41_go_tensor(forms++, indexer_wk, indexer_wk_scales);
    weights.indexer_k_norm = ds41_go_tensor(forms++, indexer_k_norm, indexer_k_norm_scales);
    weights.indexer_wq_b = ds41_go_tensor(forms++, indexer_wq_b, indexer_wq_b_scales);
    weights.indexer_weights_proj = ds41_go_tensor(forms++, indexer_weights_proj, indexer_weights_proj_scales);
    return ds41_model_set_layer(model, layer, &weights);
}
%}

/* ---- C memory -------------------------------------------------------------------------------------------------- */

%inline %{
/* Aligned to 64 bytes and zeroed; NULL when there is none. */
static void *memory_alloc(uint64_t n_bytes) {
    const uint64_t n_rounded = (n_bytes + 63) / 64 * 64;
    void *memory = n_rounded >= n_bytes && n_rounded <= SIZE_MAX ? aligned_alloc(64, (size_t)n_rounded) : NULL;
    if (memory) memset(memory, 0, (size_t)n_rounded);
    return memory;
}

static void memory_free(void *memory) { free(memory); }
%}

/* For the test that holds the structs in raw.go against the header. */
%constant uint32_t SIZEOF_SPAN = sizeof(ds41_span);
%constant uint32_t SIZEOF_FORM = sizeof(ds41_go_form);
%constant uint32_t N_WEIGHTS = (sizeof(ds41_layer_weights) - offsetof(ds41_layer_weights, wq_a)) / sizeof(ds41_tensor);
