//! The rest of the interface: what can be asked.
mod support;

use ds41::*;
use support::{checkpoint, fixture, Case};

#[test]
fn version_and_backends() {
    assert_eq!(version().split('.').count(), 3);
    let backends = backends();
    assert!(backends.contains(&"cpu") && backends.contains(&"reference"), "{backends:?}");
    let case = Case::load("a_golden_stable");
    for name in backends {
        let options = ModelOptions::new().backend(name);
        if let Err(error) = ModelBuilder::new(&case.config, &options) {
            assert!(name != "cpu" && name != "reference", "{error}"); // a GPU's, where there is none
            assert_eq!(error.status(), Status::NoBackend, "{error}");
            continue;
        }
        assert_eq!(case.model_with(false, &options).backend(), name);
    }
}

#[test]
fn a_configuration_survives_the_way_through_c() {
    let case = Case::load("a_golden_stable");
    let mut config = case.config.clone();
    assert_eq!((config.dim, config.n_heads, config.compress_ratios.len()), (64, 4, 6));
    config.validate().unwrap();
    config.norm_eps = 1e-7;
    config.max_seq_len = 1234;
    config.candidate_topk_blocks += 1;
    let model = ModelBuilder::new(&config, &ModelOptions::new()).unwrap().build();
    assert_eq!(model.config().unwrap(), config);
    let flash = Config::flash();
    let model = ModelBuilder::new(&flash, &ModelOptions::new()).unwrap().build();
    assert_eq!(model.config().unwrap(), flash);
    assert_eq!(flash.candidate_source_layer, Some(20));
    let mut without = flash;
    (without.candidate_source_layer, without.candidate_topk_blocks, without.candidate_block_size) = (None, 0, 0);
    let model = ModelBuilder::new(&without, &ModelOptions::new()).unwrap().build();
    assert_eq!(model.config().unwrap(), without);
}

#[test]
fn roles_of_layers() {
    let flash = Config::flash();
    let first = flash.role(0).unwrap();
    assert_eq!((first.ratio, first.kv_source, first.index_source, first.is_draft), (0, None, None, false));
    let source = flash.role(20).unwrap();
    assert!(source.is_kv_source && source.is_index_source && source.is_candidate_source && !source.uses_candidates);
    let consumer = flash.role(25).unwrap();
    assert_eq!((consumer.kv_source, consumer.index_source, consumer.is_kv_source), (Some(20), Some(24), false));
    assert!(flash.role(24).unwrap().uses_candidates && flash.role(42).unwrap().is_draft);
}

#[test]
fn a_configuration_of_a_file() {
    let folder = checkpoint("a_golden_stable");
    assert_eq!(Config::load(folder.path().join("config.json")).unwrap(), Case::load("a_golden_stable").config);
}

#[test]
fn files() {
    let file = File::load(fixture("e_fp8_weights.safetensors")).unwrap();
    let names: Vec<_> = file.tensor_names().collect();
    assert_eq!(names.len() as i64, file.n_tensors());
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(file.metadata("case").unwrap(), "e_fp8_weights");
    assert_eq!(file.metadata("nothing"), None);
    let fp8 = file.tensor("layers.0.attn.wq_b.weight").unwrap();
    assert_eq!((fp8.dtype(), fp8.shape(), fp8.n_bytes().unwrap()), (Dtype::Fp8E4m3, &[256, 64][..], 256 * 64));
    let (shape, scales) = fp8.scales().unwrap();
    let separate = file.tensor("layers.0.attn.wq_b.scale").unwrap();
    assert_eq!((shape, separate.dtype()), ([8, 2], Dtype::Ue8m0));
    assert_eq!(scales, separate.to_bytes().unwrap());
    assert!(file.tensor("layers.0.attn.attn_sink").unwrap().scales().is_none());
    assert_eq!(format!("{fp8:?}"), "FP8_E4M3 [256, 64]");
}

