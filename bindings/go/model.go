package ds41

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// TopKRule is the rule for equal scores at the cut of a selection. Numbers are those of ds41_topk_rule.
type TopKRule int32

const (
	TopKStable   TopKRule = 0 // The higher score first, then the lower index.
	TopKTorchCPU TopKRule = 1 // The set that torch.topk returns on a CPU.
)

// LogLevel says how much a line of the log matters. Numbers are those of ds41_log_level.
type LogLevel int32

const (
	LogError   LogLevel = 0
	LogWarning LogLevel = 1
	LogInfo    LogLevel = 2
	LogDebug   LogLevel = 3
)

// ModelOptions are the options of NewModel and Load; the zero value has the defaults.
type ModelOptions struct {
	Backend string // "" or "auto": the best that runs here.
	TopK    TopKRule

	// Log receives what the model has to say, one line at a time, until the model and all its children are closed.
	Log func(level LogLevel, message string)
}

// Model is configuration, backend and the weights of some or all layers.
type Model struct {
	object
	native  *raw.Model
	core    *core
	backend string
}

// core is what a model shares with its contexts, sequences and buffers: what C may call and read until the last of
// them is freed. It does not lead to the model, which the table of callbacks would keep alive.
type core struct {
	log  *raw.Callback
	turn *turn // Of the model.

	mu   sync.Mutex
	refs int
	lent []*object
}

func newCore(log func(LogLevel, string)) *core {
	c := &core{refs: 1}
	if log != nil {
		c.log = &raw.Callback{Log: func(level int32, message string) {
			if c.turn == nil { // not made yet: nobody else can use the model
				log(LogLevel(level), message)
				return
			}
			inCallback([]*turn{c.turn}, func() { log(LogLevel(level), message) })
		}}
	}
	return c
}

func (c *core) retain() *core {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refs++
	return c
}

func (c *core) release() {
	c.mu.Lock()
	c.refs--
	last := c.refs == 0
	c.mu.Unlock()
	if !last {
		return
	}
	c.log.Delete()
	for _, owner := range c.lent {
		owner.release()
	}
}

// native makes a ds41_model_options and a core; the caller calls free after the call that takes the options.
func (o *ModelOptions) native(call string) (options raw.Model_options, shared *core, free func(), err error) {
	if o == nil {
		o = &ModelOptions{}
	}
	if err := checkString(call, "Backend", o.Backend); err != nil {
		return nil, nil, nil, err
	}
	options = raw.NewModel_options()
	raw.Model_options_init(options.Swigcptr())
	options.SetTopk_rule(int32(o.TopK))
	var name unsafe.Pointer
	if o.Backend != "" {
		if name = raw.Memory_alloc(uint64(len(o.Backend) + 1)); name == nil {
			raw.DeleteModel_options(options)
			return nil, nil, nil, errorf(StatusOutOfMemory, "%s: there is no memory for the name of the backend", call)
		}
		copy(unsafe.Slice((*byte)(name), len(o.Backend)), o.Backend)
		options.Use_backend(name)
	}
	shared = newCore(o.Log)
	if shared.log != nil {
		options.Use_log(shared.log.Handle())
	}
	return options, shared, func() {
		raw.DeleteModel_options(options)
		raw.Memory_free(name)
	}, nil
}

// NewModel makes a model without weights.
func NewModel(config *Config, options *ModelOptions) (*Model, error) {
	nativeConfig, err := config.native("NewModel", "config")
	if err != nil {
		return nil, err
	}
	defer raw.DeleteConfig(nativeConfig)
	nativeOptions, shared, free, err := options.native("NewModel")
	if err != nil {
		return nil, err
	}
	defer free()
	var native *raw.Model
	failure := raw.Model_create(&native, nativeConfig, nativeOptions)
	return newModel(native, shared, failure)
}

// newModel takes over what a call has made, or what it would have needed.
func newModel(native *raw.Model, shared *core, failure *raw.Failure) (*Model, error) {
	if failure != nil {
		defer shared.log.Rethrow()
		shared.release()
		return nil, errorOf(failure)
	}
	m := &Model{native: native, core: shared, backend: raw.Model_get_backend(native)}
	m.init("model", func() {
		raw.Model_destroy(native)
		shared.release()
	})
	shared.turn = m.turn
	runtime.SetFinalizer(m, (*Model).Close)
	shared.log.Rethrow() // the finalizer frees the model then
	return m, nil
}

func (m *Model) base() *object {
	if m == nil {
		return nil
	}
	return &m.object
}

// Close gives the model up. Its contexts, sequences and buffers go on working. It may be called again.
func (m *Model) Close() error {
	m.base().close()
	return nil
}

// Backend is the name of the backend that the model runs on, also after Close.
func (m *Model) Backend() string {
	if m == nil {
		return ""
	}
	return m.backend
}

// Config copies the configuration out.
func (m *Model) Config() (*Config, error) {
	if err := m.base().use("Model.Config", "the receiver"); err != nil {
		return nil, err
	}
	defer m.release()
	native := newNativeConfig()
	defer raw.DeleteConfig(native)
	if err := errorOf(raw.Model_get_config(m.native, native)); err != nil {
		return nil, err
	}
	return configOf(native), nil
}

// MemoryEstimate is what a deployment takes, in bytes; ds41_memory in the header.
type MemoryEstimate struct {
	Weights, Window, Compressed, IndexKeys, GroupState, Workspace uint64
}

func memoryEstimateOf(native raw.Memory) *MemoryEstimate {
	return &MemoryEstimate{
		Weights:    native.GetWeights(),
		Window:     native.GetWindow(),
		Compressed: native.GetCompressed(),
		IndexKeys:  native.GetIndex_keys(),
		GroupState: native.GetGroup_state(),
		Workspace:  native.GetWorkspace(),
	}
}

// EstimateMemory tells what nSeqs sequences of nPositions tokens, and a context for steps of nTokens, will take.
func (m *Model) EstimateMemory(nSeqs, nPositions, nTokens int64) (*MemoryEstimate, error) {
	if err := m.base().lock("Model.EstimateMemory", "the receiver"); err != nil {
		return nil, err
	}
	defer m.unlock()
	native := raw.NewMemory()
	defer raw.DeleteMemory(native)
	raw.Memory_init(native.Swigcptr())
	if err := errorOf(raw.Model_estimate_memory(m.native, nSeqs, nPositions, nTokens, native)); err != nil {
		return nil, err
	}
	return memoryEstimateOf(native), nil
}
