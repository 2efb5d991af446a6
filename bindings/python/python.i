/*
 * What SWIG has to be told for Python. The module that comes out, ds41._ds41, has the functions, structs and constants
 * of the header under their names; the package around it is what people use.
 *
 * Errors     A status other than OK becomes an exception, with the sentence that ds41_last_error() has right after the
 *            call, before any other Python code can run on the thread.
 * Threads    The lock of the interpreter is released during every call, but for the queries listed below, which
 *            take less time than that. Callbacks take it again.
 * Ownership  Handles are plain pointers: who destroys them, and what they keep alive, is the package's business.
 *            Tensors are TensorView objects; strings and structs that a struct points to are borrowed, as in C.
 */
%{
#include "tensor_view.h"

#include <limits.h>
#include <stdlib.h>

/* Given by the package: makes an exception of (status, message). */
static PyObject *ds41py_error_factory = NULL;

static void ds41py_raise(int status, const char *message) {
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    if (text == NULL) return;
    if (ds41py_error_factory == NULL) {
        PyErr_SetObject(PyExc_RuntimeError, text);
    } else {
        PyObject *error = PyObject_CallFunction(ds41py_error_factory, "iO", status, text);
        if (error != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
    }
    Py_DECREF(text);
}

static void ds41py_refuse(const char *function, const char *argument, PyObject *value, const char *need) {
    PyObject *message = PyUnicode_FromFormat("%s: %s is %.200R, need %s", function, argument, value, need);
    const char *text = message != NULL ? PyUnicode_AsUTF8(message) : NULL;
    if (text != NULL) ds41py_raise(DS41_STATUS_INVALID_ARGUMENT, text);
    Py_XDECREF(message);
}

/* An integer of [low, high], whatever its Python type; 0, or -1 with a Python error. */
static int ds41py_get_int(PyObject *object, long long low, long long high, long long *value, const char *function,
                          const char *argument) {
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s: %s is %.200R, need an integer", function, argument, object);
        return -1;
    }
    int overflow = 0;
    *value = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (PyErr_Occurred()) return -1;
    if (overflow != 0 || *value < low || *value > high) {
        char need[80];
        snprintf(need, sizeof(need), "an integer in [%lld, %lld]", low, high);
        ds41py_refuse(function, argument, object, need);
        return -1;
    }
    return 0;
}

/* UTF-8 of a string, lent by it; NULL with a Python error for anything else or with a NUL inside. */
static const char *ds41py_get_text(PyObject *object, const char *function, const char *argument) {
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: %s is %.200R, need a string", function, argument, object);
        return NULL;
    }
    Py_ssize_t n_bytes = 0;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n_bytes);
    if (text != NULL && strlen(text) != (size_t)n_bytes) {
        ds41py_refuse(function, argument, object, "a string without NUL characters");
        return NULL;
    }
    return text;
}

static PyObject *ds41py_text(const char *text) {
    if (text == NULL) Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
}

/* ---- Callbacks: `user` is a callable that the package keeps alive; it does not raise, or the hook gets to see it. */

static void ds41py_log(int32_t level, const char *message, void *user) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallFunction((PyObject *)user, "iN", (int)level, ds41py_text(message));
    if (result == NULL) PyErr_WriteUnraisable((PyObject *)user);
    Py_XDECREF(result);
    PyGILState_Release(state);
}

static int32_t ds41py_progress(uint64_t n_done, uint64_t n_total, const char *tensor, void *user) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallFunction((PyObject *)user, "KKN", (unsigned long long)n_done,
                                             (unsigned long long)n_total, ds41py_text(tensor));
    const int stop = result != NULL ? PyObject_IsTrue(result) : -1;
    if (stop < 0) PyErr_WriteUnraisable((PyObject *)user);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return stop != 0;
}

