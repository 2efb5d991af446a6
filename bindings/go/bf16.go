package ds41

import (
	"math"
	"unsafe"
)

// BF16 is a bfloat16 by its bits: the upper half of a float32.
type BF16 uint16

// Float32 is the same value.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// ToBF16 rounds to nearest, ties to even. NaN stays NaN.
func ToBF16(value float32) BF16 {
	bits := math.Float32bits(value)
	if value != value {
		return BF16(bits>>16 | 0x40) // quiet: a payload in the lower half alone would become infinity
	}
	return BF16((bits + 0x7fff + bits>>16&1) >> 16)
}

// BF16s is the same memory as bfloat16 values.
func BF16s(bits []uint16) []BF16 {
	if len(bits) == 0 {
		return nil
	}
	return unsafe.Slice((*BF16)(unsafe.Pointer(&bits[0])), len(bits))
}
