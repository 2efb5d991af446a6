package raw

import (
	"testing"
	"unsafe"
)

func TestStructsHaveTheLayoutOfC(t *testing.T) {
	if got := unsafe.Sizeof(Span{}); got != uintptr(SIZEOF_SPAN) {
		t.Errorf("Span has %d bytes, ds41_span %d", got, SIZEOF_SPAN)
	}
	if got := unsafe.Sizeof(Form{}); got != uintptr(SIZEOF_FORM) {
		t.Errorf("Form has %d bytes, ds41_go_form %d", got, SIZEOF_FORM)
	}
	if got := len(LayerForms{}); got != int(N_WEIGHTS) {
		t.Errorf("LayerForms has %d tensors, ds41_layer_weights %d", got, N_WEIGHTS)
	}
}

func TestFailureWithoutMemoryForItsSentence(t *testing.T) {
	if failure := takeFailure(view(nil, 0)); failure != nil {
		t.Errorf("no failure became %+v", failure)
	}
	failure := takeFailure(view(nil, int(DS41_STATUS_OUT_OF_MEMORY)))
	if failure == nil || failure.Status != int32(DS41_STATUS_OUT_OF_MEMORY) ||
		failure.Message != "DS41_STATUS_OUT_OF_MEMORY" {
		t.Errorf("got %+v", failure)
	}
}
