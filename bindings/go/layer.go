package ds41

import "github.com/libds41/libds41/bindings/go/internal/raw"

// LayerWeights are the weights of one layer, ds41_layer_weights in the header: those of its role, nil for the others.
type LayerWeights struct {
	// Every layer.
	WqA, QNorm, WqB, Wkv, KVNorm, AttnSink, WoA, WoB *Tensor

	// kv sources; the gate where the ratio is more than 1.
	CompressorWkv, CompressorWgate, CompressorNorm *Tensor

	// kv sources that are index sources.
	IndexerWk, IndexerKNorm *Tensor

	// Index sources.
	IndexerWqB, IndexerWeightsProj *Tensor
}

// Set sets the weight that a member of ds41_layer_weights names, such as wq_a.
func (w *LayerWeights) Set(member string, tensor *Tensor) error {
	for i, name := range weightNames {
		if name == member {
			*w.all()[i] = tensor
			return nil
		}
	}
	return errorf(StatusInvalidArgument, "LayerWeights.Set: member is %q, need one of %v", member, weightNames)
}

// In order of ds41_layer_weights.
var weightNames = [len(raw.LayerForms{})]string{
	"wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "attn_sink", "wo_a", "wo_b", "compressor_wkv", "compressor_wgate",
	"compressor_norm", "indexer_wk", "indexer_k_norm", "indexer_wq_b", "indexer_weights_proj",
}

func (w *LayerWeights) all() [len(raw.LayerForms{})]**Tensor {
	return [...]**Tensor{
		&w.WqA, &w.QNorm, &w.WqB, &w.Wkv, &w.KVNorm, &w.AttnSink, &w.WoA, &w.WoB, &w.CompressorWkv, &w.CompressorWgate,
		&w.CompressorNorm, &w.IndexerWk, &w.IndexerKNorm, &w.IndexerWqB, &w.IndexerWeightsProj,
	}
}

// SetLayer copies the weights of one layer, before the model's first context or sequence.
func (m *Model) SetLayer(layer int, weights *LayerWeights) error {
	return m.setLayer("Model.SetLayer", layer, weights, false)
}

// BorrowLayer hands over the weights of one layer without copying the large ones. They lie in a Memory or a File, which
// may be closed: it is kept until the model and all its contexts, sequences and buffers are freed.
func (m *Model) BorrowLayer(layer int, weights *LayerWeights) error {
	return m.setLayer("Model.BorrowLayer", layer, weights, true)
}

func (m *Model) setLayer(call string, layer int, weights *LayerWeights, borrow bool) error {
	if err := m.base().lock(call, "the receiver"); err != nil {
		return err
	}
	defer m.unlock()
	if weights == nil {
		return errorf(StatusInvalidArgument, "%s: weights is nil", call)
	}
	var forms raw.LayerForms
	var data, scales [len(forms)][]byte
	var lent []*object
	for i, entry := range weights.all() {
		tensor, name := *entry, weightNames[i]
		if tensor == nil {
			continue
		}
		if err := tensor.use(call, name); err != nil {
			return err
		}
		defer tensor.release()
		if tensor.buffer != nil {
			return errorf(StatusInvalidArgument, "%s: %s lies in a buffer, need a slice, a Memory or a File", call, name)
		}
		if borrow && (tensor.owner == nil || tensor.scales != nil && tensor.scalesOwner == nil) {
			return errorf(StatusInvalidArgument, "%s: %s lies in a slice, need a Memory or a File to borrow from", call,
				name)
		}
		forms[i], data[i], scales[i] = tensor.form, tensor.data, tensor.scales
		if borrow {
			lent = append(lent, tensor.owner)
			if tensor.scalesOwner != nil {
				lent = append(lent, tensor.scalesOwner)
			}
		}
	}
	ownership := raw.DS41_OWNERSHIP_COPY
	if borrow {
		ownership = raw.DS41_OWNERSHIP_BORROW
	}
	failure := raw.Model_set_layer(m.native, toInt32(layer), int32(ownership), &forms,
		data[0], scales[0], data[1], scales[1], data[2], scales[2], data[3], scales[3], data[4], scales[4],
		data[5], scales[5], data[6], scales[6], data[7], scales[7], data[8], scales[8], data[9], scales[9],
		data[10], scales[10], data[11], scales[11], data[12], scales[12], data[13], scales[13], data[14], scales[14])
	defer m.core.log.Rethrow()
	if failure != nil {
		return errorOf(failure)
	}
	m.core.lend(lent)
	return nil
}

// lend keeps memory until the core is freed. The call that lends it is using it: it cannot be closed yet.
func (c *core) lend(owners []*object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, owner := range owners {
		owner.keep()
		c.lent = append(c.lent, owner)
	}
}
