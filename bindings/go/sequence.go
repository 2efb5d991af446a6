package ds41

import (
	"runtime"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// AllLayers stands for the furthest position that any layer has reached, in Sequence.Position.
const AllLayers = -1

// Sequence is the state of one sequence in every layer.
type Sequence struct {
	object
	native *raw.Seq
}

// NewSequence makes an empty sequence. The model is immutable from here on.
func (m *Model) NewSequence() (*Sequence, error) {
	if err := m.base().lock("Model.NewSequence", "the receiver"); err != nil {
		return nil, err
	}
	defer m.unlock()
	var native *raw.Seq
	if err := errorOf(raw.Seq_create(&native, m.native)); err != nil {
		return nil, err
	}
	shared := m.core.retain()
	s := &Sequence{native: native}
	s.init("sequence", func() {
		raw.Seq_destroy(native)
		shared.release()
	})
	runtime.SetFinalizer(s, (*Sequence).Close)
	return s, nil
}

func (s *Sequence) base() *object {
	if s == nil {
		return nil
	}
	return &s.object
}

// Close frees the sequence. A step that uses it is over. It may be called again.
func (s *Sequence) Close() error {
	s.base().close()
	return nil
}

// Reset forgets all tokens, in every layer. A step that uses the sequence is over.
func (s *Sequence) Reset() error {
	if err := s.base().lock("Sequence.Reset", "the receiver"); err != nil {
		return err
	}
	defer s.unlock()
	return errorOf(raw.Seq_reset(s.native))
}

// Position is how many tokens a layer has seen, which is the start position of its next step.
func (s *Sequence) Position(layer int) (int64, error) {
	if err := s.base().lock("Sequence.Position", "the receiver"); err != nil {
		return 0, err
	}
	defer s.unlock()
	var position int64
	if err := errorOf(raw.Seq_get_position(s.native, toInt32(layer), &position)); err != nil {
		return 0, err
	}
	return position, nil
}

// Reserve allocates memory for the first nPositions tokens.
func (s *Sequence) Reserve(nPositions int64) error {
	if err := s.base().lock("Sequence.Reserve", "the receiver"); err != nil {
		return err
	}
	defer s.unlock()
	return errorOf(raw.Seq_reserve(s.native, nPositions))
}

// Bytes of cache memory that the sequence holds now; 0 after Close, and in a callback of a call that uses it.
func (s *Sequence) Bytes() uint64 {
	if err := s.base().lock("Sequence.Bytes", "the receiver"); err != nil {
		return 0
	}
	defer s.unlock()
	return raw.Seq_get_bytes(s.native)
}