/* The values are copied: the library takes them back when the call ends, and Python may keep what it was given. */
static void ds41py_tap(const ds41_tap *tap, void *user) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = NULL;
    uint64_t n_bytes = 0;
    if (ds41_tensor_get_bytes(&tap->tensor, &n_bytes) != DS41_STATUS_OK) {
        PyErr_SetString(PyExc_RuntimeError, ds41_last_error());
    } else {
        PyObject *bytes = PyByteArray_FromStringAndSize((const char *)tap->tensor.data, (Py_ssize_t)n_bytes);
        PyObject *tensor = bytes != NULL ? ds41py_describe(&tap->tensor) : NULL;
        if (tensor != NULL)
            result = PyObject_CallFunction((PyObject *)user, "iiiLNOO", (int)tap->layer, (int)tap->span,
                                           (int)tap->n_tokens, (long long)tap->start_pos, ds41py_text(tap->name),
                                           tensor, bytes);
        Py_XDECREF(tensor);
        Py_XDECREF(bytes);
    }
    if (result == NULL) PyErr_WriteUnraisable((PyObject *)user);
    Py_XDECREF(result);
    PyGILState_Release(state);
}

/* The callable gets n and two addresses for ds41py_run_task(). */
static void ds41py_parallel(int32_t n, ds41_task_fn task, void *task_arg, void *user) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallFunction((PyObject *)user, "iNN", (int)n, PyLong_FromVoidPtr((void *)task),
                                             PyLong_FromVoidPtr(task_arg));
    if (result == NULL) PyErr_WriteUnraisable((PyObject *)user);
    Py_XDECREF(result);
    PyGILState_Release(state);
}
%}

%init %{
    ds41py_add_tensor_view(m); /* Importing raises what it leaves. */
%}

/* ---- Status ---------------------------------------------------------------------------------------------------- */

%typemap(out) ds41_status {
    if ($1 != DS41_STATUS_OK) {
        ds41py_raise($1, ds41_last_error());
        SWIG_fail;
    }
    $result = SWIG_Py_Void();
}

/* ---- Numbers and strings --------------------------------------------------------------------------------------- */

%define %ds41_integer(TYPE, LOW, HIGH)
%typemap(in) TYPE (long long value) {
    if (ds41py_get_int($input, LOW, HIGH, &value, "$symname", "$1_name") != 0) SWIG_fail;
    $1 = ($1_ltype)value;
}
%enddef
%ds41_integer(int32_t, INT32_MIN, INT32_MAX)
%ds41_integer(uint32_t, 0, UINT32_MAX)
%ds41_integer(int64_t, LLONG_MIN, LLONG_MAX)
%ds41_integer(uint64_t, 0, LLONG_MAX)
%ds41_integer(size_t, 0, PY_SSIZE_T_MAX)
%ds41_integer(ds41_status, INT32_MIN, INT32_MAX)

%typemap(in) float {
    const double value = PyFloat_AsDouble($input);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "$symname: $1_name is %.200R, need a number", $input);
        SWIG_fail;
    }
    $1 = (float)value;
}

%typemap(in) const char * {
    if ($input != Py_None && ($1 = ($1_ltype)ds41py_get_text($input, "$symname", "$1_name")) == NULL) SWIG_fail;
}
%typemap(freearg) const char * ""
%typemap(memberin) const char * "$1 = $input;" /* borrowed, as in C */
%typemap(out) const char * {
    if (($result = ds41py_text($1)) == NULL) SWIG_fail;
}

/* What the file system calls a name: a string, bytes, or an object with __fspath__. */
%typemap(in) const char *path (PyObject *bytes = NULL) {
    if ($input != Py_None) {
        if (!PyUnicode_FSConverter($input, &bytes)) SWIG_fail;
        $1 = PyBytes_AS_STRING(bytes);
    }
}
%typemap(freearg) const char *path "Py_XDECREF(bytes$argnum);"

/* Text in memory. */
%typemap(in) (const char *json, size_t n_bytes) {
    Py_ssize_t n = 0;
    if (PyBytes_Check($input)) {
        char *text = NULL;
        if (PyBytes_AsStringAndSize($input, &text, &n) != 0) SWIG_fail;
        $1 = text;
    } else if (PyUnicode_Check($input)) {
        if (($1 = ($1_ltype)PyUnicode_AsUTF8AndSize($input, &n)) == NULL) SWIG_fail;
    } else {
        PyErr_Format(PyExc_TypeError, "$symname: json is %.200R, need a string or bytes", $input);
        SWIG_fail;
    }
    $2 = (size_t)n;
}

