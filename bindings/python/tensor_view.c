/*
 * TensorView: memory that somebody else owns, for the library as a ds41_tensor, for Python by the buffer protocol and
 * DLPack. It trusts whoever constructs it about the address: ds41/_tensor.py checks what users bring. Neither numpy nor
 * its headers are needed, and nothing is copied.
 */
#include "tensor_view.h"

#include <string.h>

/* ---- DLPack's ABI ---------------------------------------------------------------------------------------------- */

enum { DL_CPU = 1, DL_CUDA_HOST = 3 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_FLOAT8_E4M3FN = 10, DL_FLOAT8_E8M0FNU = 14 };
enum { DL_MAJOR_VERSION = 1, DL_MINOR_VERSION = 1 };
#define DL_FLAG_READ_ONLY 1u

typedef struct {
    void *data;
    struct {
        int32_t type;
        int32_t id;
    } device;
    int32_t n_dims;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} DlTensor;

/* Exchanged in a capsule "dltensor". */
typedef struct DlManaged {
    DlTensor tensor;
    void *context;
    void (*deleter)(struct DlManaged *self);
} DlManaged;

/* Exchanged in a capsule "dltensor_versioned". */
typedef struct DlManagedVersioned {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *context;
    void (*deleter)(struct DlManagedVersioned *self);
    uint64_t flags;
    DlTensor tensor;
} DlManagedVersioned;

/* ---- The type -------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject ob_base; /* PyObject_HEAD, as a member */
    ds41_tensor tensor;
    PyObject *owner;       /* of data */
    PyObject *scale_owner; /* of scales */
    int read_only;
    int32_t device_type; /* DLPack's number */
    int32_t device_id;
    /* As the buffer protocol and DLPack have it: elements of the dtype, but bytes for Q2_K. */
    Py_ssize_t item_shape[DS41_MAX_DIMS];
    Py_ssize_t item_strides[DS41_MAX_DIMS]; /* in bytes */
    int64_t dl_shape[DS41_MAX_DIMS];
    int64_t dl_strides[DS41_MAX_DIMS]; /* in elements */
    Py_ssize_t n_bytes;
} TensorView;

typedef struct {
    char format[2]; /* of the struct module */
    Py_ssize_t size;
    uint8_t code; /* DLPack's */
} Item;

/* What an element is outside the library. bf16 has no format in the struct module: its bits go as uint16. */
static const Item *item_of(int32_t dtype) {
    static const Item items[] = {
        [DS41_DTYPE_F32] = {"f", 4, DL_FLOAT},
        [DS41_DTYPE_BF16] = {"H", 2, DL_BFLOAT},
        [DS41_DTYPE_FP8_E4M3] = {"B", 1, DL_FLOAT8_E4M3FN},
        [DS41_DTYPE_Q2_K] = {"B", 1, DL_UINT},
        [DS41_DTYPE_I32] = {"i", 4, DL_INT},
        [DS41_DTYPE_U8] = {"B", 1, DL_UINT},
        [DS41_DTYPE_I8] = {"b", 1, DL_INT},
        [DS41_DTYPE_F16] = {"e", 2, DL_FLOAT},
        [DS41_DTYPE_UE8M0] = {"B", 1, DL_FLOAT8_E8M0FNU},
    };
    if (dtype <= 0 || (size_t)dtype >= sizeof(items) / sizeof(items[0]) || items[dtype].size == 0) return NULL;
    return &items[dtype];
}

static PyTypeObject *view_type; /* set when the module is made, which happens once a process */

static PyObject *shape_tuple(const int64_t *shape, int n) {
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple != NULL && i < n; ++i) {
        PyObject *entry = PyLong_FromLongLong(shape[i]);
        if (entry == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, entry);
    }
    return tuple;
}

/* Up to `most` entries of a sequence of integers; their number, or -1 with a Python error. */
static int read_shape(PyObject *object, int64_t *shape, int most, const char *name) {
    PyObject *sequence = PySequence_Fast(object, "a shape is a sequence of integers");
    if (sequence == NULL) return -1;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence);
    if (n > most) {
        PyErr_Format(PyExc_ValueError, "%s has %zd dimensions, need at most %d", name, n, most);
        Py_DECREF(sequence);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; ++i) {
        shape[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(sequence, i));
        if (shape[i] == -1 && PyErr_Occurred()) {
            Py_DECREF(sequence);
            return -1;
        }
    }
    Py_DECREF(sequence);
    return (int)n;
}

