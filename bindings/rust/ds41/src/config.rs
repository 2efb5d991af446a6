//! Geometry of a model.
use crate::error::Result;
use crate::native::{c_path, call, init};
use ds41_sys as sys;
use std::path::Path;

const MAX_LAYERS: usize = sys::DS41_MAX_LAYERS as usize;

/// Geometry of the model. Names are those of DeepSeek's reference (ModelArgs); no size is built in.
///
/// A layer's ratio is `compress_ratios[layer]`: 0 attends to its window alone; r > 0 attends also to selected
/// compressed rows, one per r tokens. A layer with ratio > 0 that is no kv source reads the rows of the nearest kv
/// source before it; one that is no index source takes the selection of the nearest index source before it. Layers from
/// `n_layers` on (the draft layers) have ratio 0.
///
/// ```
/// let mut config = ds41::Config::flash();
/// assert_eq!((config.n_layers, config.compress_ratios.len(), config.dim), (40, 43, 5120));
/// config.head_dim = 100;
/// let error = config.validate().unwrap_err();
/// assert_eq!(error.status(), ds41::Status::InvalidConfig);
/// assert!(error.message().contains("head_dim is 100"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Layers of the backbone.
    pub n_layers: i32,
    /// Ratio of each layer; those from `n_layers` on are draft layers. At most 256, as of the lists below.
    pub compress_ratios: Vec<i32>,
    /// Ascending.
    pub kv_source_layers: Vec<i32>,
    /// Ascending.
    pub index_source_layers: Vec<i32>,
    /// An index source; None: no candidate blocks.
    pub candidate_source_layer: Option<i32>,
    /// Width of x and out.
    pub dim: i32,
    /// A multiple of `o_groups`.
    pub n_heads: i32,
    /// A multiple of 32.
    pub head_dim: i32,
    /// Rotated values at the end of each head; even, at most `head_dim`.
    pub rope_head_dim: i32,
    /// Width between the two projections of the queries.
    pub q_lora_rank: i32,
    /// Groups of heads in the output projection.
    pub o_groups: i32,
    /// Per group.
    pub o_lora_rank: i32,
    /// Positions p - window_size + 1 .. p are attended to uncompressed.
    pub window_size: i32,
    /// Heads of the indexer.
    pub index_n_heads: i32,
    /// A multiple of 32, at least `rope_head_dim`.
    pub index_head_dim: i32,
    /// Compressed rows selected per token.
    pub index_topk: i32,
    /// Blocks of groups that the candidate source keeps per token.
    pub candidate_topk_blocks: i32,
    /// Groups per block.
    pub candidate_block_size: i32,
    /// Inside the root of every norm; more than 0.
    pub norm_eps: f32,
    /// Layers of ratio 0; never with YaRN.
    pub rope_theta: f32,
    /// Layers of ratio > 0.
    pub compress_rope_theta: f32,
    /// YaRN, layers of ratio > 0.
    pub rope_factor: f32,
    /// YaRN.
    pub beta_fast: f32,
    /// YaRN.
    pub beta_slow: f32,
    /// YaRN: positions of the original training; 0 switches YaRN off.
    pub original_seq_len: i64,
    /// Positions a sequence may reach. Costs nothing until they are used.
    pub max_seq_len: i64,
}

/// What the lists of a configuration say about one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerRole {
    /// 0: window only.
    pub ratio: i32,
    /// Layer whose compressed rows it reads, itself included; None for ratio 0.
    pub kv_source: Option<i32>,
    /// Layer whose selection it takes, itself included; None for ratio 0.
    pub index_source: Option<i32>,
    /// It makes compressed rows.
    pub is_kv_source: bool,
    /// It selects rows.
    pub is_index_source: bool,
    /// It publishes the blocks that later index sources score.
    pub is_candidate_source: bool,
    /// An index source that scores inside the candidate source's blocks only.
    pub uses_candidates: bool,
    /// `n_layers` or beyond.
    pub is_draft: bool,
}

impl Default for Config {
    /// No layers, no sources, 0 elsewhere: to be filled in.
    fn default() -> Self {
        Self::from_raw(&init(sys::ds41_config_init))
    }
}

impl Config {
    /// DeepSeek-V4.1-Flash: 40 layers and 3 draft layers.
    pub fn flash() -> Self {
        Self::from_raw(&init(sys::ds41_config_flash))
    }

    /// Read the release's config.json, or the flat names of the reference's ModelArgs. The result is valid.
    ///
    /// Errors: `InvalidFile` (no JSON, a key is missing or of another type), `InvalidConfig`.
    pub fn from_json(json: &str) -> Result<Self> {
        let mut raw = init(sys::ds41_config_init);
        // SAFETY: a struct that was initialised, and that many bytes.
        call(|| unsafe { sys::ds41_config_parse(&mut raw, json.as_ptr().cast(), json.len()) })?;
        Ok(Self::from_raw(&raw))
    }

