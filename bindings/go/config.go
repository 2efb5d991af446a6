package ds41

import (
	"unsafe"

	"github.com/libds41/libds41/bindings/go/internal/raw"
)

// MaxLayers is how many layers a configuration can list, draft layers included.
const MaxLayers = raw.DS41_MAX_LAYERS

// Config is the geometry of a model, ds41_config in the header. The header's counts of list entries are the lengths of
// the lists here.
type Config struct {
	NLayers              int32 // Of the backbone; further entries of CompressRatios are draft layers.
	CandidateSourceLayer int32 // -1: no candidate blocks.
	Dim                  int32
	NHeads               int32
	HeadDim              int32
	RopeHeadDim          int32
	QLoraRank            int32
	OGroups              int32
	OLoraRank            int32
	WindowSize           int32
	IndexNHeads          int32
	IndexHeadDim         int32
	IndexTopK            int32
	CandidateTopKBlocks  int32
	CandidateBlockSize   int32
	NormEps              float32
	RopeTheta            float32
	CompressRopeTheta    float32
	RopeFactor           float32
	BetaFast             float32
	BetaSlow             float32
	OriginalSeqLen       int64
	MaxSeqLen            int64
	CompressRatios       []int32
	KVSourceLayers       []int32
	IndexSourceLayers    []int32
}

// LayerRole is what the lists of a configuration say about one layer.
type LayerRole struct {
	Ratio             int32 // 0: window only.
	KVSource          int32 // -1 for ratio 0.
	IndexSource       int32 // -1 for ratio 0.
	IsKVSource        bool
	IsIndexSource     bool
	IsCandidateSource bool
	UsesCandidates    bool
	IsDraft           bool
}

// NewConfig has no layers and no sources, and 0 elsewhere.
func NewConfig() *Config {
	native := newNativeConfig()
	defer raw.DeleteConfig(native)
	return configOf(native)
}

// FlashConfig has the values of DeepSeek-V4.1-Flash.
func FlashConfig() *Config {
	native := newNativeConfig()
	defer raw.DeleteConfig(native)
	raw.Config_flash(native.Swigcptr())
	return configOf(native)
}

// ParseConfig reads JSON: the release's config.json, or the flat names of the reference's ModelArgs.
func ParseConfig(json []byte) (*Config, error) {
	native := newNativeConfig()
	defer raw.DeleteConfig(native)
	if err := errorOf(raw.Config_parse(native, string(json))); err != nil {
		return nil, err
	}
	return configOf(native), nil
}

// LoadConfig is ParseConfig of a file.
func LoadConfig(path string) (*Config, error) {
	if err := checkString("LoadConfig", "path", path); err != nil {
		return nil, err
	}
	native := newNativeConfig()
	defer raw.DeleteConfig(native)
	if err := errorOf(raw.Config_load(native, path)); err != nil {
		return nil, err
	}
	return configOf(native), nil
}

// Validate checks the configuration as NewModel does; the error names the first member that is wrong.
func (c *Config) Validate() error {
	native, err := c.native("Config.Validate", "the receiver")
	if err != nil {
		return err
	}
	defer raw.DeleteConfig(native)
	return errorOf(raw.Config_validate(native))
}

// Role of one layer of a valid configuration.
func (c *Config) Role(layer int) (*LayerRole, error) {
	native, err := c.native("Config.Role", "the receiver")
	if err != nil {
		return nil, err
	}
	defer raw.DeleteConfig(native)
	role := raw.NewLayer_role()
	defer raw.DeleteLayer_role(role)
	raw.Layer_role_init(role.Swigcptr())
	if err := errorOf(raw.Config_get_role(native, toInt32(layer), role)); err != nil {
		return nil, err
	}
	return &LayerRole{
		Ratio:             role.GetRatio(),
		KVSource:          role.GetKv_source(),
		IndexSource:       role.GetIndex_source(),
		IsKVSource:        role.GetIs_kv_source() != 0,
		IsIndexSource:     role.GetIs_index_source() != 0,
		IsCandidateSource: role.GetIs_candidate_source() != 0,
		UsesCandidates:    role.GetUses_candidates() != 0,
		IsDraft:           role.GetIs_draft() != 0,
	}, nil
}

func newNativeConfig() raw.Config {
	native := raw.NewConfig()
	raw.Config_init(native.Swigcptr())
	return native
}