/* Shape and strides for exchange, once dtype and shape are set. */
static int lay_out(TensorView *self) {
    const Item *item = item_of(self->tensor.dtype);
    uint64_t n_bytes = 0;
    if (item == NULL || ds41_tensor_get_bytes(&self->tensor, &n_bytes) != DS41_STATUS_OK) {
        PyErr_Format(PyExc_ValueError, "%s", item == NULL ? "unknown dtype" : ds41_last_error());
        return -1;
    }
    if (n_bytes > (uint64_t)PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a tensor of this shape does not fit into memory");
        return -1;
    }
    self->n_bytes = (Py_ssize_t)n_bytes;
    const int n_dims = self->tensor.n_dims;
    for (int i = 0; i < n_dims; ++i) self->dl_shape[i] = self->tensor.shape[i];
    if (self->tensor.dtype == DS41_DTYPE_Q2_K) self->dl_shape[n_dims - 1] = self->tensor.shape[n_dims - 1] / 256 * 84;
    int64_t stride = 1;
    for (int i = n_dims - 1; i >= 0; --i) {
        self->dl_strides[i] = stride;
        self->item_shape[i] = (Py_ssize_t)self->dl_shape[i];
        self->item_strides[i] = (Py_ssize_t)stride * item->size;
        stride *= self->dl_shape[i];
    }
    return 0;
}

static PyObject *view_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"address",     "dtype",       "shape",       "owner",     "read_only", "scales",
                            "scale_shape", "scale_owner", "device_type", "device_id", "flags",     NULL};
    PyObject *address, *shape, *owner, *scales = NULL, *scale_shape = NULL, *scale_owner = NULL;
    int dtype, read_only = 0, device_type = DL_CPU, device_id = 0;
    unsigned flags = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OiOO|pOOOiiI:TensorView", names, &address, &dtype, &shape, &owner,
                                     &read_only, &scales, &scale_shape, &scale_owner, &device_type, &device_id, &flags))
        return NULL;
    TensorView *self = (TensorView *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->tensor.dtype = dtype;
    self->tensor.flags = flags;
    self->tensor.data = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred()) goto failed;
    self->tensor.n_dims = read_shape(shape, self->tensor.shape, DS41_MAX_DIMS, "shape");
    if (self->tensor.n_dims < 0) goto failed;
    if (scales != NULL && scales != Py_None) {
        self->tensor.scales = PyLong_AsVoidPtr(scales);
        if (PyErr_Occurred()) goto failed;
        if (scale_shape == NULL || read_shape(scale_shape, self->tensor.scale_shape, 2, "scale_shape") != 2) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "scales need a scale_shape of 2 dimensions");
            goto failed;
        }
    }
    if (lay_out(self) != 0) goto failed;
    self->read_only = read_only;
    self->device_type = device_type;
    self->device_id = device_id;
    Py_INCREF(owner);
    self->owner = owner;
    Py_XINCREF(scale_owner);
    self->scale_owner = scale_owner;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int view_traverse(TensorView *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->scale_owner);
    return 0;
}

/* The address is left as it is: exports hold a reference, so none is left when this runs but in dead cycles. */
static int view_clear(TensorView *self) {
    Py_CLEAR(self->owner);
    Py_CLEAR(self->scale_owner);
    return 0;
}