%typemap(in) (const char *const *names, int32_t n_names) (PyObject *sequence = NULL) {
    sequence = PySequence_Fast($input, "$symname: names is a sequence of strings");
    if (sequence == NULL) SWIG_fail;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence);
    const char **texts = (const char **)calloc((size_t)n + 1, sizeof(*texts));
    $1 = (char **)texts;
    if (texts == NULL || n > INT32_MAX) {
        PyErr_NoMemory();
        SWIG_fail;
    }
    for (Py_ssize_t i = 0; i < n; ++i)
        if ((texts[i] = ds41py_get_text(PySequence_Fast_GET_ITEM(sequence, i), "$symname", "names")) == NULL) SWIG_fail;
    $2 = (int32_t)n;
}
%typemap(freearg) (const char *const *names, int32_t n_names) {
    free((void *)$1);
    Py_XDECREF(sequence$argnum);
}

/* ---- Results through pointers ---------------------------------------------------------------------------------- */

%define %ds41_result(DECLARATION, TYPE, MAKE)
%typemap(in, numinputs = 0) DECLARATION (TYPE value = 0) "$1 = &value;"
%typemap(argout) DECLARATION {
    Py_XDECREF($result);
    if (($result = MAKE(value$argnum)) == NULL) SWIG_fail;
}
%enddef
%ds41_result(uint64_t *n_bytes, uint64_t, PyLong_FromUnsignedLongLong)
%ds41_result(int64_t *position, int64_t, PyLong_FromLongLong)
%ds41_result(int32_t *capturable, int32_t, PyBool_FromLong)

%typemap(out) void * {
    if (($result = PyLong_FromVoidPtr($1)) == NULL) SWIG_fail;
}
%typemap(in) void *stream {
    if ($input != Py_None) $1 = PyLong_AsVoidPtr($input);
    if (PyErr_Occurred()) SWIG_fail;
}

/* ---- Handles --------------------------------------------------------------------------------------------------- */

%define %ds41_handle(TYPE)
%typemap(in, numinputs = 0) TYPE ** (TYPE *handle = NULL) "$1 = &handle;"
%typemap(argout) TYPE ** {
    Py_XDECREF($result);
    $result = SWIG_NewPointerObj(handle$argnum, $descriptor(TYPE *), 0);
}
%enddef
%ds41_handle(ds41_file)
%ds41_handle(ds41_model)
%ds41_handle(ds41_checkpoint)
%ds41_handle(ds41_buffer)
%ds41_handle(ds41_ctx)
%ds41_handle(ds41_seq)
%ds41_handle(ds41_graph)

/* ---- Tensors and memory ---------------------------------------------------------------------------------------- */

%ignore ds41_tensor;
%ignore ds41_tensor_init; /* TensorView does it */

%typemap(in) ds41_tensor *, const ds41_tensor * {
    if ($input != Py_None && ($1 = ds41py_get_tensor($input)) == NULL) {
        PyErr_Format(PyExc_TypeError, "$symname: $1_name is a %.100s, need a TensorView", Py_TYPE($input)->tp_name);
        SWIG_fail;
    }
}
%typemap(memberin) ds41_tensor {
    if ($input) $1 = *$input;
    else memset(&$1, 0, sizeof($1));
}
%typemap(out) ds41_tensor * {
    if (($result = ds41py_describe($1)) == NULL) SWIG_fail;
}
%typemap(in, numinputs = 0) ds41_tensor *tensor (ds41_tensor value) "memset(&value, 0, sizeof(value)); $1 = &value;"
%typemap(argout) ds41_tensor *tensor {
    Py_XDECREF($result);
    if (($result = ds41py_describe($1)) == NULL) SWIG_fail;
}

%define %ds41_bytes(POINTER, LENGTH, FLAGS)
%typemap(in) (POINTER, LENGTH) (Py_buffer view = {0}) {
    if (PyObject_GetBuffer($input, &view, FLAGS) != 0) SWIG_fail;
    $1 = view.buf;
    $2 = (uint64_t)view.len;
}
%typemap(freearg) (POINTER, LENGTH) "if (view$argnum.obj != NULL) PyBuffer_Release(&view$argnum);"
%enddef
%ds41_bytes(const void *source, uint64_t n_bytes, PyBUF_SIMPLE)
%ds41_bytes(void *target, uint64_t n_bytes, PyBUF_WRITABLE)

