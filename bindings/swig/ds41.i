/*
 * The one description of the C API that the three languages are generated from. What every language shares stands here;
 * what SWIG has to be told for one of them stands in its own folder and is included below. Rust, for which SWIG has no
 * target, is generated from the parse tree of this same file (`swig -xml`).
 */
%module ds41

%{
#include <ds41/ds41.h>
%}

/* Declarations only: where symbols live in a shared library is of no interest to a wrapper. */
#define DS41_API

%include <stdint.i>

#if defined(SWIGPYTHON)
%include "python.i"
#elif defined(SWIGGO)
%include "go.i"
#endif

%include "ds41/ds41.h"
