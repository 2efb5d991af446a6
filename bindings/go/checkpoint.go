package ds41

import (
	"runtime"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// Checkpoint tells what a checkpoint holds; Load needs none. Its files must not be changed until it is closed.
type Checkpoint struct {
	object
	native   *raw.Checkpoint
	format   string
	files    []string
	problems []string
}

// CheckpointTensor is one tensor of these layers in a checkpoint.
type CheckpointTensor struct {
	Layer       int
	Member      string // Of ds41_layer_weights, such as wq_a: see LayerWeights.Set.
	Name        string // As in the file.
	Type        string // As the file calls it, such as Q8_0.
	Shape       []int
	File        int    // Index into Checkpoint.Files.
	DType       DType  // In a model loaded with the default options.
	NBytes      uint64 // In the file, scales included.
	NModelBytes uint64 // In that model, scales included.
}

// OpenCheckpoint reads the configuration and the headers of a checkpoint. What is wrong with single tensors is no
// failure, but listed by Problems.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	if err := checkString("OpenCheckpoint", "path", path); err != nil {
		return nil, err
	}
	var native *raw.Checkpoint
	if err := errorOf(raw.Checkpoint_load(&native, path)); err != nil {
		return nil, err
	}
	c := &Checkpoint{
		native:   native,
		format:   raw.Checkpoint_get_format(native),
		files:    make([]string, raw.Checkpoint_get_n_files(native)),
		problems: make([]string, raw.Checkpoint_get_n_problems(native)),
	}
	for i := range c.files {
		c.files[i] = raw.Checkpoint_get_file(native, int64(i))
	}
	for i := range c.problems {
		c.problems[i] = raw.Checkpoint_get_problem(native, int64(i))
	}
	c.init("checkpoint", func() { raw.Checkpoint_destroy(native) })
	runtime.SetFinalizer(c, (*Checkpoint).Close)
	return c, nil
}

func (c *Checkpoint) base() *object {
	if c == nil {
		return nil
	}
	return &c.object
}

// Close closes the files. It may be called again.
func (c *Checkpoint) Close() error {
	c.base().close()
	return nil
}

// Format is "safetensors" or "gguf", also after Close.
func (c *Checkpoint) Format() string {
	if c == nil {
		return ""
	}
	return c.format
}

// Files are the paths of those that were opened, also after Close.
func (c *Checkpoint) Files() []string {
	if c == nil {
		return nil
	}
	return append([]string(nil), c.files...)
}

// Problems are sentences about what keeps all layers from being loaded, also after Close.
func (c *Checkpoint) Problems() []string {
	if c == nil {
		return nil
	}
	return append([]string(nil), c.problems...)
}

// Config is the configuration that the checkpoint comes with.
func (c *Checkpoint) Config() (*Config, error) {
	if err := c.base().use("Checkpoint.Config", "the receiver"); err != nil {
		return nil, err
	}
	defer c.release()
	native := newNativeConfig()
	defer raw.DeleteConfig(native)
	if err := errorOf(raw.Checkpoint_get_config(c.native, native)); err != nil {
		return nil, err
	}
	return configOf(native), nil
}

// Tensors are those of these layers that are right, in order of layers and of LayerWeights.
func (c *Checkpoint) Tensors() ([]CheckpointTensor, error) {
	if err := c.base().use("Checkpoint.Tensors", "the receiver"); err != nil {
		return nil, err
	}
	defer c.release()
	native := raw.NewCheckpoint_tensor()
	defer raw.DeleteCheckpoint_tensor(native)
	tensors := make([]CheckpointTensor, raw.Checkpoint_get_n_tensors(c.native))
	for i := range tensors {
		raw.Checkpoint_tensor_init(native.Swigcptr())
		if err := errorOf(raw.Checkpoint_get_tensor(c.native, int64(i), native)); err != nil {
			return nil, err
		}
		tensors[i] = CheckpointTensor{
			Layer:       int(native.GetLayer()),
			Member:      native.GetMember(),
			Name:        native.GetName(),
			Type:        native.GetFile_type(),
			Shape:       toShape(unsafe.Slice(native.GetShape(), int(native.GetN_dims()))),
			File:        int(native.GetFile()),
			DType:       DType(native.GetDtype()),
			NBytes:      native.GetN_bytes(),
			NModelBytes: native.GetN_model_bytes(),
		}
	}
	return tensors, nil
}

// EstimateMemory tells what a model loaded with the options, its sequences and a context will take.
func (c *Checkpoint) EstimateMemory(options *LoadOptions, nSeqs, nPositions, nTokens int64) (*MemoryEstimate, error) {
	const call = "Checkpoint.EstimateMemory"
	if err := c.base().use(call, "the receiver"); err != nil {
		return nil, err
	}
	defer c.release()
	load, err := options.native(call)
	if err != nil {
		return nil, err
	}
	defer load.free()
	defer load.shared.release()
	native := raw.NewMemory()
	defer raw.DeleteMemory(native)
	raw.Memory_init(native.Swigcptr())
	failure := raw.Checkpoint_estimate_memory(c.native, load.options, nSeqs, nPositions, nTokens, native)
	load.shared.log.Rethrow()
	if failure != nil {
		return nil, errorOf(failure)
	}
	return memoryEstimateOf(native), nil
}
