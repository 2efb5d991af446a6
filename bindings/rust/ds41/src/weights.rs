//! Weights of one layer.
use crate::error::{Error, Result, Status};
use crate::file::File;
use crate::native::init;
use crate::tensor::Tensor;
use ds41_sys as sys;

macro_rules! weights {
    ($($(#[doc = $doc:literal])* $member:ident: $name:literal,)*) => {
        /// Weights of one layer, in host memory. Matrices are `[out, in]` as in the release's checkpoint; names are the
        /// release's, with `.` as `_`.
        ///
        /// "Projection" means F32, BF16, FP8 or Q2_K (with `in` a multiple of 32 for FP8 and of 256 for Q2_K);
        /// "vector" means F32 or BF16. A layer has exactly the tensors of its role ([`Config::role`](crate::Config::role)).
        #[derive(Clone, Copy, Debug, Default)]
        pub struct LayerWeights<'a> {
            $($(#[doc = $doc])* pub $member: Option<Tensor<'a>>,)*
        }

        impl<'a> LayerWeights<'a> {
            /// The tensors `layers.LAYER.attn.NAME` of a file, as the release calls them; those that it does not hold
            /// are None.
            pub fn from_file(file: &'a File, layer: i32) -> Result<Self> {
                let find = |name: &str| match file.tensor(&format!("layers.{layer}.attn.{name}")) {
                    Ok(tensor) => Ok(Some(tensor)),
                    Err(error) if error.status() == Status::MissingTensor => Ok(None),
                    Err(error) => Err(error),
                };
                Ok(Self { $($member: find($name)?,)* })
            }

            pub(crate) fn to_raw(self, ownership: sys::ds41_ownership) -> Result<sys::ds41_layer_weights> {
                let defaults = init(sys::ds41_layer_weights_init);
                let raw = |name: &str, tensor: Option<Tensor<'a>>, absent: sys::ds41_tensor| match tensor {
                    Some(tensor) if tensor.memory().is_some() => {
                        Err(Error::new(Status::InvalidArgument, format!("{name} lies in a buffer, need host memory")))
                    }
                    Some(tensor) => Ok(tensor.raw),
                    None => Ok(absent),
                };
                // All members are named: one that the header gets is not forgotten here.
                Ok(sys::ds41_layer_weights {
                    struct_size: defaults.struct_size,
                    ownership: ownership.0,
                    $($member: raw(stringify!($member), self.$member, defaults.$member)?,)*
                })
            }
        }
    };
}

weights! {
    /// Projection `[q_lora_rank, dim]`.
    wq_a: "wq_a.weight",
    /// Vector `[q_lora_rank]`.
    q_norm: "q_norm.weight",
    /// Projection `[n_heads * head_dim, q_lora_rank]`.
    wq_b: "wq_b.weight",
    /// Projection `[head_dim, dim]`.
    wkv: "wkv.weight",
    /// Vector `[head_dim]`.
    kv_norm: "kv_norm.weight",
    /// Vector `[n_heads]`; -inf: no sink, +inf: the head gives zeros, NaN is refused.
    attn_sink: "attn_sink",
    /// Projection `[o_groups * o_lora_rank, n_heads * head_dim / o_groups]`.
    wo_a: "wo_a.weight",
    /// Projection `[dim, o_groups * o_lora_rank]`.
    wo_b: "wo_b.weight",
    /// kv sources: `[head_dim, dim]`, projection for ratio 1, F32 or BF16 for more.
    compressor_wkv: "compressor.wkv.weight",
    /// kv sources of ratio > 1: `[head_dim, dim]`, F32 or BF16.
    compressor_wgate: "compressor.wgate.weight",
    /// kv sources: vector `[head_dim]`.
    compressor_norm: "compressor.norm.weight",
    /// kv sources that are index sources: projection `[index_head_dim, head_dim]`.
    indexer_wk: "indexer.wk.weight",
    /// kv sources that are index sources: vector `[index_head_dim]`.
    indexer_k_norm: "indexer.k_norm.weight",
    /// Index sources: projection `[index_n_heads * index_head_dim, q_lora_rank]`.
    indexer_wq_b: "indexer.wq_b.weight",
    /// Index sources: projection `[index_n_heads, dim]`.
    indexer_weights_proj: "indexer.weights_proj.weight",
}