    /// [`from_json`](Self::from_json) of a file. Errors: `IoError` too.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        let mut raw = init(sys::ds41_config_init);
        // SAFETY: a struct that was initialised, and a string.
        call(|| unsafe { sys::ds41_config_load(&mut raw, path.as_ptr()) })?;
        Ok(Self::from_raw(&raw))
    }

    /// Check it as [`ModelBuilder::new`](crate::ModelBuilder::new) does. The error names the first member that is
    /// wrong, its value and the range.
    pub fn validate(&self) -> Result<()> {
        let raw = self.to_raw();
        // SAFETY: a struct that was initialised.
        call(|| unsafe { sys::ds41_config_validate(&raw) })
    }

    /// What a valid configuration says about a layer, draft layers included.
    ///
    /// Errors: `InvalidConfig`, `InvalidLayer`.
    pub fn role(&self, layer: i32) -> Result<LayerRole> {
        let config = self.to_raw();
        let mut role = init(sys::ds41_layer_role_init);
        // SAFETY: two structs that were initialised.
        call(|| unsafe { sys::ds41_config_get_role(&config, layer, &mut role) })?;
        let sys::ds41_layer_role {
            struct_size: _,
            ratio,
            kv_source,
            index_source,
            is_kv_source,
            is_index_source,
            is_candidate_source,
            uses_candidates,
            is_draft,
        } = role;
        Ok(LayerRole {
            ratio,
            kv_source: (kv_source >= 0).then_some(kv_source),
            index_source: (index_source >= 0).then_some(index_source),
            is_kv_source: is_kv_source != 0,
            is_index_source: is_index_source != 0,
            is_candidate_source: is_candidate_source != 0,
            uses_candidates: uses_candidates != 0,
            is_draft: is_draft != 0,
        })
    }

    // Both directions name all members, so that one that the header gets is not forgotten here.

    pub(crate) fn to_raw(&self) -> sys::ds41_config {
        let defaults = init(sys::ds41_config_init);
        // A list that is too long keeps its length, which the library refuses before it reads an entry.
        let length = |list: &[i32]| i32::try_from(list.len()).unwrap_or(i32::MAX);
        let entries = |list: &[i32]| {
            let mut entries = [0; MAX_LAYERS];
            let n = list.len().min(MAX_LAYERS);
            entries[..n].copy_from_slice(&list[..n]);
            entries
        };
        sys::ds41_config {
            struct_size: defaults.struct_size,
            n_layers: self.n_layers,
            n_compress_ratios: length(&self.compress_ratios),
            n_kv_source_layers: length(&self.kv_source_layers),
            n_index_source_layers: length(&self.index_source_layers),
            candidate_source_layer: self.candidate_source_layer.unwrap_or(-1),
            dim: self.dim,
            n_heads: self.n_heads,
            head_dim: self.head_dim,
            rope_head_dim: self.rope_head_dim,
            q_lora_rank: self.q_lora_rank,
            o_groups: self.o_groups,
            o_lora_rank: self.o_lora_rank,
            window_size: self.window_size,
            index_n_heads: self.index_n_heads,
            index_head_dim: self.index_head_dim,
            index_topk: self.index_topk,
            candidate_topk_blocks: self.candidate_topk_blocks,
            candidate_block_size: self.candidate_block_size,
            norm_eps: self.norm_eps,
            rope_theta: self.rope_theta,
            compress_rope_theta: self.compress_rope_theta,
            rope_factor: self.rope_factor,
            beta_fast: self.beta_fast,
            beta_slow: self.beta_slow,
            reserved: defaults.reserved,
            original_seq_len: self.original_seq_len,
            max_seq_len: self.max_seq_len,
            compress_ratios: entries(&self.compress_ratios),
            kv_source_layers: entries(&self.kv_source_layers),
            index_source_layers: entries(&self.index_source_layers),
        }
    }

    pub(crate) fn from_raw(raw: &sys::ds41_config) -> Self {
        let list = |entries: &[i32; MAX_LAYERS], n: i32| {
            let n = usize::try_from(n).unwrap_or(0);
            entries[..n.min(MAX_LAYERS)].to_vec()
        };
        let sys::ds41_config {
            struct_size: _,
            n_layers,
            n_compress_ratios,
            n_kv_source_layers,
            n_index_source_layers,
            candidate_source_layer,
            dim,
            n_heads,
            head_dim,
            rope_head_dim,
            q_lora_rank,
            o_groups,
            o_lora_rank,
            window_size,
            index_n_heads,
            index_head_dim,
            index_topk,
            candidate_topk_blocks,
            candidate_block_size,
            norm_eps,
            rope_theta,
            compress_rope_theta,
            rope_factor,
            beta_fast,
            beta_slow,
            reserved: _,
            original_seq_len,
            max_seq_len,
            compress_ratios,
            kv_source_layers,
            index_source_layers,
        } = raw;
        Self {
            n_layers: *n_layers,
            compress_ratios: list(compress_ratios, *n_compress_ratios),
            kv_source_layers: list(kv_source_layers, *n_kv_source_layers),
            index_source_layers: list(index_source_layers, *n_index_source_layers),
            candidate_source_layer: (*candidate_source_layer != -1).then_some(*candidate_source_layer),
            dim: *dim,
            n_heads: *n_heads,
            head_dim: *head_dim,
            rope_head_dim: *rope_head_dim,
            q_lora_rank: *q_lora_rank,
            o_groups: *o_groups,
            o_lora_rank: *o_lora_rank,
            window_size: *window_size,
            index_n_heads: *index_n_heads,
            index_head_dim: *index_head_dim,
            index_topk: *index_topk,
            candidate_topk_blocks: *candidate_topk_blocks,
            candidate_block_size: *candidate_block_size,
            norm_eps: *norm_eps,
            rope_theta: *rope_theta,
            compress_rope_theta: *compress_rope_theta,
            rope_factor: *rope_factor,
            beta_fast: *beta_fast,
            beta_slow: *beta_slow,
            original_seq_len: *original_seq_len,
            max_seq_len: *max_seq_len,
        }
    }
}