static void view_dealloc(TensorView *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    view_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int on_host(const TensorView *self) {
    return self->device_type == DL_CPU || self->device_type == DL_CUDA_HOST;
}

/* ---- Buffer protocol ------------------------------------------------------------------------------------------- */

static int view_getbuffer(TensorView *self, Py_buffer *buffer, int flags) {
    buffer->obj = NULL;
    if (!on_host(self)) {
        PyErr_Format(PyExc_BufferError, "the tensor is on a device (DLPack type %d), need one in host memory",
                     (int)self->device_type);
        return -1;
    }
    if ((flags & PyBUF_WRITABLE) && self->read_only) {
        PyErr_SetString(PyExc_BufferError, "the tensor is read-only");
        return -1;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && self->tensor.n_dims > 1) {
        PyErr_SetString(PyExc_BufferError, "the tensor is row-major");
        return -1;
    }
    const Item *item = item_of(self->tensor.dtype);
    buffer->buf = self->tensor.data;
    buffer->len = self->n_bytes;
    buffer->readonly = self->read_only;
    buffer->itemsize = item->size;
    buffer->format = flags & PyBUF_FORMAT ? (char *)item->format : NULL;
    buffer->ndim = self->tensor.n_dims;
    buffer->shape = flags & PyBUF_ND ? self->item_shape : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->item_strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    Py_INCREF(self);
    buffer->obj = (PyObject *)self;
    return 0;
}

/* ---- DLPack, out ----------------------------------------------------------------------------------------------- */

/* A consumer may let go on any thread, and after Python has ended. */
static void release_context(void *context) {
    if (!Py_IsInitialized()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)context);
    PyGILState_Release(state);
}

static void delete_managed(DlManaged *self) {
    release_context(self->context);
    PyMem_RawFree(self);
}

static void delete_versioned(DlManagedVersioned *self) {
    release_context(self->context);
    PyMem_RawFree(self);
}

/* Capsules that nobody took; a consumer renames those that it takes. */
static void drop_managed(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    DlManaged *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

static void drop_versioned(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return;
    DlManagedVersioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    managed->deleter(managed);
}

static void fill_dl(DlTensor *out, TensorView *self) {
    const Item *item = item_of(self->tensor.dtype);
    out->data = self->tensor.data;
    out->device.type = self->device_type;
    out->device.id = self->device_id;
    out->n_dims = self->tensor.n_dims;
    out->dtype.code = item->code;
    out->dtype.bits = (uint8_t)(8 * item->size);
    out->dtype.lanes = 1;
    out->shape = self->dl_shape;
    out->strides = self->dl_strides;
    out->byte_offset = 0;
}

static PyObject *view_dlpack(TensorView *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream, &max_version, &device, &copy))
        return NULL;
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "copy is True, need False or None: a tensor lends its memory");
        return NULL;
    }
    if (device != Py_None) {
        int type, id;
        if (!PyArg_ParseTuple(device, "ii;dl_device", &type, &id)) return NULL;
        if (type != self->device_type || id != self->device_id) {
            PyErr_Format(PyExc_BufferError, "dl_device is (%d, %d), need (%d, %d), where the tensor lies", type, id,
                         (int)self->device_type, (int)self->device_id);
            return NULL;
        }
    }
    const Item *item = item_of(self->tensor.dtype);
    if ((uintptr_t)self->tensor.data % (size_t)item->size != 0) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not aligned to its elements, as DLPack demands");
        return NULL;
    }
    long major = 0;
    if (max_version != Py_None) {
        PyObject *first = PySequence_GetItem(max_version, 0);
        if (first == NULL) return NULL;
        major = PyLong_AsLong(first);
        Py_DECREF(first);
        if (major == -1 && PyErr_Occurred()) return NULL;
    }
    PyObject *capsule;
    if (major >= DL_MAJOR_VERSION) {
        DlManagedVersioned *managed = PyMem_RawCalloc(1, sizeof(*managed));
        if (managed == NULL) return PyErr_NoMemory();
        managed->version.major = DL_MAJOR_VERSION;
        managed->version.minor = DL_MINOR_VERSION;
        managed->flags = self->read_only ? DL_FLAG_READ_ONLY : 0;
        managed->deleter = delete_versioned;
        managed->context = self;
        fill_dl(&managed->tensor, self);
        capsule = PyCapsule_New(managed, "dltensor_versioned", drop_versioned);
        if (capsule == NULL) PyMem_RawFree(managed);
    } else {
        if (self->read_only) { /* the old struct cannot say so */
            PyErr_SetString(PyExc_BufferError, "the tensor is read-only, which DLPack can tell from version 1.0 on");
            return NULL;
        }
        DlManaged *managed = PyMem_RawCalloc(1, sizeof(*managed));
        if (managed == NULL) return PyErr_NoMemory();
        managed->deleter = delete_managed;
        managed->context = self;
        fill_dl(&managed->tensor, self);
        capsule = PyCapsule_New(managed, "dltensor", drop_managed);
        if (capsule == NULL) PyMem_RawFree(managed);
    }
    if (capsule != NULL) Py_INCREF(self); /* released by the deleter */
    return capsule;
}