#[test]
fn checkpoints() {
    let folder = checkpoint("e_fp8_weights");
    let opened = Checkpoint::load(folder.path()).unwrap();
    let case = Case::load("e_fp8_weights");
    assert_eq!(opened.format(), "safetensors");
    assert_eq!(opened.files(), [folder.path().join("model.safetensors")]);
    assert_eq!(opened.config().unwrap(), case.config);
    assert!(opened.problems().is_empty(), "{:?}", opened.problems());
    let tensors: Vec<_> = opened.tensors().collect();
    assert_eq!(tensors.len() as i64, opened.n_tensors());
    let first = &tensors[0];
    assert_eq!((first.layer, first.member, first.file_type), (0, "wq_a", "F8_E4M3"));
    assert_eq!((&*first.name, first.dtype), ("layers.0.attn.wq_a.weight", Dtype::Fp8E4m3));
    assert_eq!((&first.shape[..], first.file, first.n_bytes), (&[64, 96][..], 0, 64 * 96 + 2 * 3));
    let norm = tensors.iter().find(|tensor| tensor.member == "q_norm").unwrap();
    assert_eq!(norm.shape, [64]);
    assert_eq!(opened.tensor(-1).unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(opened.tensor(opened.n_tensors()).unwrap_err().status(), Status::InvalidArgument);
    let model = Model::load(folder.path(), LoadOptions::new()).unwrap();
    let estimate = opened.estimate_memory(&LoadOptions::new(), 2, 60, 8).unwrap();
    assert_eq!(estimate, model.estimate_memory(2, 60, 8).unwrap());
    let of_model: u64 = tensors.iter().map(|tensor| tensor.n_model_bytes).sum();
    assert_eq!(estimate.weights, of_model);
    let mapped = opened.estimate_memory(&LoadOptions::new().map(true), 2, 60, 8).unwrap();
    assert!(mapped.weights < estimate.weights && mapped.total() < estimate.total());
}

#[test]
fn problems_of_a_checkpoint() {
    let folder = checkpoint("a_golden_stable");
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"n_heads\": 4", "\"n_heads\": 8", 1)).unwrap();
    let opened = Checkpoint::load(folder.path()).unwrap();
    let problems = opened.problems();
    assert!(problems.iter().any(|problem| problem.contains("wq_b")), "{problems:?}");
    let error = Model::load(folder.path(), LoadOptions::new()).unwrap_err();
    assert_eq!(error.status(), Status::InvalidShape, "{error}");
}

#[test]
fn a_range_of_layers_and_another_length() {
    let folder = checkpoint("a_golden_stable");
    let options = LoadOptions::new().layers(0, 2).max_seq_len(64).model(ModelOptions::new().backend("reference"));
    let model = Model::load(folder.path(), options).unwrap();
    assert_eq!((model.backend(), model.config().unwrap().max_seq_len), ("reference", 64));
    let all = Model::load(folder.path(), LoadOptions::new()).unwrap();
    let weights = |model: &Model<'_>| model.estimate_memory(0, 0, 1).unwrap().weights;
    assert!(weights(&model) < weights(&all));
}

#[test]
fn memory_is_what_was_estimated() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut sequence = Sequence::new(&model).unwrap();
    assert_eq!(sequence.n_bytes(), 0);
    sequence.reserve(60).unwrap();
    let memory = model.estimate_memory(1, 60, 1).unwrap();
    let Memory { window, compressed, index_keys, group_state, .. } = memory;
    assert_eq!(sequence.n_bytes(), window + compressed + index_keys + group_state);
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let before = context.n_bytes();
    case.run_on(&model, &mut context, None);
    assert!(context.n_bytes() > before);
}

#[test]
fn positions_of_layers() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let mut sequence = Sequence::new(&model).unwrap();
    let mut rows = case.input(0, 0);
    let n = case.steps[0].n_tokens;
    let mut x = TensorMut::new(&mut rows, &[n, case.config.dim as i64]).unwrap();
    context.prefill_in_place(0, &mut sequence, &mut x, 0).unwrap();
    let positions = (sequence.position(0), sequence.position(1), sequence.furthest_position());
    assert_eq!(positions, (Ok(n), Ok(0), Ok(n)));
    sequence.reset().unwrap();
    assert_eq!(sequence.furthest_position(), Ok(0));
}

#[test]
fn the_rule_of_torch() {
    let case = Case::load("a_golden_reference_rules");
    let model = case.model_with(false, &ModelOptions::new().topk_rule(TopkRule::TorchCpu));
    let n = case.steps[0].n_tokens;
    let run = |end_pos: i64, chunk: Option<i64>| {
        let mut context = Context::new(&model, ContextOptions::new().topk_end_pos(end_pos)).unwrap();
        support::bits(&case.run_on(&model, &mut context, chunk))
    };
    let whole = run(0, None);
    assert!((1..n).all(|chunk| run(n, Some(chunk)) == whole));
    assert!((1..n).any(|chunk| run(0, Some(chunk)) != whole), "the position has no effect");
}
