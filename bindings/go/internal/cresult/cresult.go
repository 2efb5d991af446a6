// Package cresult runs a golden case in C, without the generated wrappers: what the tests of package ds41 have to give
// bit for bit.
package cresult

/*
#cgo pkg-config: ds41
#cgo CFLAGS: -std=c99
#include "run.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Run gives the outputs of all steps and layers, one behind the other; n is how many values they have.
func Run(path string, startPos, nTokens []int64, n int) ([]uint16, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	values := make([]uint16, n)
	status := C.cresult_run(name, (*C.int64_t)(&startPos[0]), (*C.int64_t)(&nTokens[0]), C.int32_t(len(startPos)),
		(*C.uint16_t)(&values[0]))
	if status != 0 {
		return nil, fmt.Errorf("the C program ended with status %d", int(status))
	}
	return values, nil
}
