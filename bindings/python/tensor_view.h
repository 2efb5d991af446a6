/*
 * What the generated wrapper and the tensor type share: a Python object around one ds41_tensor that keeps the owner of
 * its memory alive.
 */
#ifndef DS41_PYTHON_TENSOR_VIEW_H
#define DS41_PYTHON_TENSOR_VIEW_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ds41/ds41.h>

/* Add the type TensorView and its helper functions to the module; a Python error is set when that fails. */
void ds41py_add_tensor_view(PyObject *module);

/* The tensor of a TensorView, valid as long as the object; NULL without a Python error for another type. */
ds41_tensor *ds41py_get_tensor(PyObject *object);

/* (address, scales address, dtype, shape, scale shape) of a tensor. NULL with a Python error. */
PyObject *ds41py_describe(const ds41_tensor *tensor);

#endif /* DS41_PYTHON_TENSOR_VIEW_H */
