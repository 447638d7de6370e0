//! What the GGUF reader accepts, the engine loads and computes.

use bitnet_rs::{Batch, Context, ContextParams, Error, Model, ModelParams, Pos, SeqId, TokenId};
use gguf::fixture::{GgufBuilder, TINY_VOCAB, tiny_model};
use gguf::{Architecture, GgmlType, Gguf, Limits, Strings};

fn b158() -> GgufBuilder {
    tiny_model(Architecture::BitNetB158)
}

fn on_disk(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// The tokens of the fixture with one of them replaced.
fn tokens_with(index: usize, text: &[u8]) -> Strings {
    let gguf = Gguf::parse(&b158().encode(), &Limits::default()).unwrap();
    let tokens = gguf.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let mut texts: Vec<Vec<u8>> = tokens.iter().map(<[u8]>::to_vec).collect();
    texts[index] = text.to_vec();
    texts.into_iter().collect()
}

/// Logits of the last of a few tokens, computed by the engine from this file.
fn engine_logits(file: &GgufBuilder) -> Result<Vec<f32>, Error> {
    let (_dir, path) = on_disk(&file.encode());
    let model = Model::load(&path, ModelParams::default())?;
    let params = ContextParams { n_ctx: 64, n_threads: 1, ..ContextParams::default() };
    let mut context = Context::new(&model, &params)?;
    let tokens: Vec<TokenId> = [256, 104, 101, 108, 108, 111].map(|id| model.token(id).unwrap()).into();
    let batch = Batch::prompt(&tokens, Pos::ZERO, SeqId::ZERO)?;
    Ok(context.decode(&batch)?.last()?.to_vec())
}

/// What is accepted here, the engine loads and computes, and the same for every way to write it.
#[test]
fn accepted_files_compute_in_the_engine() {
    for architecture in Architecture::ALL {
        let base = engine_logits(&tiny_model(architecture)).unwrap();
        assert_eq!(base.len(), TINY_VOCAB as usize);
        assert!(base.iter().all(|logit| logit.is_finite()));
        assert!(base.iter().any(|&logit| logit != base[0]));
        let prefix = architecture.name();
        let same = |what: &str, change: &dyn Fn(&mut GgufBuilder)| {
            let mut file = tiny_model(architecture);
            change(&mut file);
            let logits = engine_logits(&file).unwrap_or_else(|e| panic!("{architecture}, {what}: {e}"));
            assert_eq!(logits, base, "{architecture}, {what}");
        };
        same("version 2", &|f| f.version = 2);
        same("tensors in another order", &|f| f.tensors.reverse());
        same("alignment 64", &|f| {
            f.alignment = 64;
            f.set("general.alignment", 64u32);
        });
        same("a gap", &|f| f.tensor_mut("token_embd.weight").data.extend([7; 96]));
        same("trailing bytes", &|f| f.trailing = vec![7; 77]);
        same("one value per block", &|f| {
            f.set(&format!("{prefix}.feed_forward_length"), vec![128i32]);
        });
        same("no scaling, by name", &|f| {
            f.set(&format!("{prefix}.rope.scaling.type"), "none").set(&format!("{prefix}.rope.scaling.factor"), 3f32);
        });
        same("defaults left out", &|f| {
            f.remove(&format!("{prefix}.vocab_size")).remove(&format!("{prefix}.rope.dimension_count"));
        });
        same("an empty token", &|f| {
            f.set("tokenizer.ggml.tokens", tokens_with(258, b""));
        });
        if architecture != Architecture::BitNet {
            same("the embedding again as output", &|f| {
                let embedding = f.tensor_mut("token_embd.weight").data.clone();
                f.tensor("output.weight", &[128, 260], GgmlType::F16, embedding);
            });
        }
    }
}

/// The engine computes with every type that the table calls a matrix or embedding type (those
/// whose blocks fit the width of the fixture).
#[test]
fn matrix_and_embedding_types_compute_in_the_engine() {
    let with = |name: &str, ty: GgmlType, elements: u64| {
        let mut file = b158();
        let tensor = file.tensor_mut(name);
        tensor.ty = ty.number();
        tensor.data = vec![0; ty.tensor_bytes(elements).unwrap() as usize];
        let logits = engine_logits(&file).unwrap_or_else(|e| panic!("{name} as {ty}: {e}"));
        assert!(logits.iter().all(|logit| logit.is_finite()), "{name} as {ty}");
    };
    let fits = |ty: &GgmlType| ty.block_len() <= 128;
    let mut tried = 0;
    for ty in GgmlType::ALL.into_iter().filter(fits) {
        if ty.is_matrix_type() {
            with("blk.0.attn_q.weight", ty, 128 * 128);
            tried += 1;
        }
        if ty.is_embedding_type() {
            with("token_embd.weight", ty, 128 * 260);
            tried += 1;
        }
    }
    // f32, f16, bf16, i2_s, q4_0, q4_1, q5_0, q5_1, q8_0 and iq4_nl both ways; three interleaved.
    assert_eq!(tried, 2 * 10 + 3);
}