/* Spans are tuples (sequence or None, start_pos, n_tokens). */
%ignore ds41_span;
%typemap(in) (const ds41_span *spans, int32_t n_spans) (PyObject *sequence = NULL) {
    sequence = PySequence_Fast($input, "$symname: spans is a sequence of tuples");
    if (sequence == NULL) SWIG_fail;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence);
    $1 = n <= INT32_MAX ? (ds41_span *)calloc((size_t)n + 1, sizeof(ds41_span)) : NULL;
    if ($1 == NULL) {
        PyErr_NoMemory();
        SWIG_fail;
    }
    for (Py_ssize_t i = 0; i < n; ++i) {
        PyObject *handle, *start_pos, *n_tokens;
        void *pointer = NULL;
        long long value = 0;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(sequence, i), "OOO;a span is (sequence, start_pos, n_tokens)",
                              &handle, &start_pos, &n_tokens))
            SWIG_fail;
        if (!SWIG_IsOK(SWIG_ConvertPtr(handle, &pointer, $descriptor(ds41_seq *), 0))) {
            PyErr_SetString(PyExc_TypeError, "$symname: a span's sequence is no ds41_seq");
            SWIG_fail;
        }
        $1[i].seq = (ds41_seq *)pointer;
        if (ds41py_get_int(start_pos, LLONG_MIN, LLONG_MAX, &value, "$symname", "start_pos") != 0) SWIG_fail;
        $1[i].start_pos = value;
        if (ds41py_get_int(n_tokens, INT32_MIN, INT32_MAX, &value, "$symname", "n_tokens") != 0) SWIG_fail;
        $1[i].n_tokens = (int32_t)value;
    }
    $2 = (int32_t)n;
}
%typemap(freearg) (const ds41_span *spans, int32_t n_spans) {
    free($1);
    Py_XDECREF(sequence$argnum);
}

/* ---- Structs --------------------------------------------------------------------------------------------------- */

/* A list of integers for an array: shorter ones leave zeros behind them. */
%define %ds41_array(TYPE, LOW, HIGH)
%typemap(in) TYPE[ANY] (TYPE values[$1_dim0]) {
    PyObject *sequence = PySequence_Fast($input, "$symname: need a sequence of integers");
    if (sequence == NULL) SWIG_fail;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence);
    int ok = n <= $1_dim0;
    if (!ok) {
        char message[128];
        snprintf(message, sizeof(message), "$1_name has %lld entries, need at most $1_dim0", (long long)n);
        ds41py_raise(DS41_STATUS_INVALID_ARGUMENT, message);
    }
    memset(values, 0, sizeof(values));
    for (Py_ssize_t i = 0; ok && i < n; ++i) {
        long long value = 0;
        ok = ds41py_get_int(PySequence_Fast_GET_ITEM(sequence, i), LOW, HIGH, &value, "$symname", "$1_name") == 0;
        values[i] = (TYPE)value;
    }
    Py_DECREF(sequence);
    if (!ok) SWIG_fail;
    $1 = values;
}
%typemap(memberin) TYPE[ANY] "memcpy($1, $input, sizeof($1));"
%typemap(out) TYPE[ANY] {
    $result = PyList_New($1_dim0);
    for (Py_ssize_t i = 0; $result != NULL && i < $1_dim0; ++i) {
        PyObject *entry = PyLong_FromLongLong($1[i]);
        if (entry == NULL) Py_CLEAR($result);
        else PyList_SET_ITEM($result, i, entry);
    }
    if ($result == NULL) SWIG_fail;
}
%enddef
%ds41_array(int32_t, INT32_MIN, INT32_MAX)
%ds41_array(int64_t, LLONG_MIN, LLONG_MAX)

