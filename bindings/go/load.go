package ds41

import (
	"sync"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// LoadFlags are options that are on or off, DS41_LOAD_* in the header.
type LoadFlags uint32

const (
	LoadMap       = LoadFlags(raw.DS41_LOAD_MAP)        // Leave in the file's mapping what can be computed with there.
	LoadExpandFP8 = LoadFlags(raw.DS41_LOAD_EXPAND_FP8) // FP8 weights become BF16.
	LoadPlainQ2K  = LoadFlags(raw.DS41_LOAD_PLAIN_Q2_K) // Q2_K weights are multiplied with activations as they are.
)

// Progress tells how a load goes on, in bytes of the files. The first has 0 done, the last of a load that succeeds all.
type Progress struct {
	Done, Total uint64
	Tensor      string // Name of one that is being read.
}

// LoadOptions are the options of Load; the zero value has the defaults.
type LoadOptions struct {
	Model      ModelOptions
	Config     *Config // Instead of the checkpoint's own.
	MaxSeqLen  int64   // Instead of the configuration's own; 0: as it says.
	FirstLayer int
	NLayers    int // 0: to the end, less draft layers of which the checkpoint holds nothing.
	Threads    int // That read and expand; 0: one per core, at most 8.
	Flags      LoadFlags

	// Progress is told how the load goes on. An error cancels it: Load then returns one that is ErrCancelled and wraps
	// this one, which may be that of a context.Context.
	Progress func(Progress) error
}

// nativeLoad is a ds41_load_options and what it points to.
type nativeLoad struct {
	options  raw.Load_options
	config   raw.Config
	shared   *core
	progress *raw.Callback
	free     func()

	mu     sync.Mutex
	reason error
}

func (o *LoadOptions) native(call string) (*nativeLoad, error) {
	if o == nil {
		o = &LoadOptions{}
	}
	n := &nativeLoad{}
	if o.Config != nil {
		var err error
		if n.config, err = o.Config.native(call, "Config"); err != nil {
			return nil, err
		}
	}
	model, shared, freeModel, err := o.Model.native(call)
	if err != nil {
		if n.config != nil {
			raw.DeleteConfig(n.config)
		}
		return nil, err
	}
	n.shared = shared
	n.options = raw.NewLoad_options()
	raw.Load_options_init(n.options.Swigcptr())
	n.options.SetModel(model)
	if n.config != nil {
		n.options.SetConfig(n.config)
	}
	n.options.SetFlags(uint32(o.Flags))
	n.options.SetMax_seq_len(o.MaxSeqLen)
	n.options.SetFirst_layer(toInt32(o.FirstLayer))
	n.options.SetN_layers(toInt32(o.NLayers))
	n.options.SetN_threads(toInt32(o.Threads))
	if progress := o.Progress; progress != nil {
		n.progress = &raw.Callback{Progress: func(nDone, nTotal uint64, tensor string) bool {
			err := progress(Progress{nDone, nTotal, tensor})
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reason = err
			return err == nil
		}}
		n.options.Use_progress(n.progress.Handle())
	}
	n.free = func() {
		n.progress.Delete()
		raw.DeleteLoad_options(n.options)
		freeModel()
		if n.config != nil {
			raw.DeleteConfig(n.config)
		}
	}
	return n, nil
}

// Load makes a model with the weights of a checkpoint: a folder of the release, a safetensors file with its config.json
// beside it, or a GGUF.
func Load(path string, options *LoadOptions) (*Model, error) {
	if err := checkString("Load", "path", path); err != nil {
		return nil, err
	}
	load, err := options.native("Load")
	if err != nil {
		return nil, err
	}
	defer load.free()
	var native *raw.Model
	failure := raw.Model_load(&native, path, load.options)
	m, err := newModel(native, load.shared, failure)
	load.progress.Rethrow() // cancelled: there is no model
	if failed, ok := err.(*Error); ok && failed.Status == StatusCancelled {
		failed.cause = load.reason
	}
	return m, err
}
