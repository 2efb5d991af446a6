package ds41

import (
	"errors"
	"fmt"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Status says why a call failed. Numbers are those of ds41_status.
type Status int32

const (
	StatusOK Status = 0

	StatusInvalidArgument Status = 10
	StatusInvalidStruct   Status = 11
	StatusInvalidDType    Status = 12
	StatusInvalidShape    Status = 13
	StatusInvalidLayer    Status = 14
	StatusInvalidPosition Status = 15
	StatusInvalidConfig   Status = 16

	StatusWrongOrder     Status = 20
	StatusMissingWeights Status = 21

	StatusUnsupported Status = 30
	StatusNoBackend   Status = 31

	StatusOutOfMemory Status = 40
	StatusDeviceError Status = 41

	StatusIOError       Status = 50
	StatusInvalidFile   Status = 51
	StatusMissingTensor Status = 52

	StatusCancelled Status = 60

	StatusInternal Status = 90
)

// String is the name of the constant in C, such as DS41_STATUS_INVALID_SHAPE.
func (s Status) String() string { return raw.Status_name(int32(s)) }

// One error for each status, for errors.Is. The errors that calls return are of type *Error.
var (
	ErrInvalidArgument error = sentinel(StatusInvalidArgument)
	ErrInvalidStruct   error = sentinel(StatusInvalidStruct)
	ErrInvalidDType    error = sentinel(StatusInvalidDType)
	ErrInvalidShape    error = sentinel(StatusInvalidShape)
	ErrInvalidLayer    error = sentinel(StatusInvalidLayer)
	ErrInvalidPosition error = sentinel(StatusInvalidPosition)
	ErrInvalidConfig   error = sentinel(StatusInvalidConfig)
	ErrWrongOrder      error = sentinel(StatusWrongOrder)
	ErrMissingWeights  error = sentinel(StatusMissingWeights)
	ErrUnsupported     error = sentinel(StatusUnsupported)
	ErrNoBackend       error = sentinel(StatusNoBackend)
	ErrOutOfMemory     error = sentinel(StatusOutOfMemory)
	ErrDevice          error = sentinel(StatusDeviceError)
	ErrIO              error = sentinel(StatusIOError)
	ErrInvalidFile     error = sentinel(StatusInvalidFile)
	ErrMissingTensor   error = sentinel(StatusMissingTensor)
	ErrCancelled       error = sentinel(StatusCancelled)
	ErrInternal        error = sentinel(StatusInternal)
)

// ErrClosed tells that an object was used after Close. Such errors are also ErrInvalidArgument.
var ErrClosed = errors.New("ds41: the object is closed")

type sentinel Status

func (s sentinel) Error() string { return "ds41: " + Status(s).String() }

// Error is what a failed call returns.
type Error struct {
	Status  Status
	Message string // A sentence: the call, the argument, what came and what is accepted.

	cause error // What a callback returned, or ErrClosed.
}

func (e *Error) Error() string { return e.Message }

// Is tells whether target is the sentinel of the error's status.
func (e *Error) Is(target error) bool {
	status, ok := target.(sentinel)
	return ok && Status(status) == e.Status
}

// Unwrap gives ErrClosed where an object was closed, and what LoadOptions.Progress returned to cancel a load.
func (e *Error) Unwrap() error { return e.cause }

// errorOf translates what the raw layer returns: a nil *raw.Failure has to become a nil error.
func errorOf(failure *raw.Failure) error {
	if failure == nil {
		return nil
	}
	return &Error{Status: Status(failure.Status), Message: failure.Message}
}

func errorf(status Status, format string, arguments ...interface{}) error {
	return &Error{Status: status, Message: fmt.Sprintf(format, arguments...)}
}