static PyObject *view_dlpack_device(TensorView *self, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("(ii)", (int)self->device_type, (int)self->device_id);
}

/* ---- DLPack, in ------------------------------------------------------------------------------------------------ */

static void release_taken(PyObject *capsule) {
    DlManaged *managed = PyCapsule_GetPointer(capsule, "ds41_taken");
    if (managed != NULL && managed->deleter != NULL) managed->deleter(managed);
}

static void release_taken_versioned(PyObject *capsule) {
    DlManagedVersioned *managed = PyCapsule_GetPointer(capsule, "ds41_taken_versioned");
    if (managed != NULL && managed->deleter != NULL) managed->deleter(managed);
}

/*
 * Take over what a capsule of __dlpack__ holds: (owner, address, (device type, id), (code, bits, lanes), shape, strides
 * or None, read_only). The memory is given back when `owner` goes.
 */
static PyObject *take_dlpack(PyObject *module, PyObject *capsule) {
    (void)module;
    PyObject *owner, *shape, *strides;
    const DlTensor *tensor;
    int read_only = 0;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DlManagedVersioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->version.major != DL_MAJOR_VERSION) {
            PyErr_Format(PyExc_BufferError, "DLPack version %u.%u, need major version %d",
                         (unsigned)managed->version.major, (unsigned)managed->version.minor, (int)DL_MAJOR_VERSION);
            return NULL;
        }
        owner = PyCapsule_New(managed, "ds41_taken_versioned", release_taken_versioned);
        if (owner == NULL) return NULL;
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
        tensor = &managed->tensor;
        read_only = (managed->flags & DL_FLAG_READ_ONLY) != 0;
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        DlManaged *managed = PyCapsule_GetPointer(capsule, "dltensor");
        owner = PyCapsule_New(managed, "ds41_taken", release_taken);
        if (owner == NULL) return NULL;
        PyCapsule_SetName(capsule, "used_dltensor");
        tensor = &managed->tensor;
    } else {
        PyErr_SetString(PyExc_BufferError, "__dlpack__ gave no capsule with a tensor, or one that was taken already");
        return NULL;
    }
    shape = shape_tuple(tensor->shape, tensor->n_dims);
    if (tensor->strides != NULL) {
        strides = shape_tuple(tensor->strides, tensor->n_dims);
    } else {
        Py_INCREF(Py_None);
        strides = Py_None;
    }
    PyObject *address = PyLong_FromVoidPtr((char *)tensor->data + tensor->byte_offset);
    if (shape == NULL || strides == NULL || address == NULL) {
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        Py_XDECREF(address);
        Py_DECREF(owner);
        return NULL;
    }
    return Py_BuildValue("(NN(ii)(iii)NNO)", owner, address, (int)tensor->device.type, (int)tensor->device.id,
                         (int)tensor->dtype.code, (int)tensor->dtype.bits, (int)tensor->dtype.lanes, shape, strides,
                         read_only ? Py_True : Py_False);
}

/* Address of the memory of a memoryview, which holds the export. */
static PyObject *address_of(PyObject *module, PyObject *view) {
    (void)module;
    if (!PyMemoryView_Check(view)) {
        PyErr_Format(PyExc_TypeError, "need a memoryview, got %.100s", Py_TYPE(view)->tp_name);
        return NULL;
    }
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    if (buffer->obj == NULL && buffer->buf == NULL) {
        PyErr_SetString(PyExc_ValueError, "the memoryview has been released");
        return NULL;
    }
    return PyLong_FromVoidPtr(buffer->buf);
}

/* ---- Attributes ------------------------------------------------------------------------------------------------ */

static PyObject *get_address(TensorView *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(self->tensor.data);
}

static PyObject *get_scales_address(TensorView *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr((void *)self->tensor.scales);
}

static PyObject *get_shape(TensorView *self, void *unused) {
    (void)unused;
    return shape_tuple(self->tensor.shape, self->tensor.n_dims);
}