func configOf(native raw.Config) *Config {
	config := &Config{
		NLayers:              native.GetN_layers(),
		CandidateSourceLayer: native.GetCandidate_source_layer(),
		Dim:                  native.GetDim(),
		NHeads:               native.GetN_heads(),
		HeadDim:              native.GetHead_dim(),
		RopeHeadDim:          native.GetRope_head_dim(),
		QLoraRank:            native.GetQ_lora_rank(),
		OGroups:              native.GetO_groups(),
		OLoraRank:            native.GetO_lora_rank(),
		WindowSize:           native.GetWindow_size(),
		IndexNHeads:          native.GetIndex_n_heads(),
		IndexHeadDim:         native.GetIndex_head_dim(),
		IndexTopK:            native.GetIndex_topk(),
		CandidateTopKBlocks:  native.GetCandidate_topk_blocks(),
		CandidateBlockSize:   native.GetCandidate_block_size(),
		NormEps:              native.GetNorm_eps(),
		RopeTheta:            native.GetRope_theta(),
		CompressRopeTheta:    native.GetCompress_rope_theta(),
		RopeFactor:           native.GetRope_factor(),
		BetaFast:             native.GetBeta_fast(),
		BetaSlow:             native.GetBeta_slow(),
		OriginalSeqLen:       native.GetOriginal_seq_len(),
		MaxSeqLen:            native.GetMax_seq_len(),
	}
	list := func(first *int32, n int32) []int32 {
		return append([]int32(nil), unsafe.Slice(first, MaxLayers)[:n]...)
	}
	config.CompressRatios = list(native.GetCompress_ratios(), native.GetN_compress_ratios())
	config.KVSourceLayers = list(native.GetKv_source_layers(), native.GetN_kv_source_layers())
	config.IndexSourceLayers = list(native.GetIndex_source_layers(), native.GetN_index_source_layers())
	return config
}

// native makes a ds41_config; the caller deletes it.
func (c *Config) native(call, argument string) (raw.Config, error) {
	if c == nil {
		return nil, errorf(StatusInvalidArgument, "%s: %s is nil", call, argument)
	}
	for _, list := range []struct {
		name   string
		values []int32
	}{
		{"CompressRatios", c.CompressRatios},
		{"KVSourceLayers", c.KVSourceLayers},
		{"IndexSourceLayers", c.IndexSourceLayers},
	} {
		if len(list.values) > MaxLayers {
			return nil, errorf(StatusInvalidConfig, "%s: %s has %d entries, need at most %d", call, list.name,
				len(list.values), MaxLayers)
		}
	}
	native := newNativeConfig()
	native.SetN_layers(c.NLayers)
	native.SetCandidate_source_layer(c.CandidateSourceLayer)
	native.SetDim(c.Dim)
	native.SetN_heads(c.NHeads)
	native.SetHead_dim(c.HeadDim)
	native.SetRope_head_dim(c.RopeHeadDim)
	native.SetQ_lora_rank(c.QLoraRank)
	native.SetO_groups(c.OGroups)
	native.SetO_lora_rank(c.OLoraRank)
	native.SetWindow_size(c.WindowSize)
	native.SetIndex_n_heads(c.IndexNHeads)
	native.SetIndex_head_dim(c.IndexHeadDim)
	native.SetIndex_topk(c.IndexTopK)
	native.SetCandidate_topk_blocks(c.CandidateTopKBlocks)
	native.SetCandidate_block_size(c.CandidateBlockSize)
	native.SetNorm_eps(c.NormEps)
	native.SetRope_theta(c.RopeTheta)
	native.SetCompress_rope_theta(c.CompressRopeTheta)
	native.SetRope_factor(c.RopeFactor)
	native.SetBeta_fast(c.BetaFast)
	native.SetBeta_slow(c.BetaSlow)
	native.SetOriginal_seq_len(c.OriginalSeqLen)
	native.SetMax_seq_len(c.MaxSeqLen)
	native.SetN_compress_ratios(int32(len(c.CompressRatios)))
	native.SetN_kv_source_layers(int32(len(c.KVSourceLayers)))
	native.SetN_index_source_layers(int32(len(c.IndexSourceLayers)))
	copy(unsafe.Slice(native.GetCompress_ratios(), MaxLayers), c.CompressRatios)
	copy(unsafe.Slice(native.GetKv_source_layers(), MaxLayers), c.KVSourceLayers)
	copy(unsafe.Slice(native.GetIndex_source_layers(), MaxLayers), c.IndexSourceLayers)
	return native, nil
}