/* A struct that starts with struct_size comes initialised, and can be copied. */
%define %ds41_struct(TYPE)
%ignore TYPE::struct_size;
%ignore TYPE::reserved;
%ignore TYPE ## _init;
%extend TYPE {
    TYPE() {
        TYPE *value = (TYPE *)malloc(sizeof(TYPE));
        if (value != NULL) TYPE ## _init(value, sizeof(TYPE));
        return value;
    }
    void assign(const TYPE *other) {
        if (other != NULL) *$self = *other;
    }
}
%enddef
%ds41_struct(ds41_config)
%ds41_struct(ds41_layer_role)
%ds41_struct(ds41_model_options)
%ds41_struct(ds41_layer_weights)
%ds41_struct(ds41_memory)
%ds41_struct(ds41_checkpoint_tensor)
%ds41_struct(ds41_load_options)
%ds41_struct(ds41_ctx_options)

%typemap(in, numinputs = 1) (ds41_config *config, size_t struct_size) {
    void *pointer = NULL;
    if (!SWIG_IsOK(SWIG_ConvertPtr($input, &pointer, $descriptor(ds41_config *), 0))) {
        PyErr_SetString(PyExc_TypeError, "$symname: config is no ds41_config");
        SWIG_fail;
    }
    $1 = (ds41_config *)pointer;
    $2 = sizeof(ds41_config);
}

/* Function pointers and what they are given are set together. A callable is borrowed. */
%define %ds41_callback(TYPE, MEMBER, USER, TRAMPOLINE)
%ignore TYPE::MEMBER;
%ignore TYPE::USER;
%extend TYPE {
    void set_ ## MEMBER(PyObject *callable) {
        $self->MEMBER = callable == Py_None ? NULL : TRAMPOLINE;
        $self->USER = callable == Py_None ? NULL : callable;
    }
}
%enddef
%ds41_callback(ds41_model_options, log, log_user, ds41py_log)
%ds41_callback(ds41_load_options, progress, progress_user, ds41py_progress)
%ds41_callback(ds41_ctx_options, parallel, parallel_user, ds41py_parallel)

%ignore ds41_tap;
%typemap(in) (ds41_tap_fn tap, void *user) {
    $1 = $input == Py_None ? NULL : ds41py_tap;
    $2 = $input == Py_None ? NULL : $input;
}

/* ---- Queries that take less time than releasing the lock -------------------------------------------------------- */

%nothread ds41_version;
%nothread ds41_status_name;
%nothread ds41_last_error;
%nothread ds41_dtype_name;
%nothread ds41_tensor_get_bytes;
%nothread ds41_config_flash;
%nothread ds41_config_get_role;
%nothread ds41_backend_get_name;
%nothread ds41_file_get_n_tensors;
%nothread ds41_file_get_tensor_name;
%nothread ds41_file_get_tensor;
%nothread ds41_file_get_metadata;
%nothread ds41_checkpoint_get_format;
%nothread ds41_checkpoint_get_n_files;
%nothread ds41_checkpoint_get_file;
%nothread ds41_checkpoint_get_n_tensors;
%nothread ds41_checkpoint_get_tensor;
%nothread ds41_checkpoint_get_n_problems;
%nothread ds41_checkpoint_get_problem;
%nothread ds41_model_get_backend;
%nothread ds41_model_get_config;
%nothread ds41_buffer_get_data;
%nothread ds41_buffer_get_bytes;
%nothread ds41_ctx_get_bytes;
%nothread ds41_seq_get_position;
%nothread ds41_seq_get_bytes;
%nothread ds41_decode_capturable;

/* ---- Of the binding itself -------------------------------------------------------------------------------------- */

%nothread set_error_factory;
%inline %{
/* The package's function that makes an exception of (status, message). Kept for good. */
static void set_error_factory(PyObject *callable) {
    Py_INCREF(callable);
    Py_XDECREF(ds41py_error_factory);
    ds41py_error_factory = callable;
}
%}

%typemap(in) uintptr_t {
    $1 = (uintptr_t)PyLong_AsVoidPtr($input);
    if (PyErr_Occurred()) SWIG_fail;
}
%inline %{
/* One index of a parallel-for, by the addresses that the callable was given. */
static void run_task(uintptr_t task, uintptr_t task_arg, int32_t index) {
    ((ds41_task_fn)task)((void *)task_arg, index);
}
%}