static PyObject *get_scale_shape(TensorView *self, void *unused) {
    (void)unused;
    if (self->tensor.scales == NULL) Py_RETURN_NONE;
    return shape_tuple(self->tensor.scale_shape, 2);
}

static PyObject *get_dtype_code(TensorView *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(self->tensor.dtype);
}

static PyObject *get_flags(TensorView *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(self->tensor.flags);
}

static PyObject *get_n_bytes(TensorView *self, void *unused) {
    (void)unused;
    return PyLong_FromSsize_t(self->n_bytes);
}

static PyObject *get_read_only(TensorView *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->read_only);
}

static PyObject *get_owner(TensorView *self, void *unused) {
    (void)unused;
    PyObject *owner = self->owner != NULL ? self->owner : Py_None;
    Py_INCREF(owner);
    return owner;
}

static PyObject *get_scale_owner(TensorView *self, void *unused) {
    (void)unused;
    PyObject *owner = self->scale_owner != NULL ? self->scale_owner : Py_None;
    Py_INCREF(owner);
    return owner;
}

static PyGetSetDef view_getset[] = {
    {"address", (getter)get_address, NULL, "Address of the first element.", NULL},
    {"scales_address", (getter)get_scales_address, NULL, "Address of the first scale; 0 for none.", NULL},
    {"shape", (getter)get_shape, NULL, "Elements, outermost first.", NULL},
    {"scale_shape", (getter)get_scale_shape, NULL, "Shape of the scales, or None.", NULL},
    {"dtype_code", (getter)get_dtype_code, NULL, "A ds41_dtype.", NULL},
    {"flags", (getter)get_flags, NULL, "DS41_TENSOR_* flags.", NULL},
    {"n_bytes", (getter)get_n_bytes, NULL, "Bytes of the elements, scales not counted.", NULL},
    {"read_only", (getter)get_read_only, NULL, "Whether the memory must not be written.", NULL},
    {"owner", (getter)get_owner, NULL, "What keeps the memory alive.", NULL},
    {"scale_owner", (getter)get_scale_owner, NULL, "What keeps the scales alive.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef view_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_VARARGS | METH_KEYWORDS,
     "Lend the memory by DLPack."},
    {"__dlpack_device__", (PyCFunction)view_dlpack_device, METH_NOARGS, "DLPack's device type and number."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "Memory that another object owns, with a dtype and a shape."},
    {Py_tp_new, view_new},
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_traverse, view_traverse},
    {Py_tp_clear, view_clear},
    {Py_tp_getset, view_getset},
    {Py_tp_methods, view_methods},
    {Py_bf_getbuffer, view_getbuffer},
    {0, NULL},
};

static PyType_Spec view_spec = {
    "ds41._ds41.TensorView",
    sizeof(TensorView),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    view_slots,
};

static PyMethodDef functions[] = {
    {"take_dlpack", take_dlpack, METH_O, "Take over the tensor in a DLPack capsule."},
    {"address_of", address_of, METH_O, "Address of a memoryview's memory."},
    {NULL, NULL, 0, NULL},
};

void ds41py_add_tensor_view(PyObject *module) {
    PyObject *type = PyType_FromSpec(&view_spec);
    if (type == NULL) return;
    Py_INCREF(type); /* one for view_type, one for the module */
    view_type = (PyTypeObject *)type;
    if (PyModule_AddObject(module, "TensorView", type) != 0) {
        Py_DECREF(type);
        return;
    }
    PyModule_AddFunctions(module, functions);
}

ds41_tensor *ds41py_get_tensor(PyObject *object) {
    return PyObject_TypeCheck(object, view_type) ? &((TensorView *)object)->tensor : NULL;
}

PyObject *ds41py_describe(const ds41_tensor *tensor) {
    PyObject *shape = shape_tuple(tensor->shape, tensor->n_dims);
    PyObject *scale_shape = shape != NULL ? shape_tuple(tensor->scale_shape, 2) : NULL;
    if (scale_shape == NULL) {
        Py_XDECREF(shape);
        return NULL;
    }
    return Py_BuildValue("(NNiNN)", PyLong_FromVoidPtr(tensor->data), PyLong_FromVoidPtr((void *)tensor->scales),
                         (int)tensor->dtype, shape, scale_shape);
}
