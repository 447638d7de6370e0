//! Reader of stored reference logits, format `bitnet-reference/1` (docs/formats/reference.md).
//!
//! The file comes from outside: every key, type, shape and value that the format asks for is checked before
//! anything is compared, and what is kept in memory is at most a copy of the file's tensors.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The one format that is read.
pub const FORMAT: &str = "bitnet-reference/1";

/// Metadata keys that must be there.
const KEYS: [&str; 13] = [
    "engine",
    "runs",
    "prompts",
    "prompts_sha256",
    "top_k",
    "model_name",
    "model_files_sha256",
    "tokenizer_sha256",
    "ternary_sha256",
    "arch",
    "versions",
    "threads",
    "command",
];

/// Linears of a layer in the order of `scales` and `ternary_sha256`, by their GGUF names.
pub const LINEARS: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// Characters of a refused value that a message repeats.
const QUOTED: usize = 80;

/// Why a reference file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceFileError {
    /// It is no safetensors file, or a damaged one.
    #[error("not a readable safetensors file: {0}")]
    Container(#[from] SafeTensorError),
    /// It has another format.
    #[error("the file's format is '{found}', this reader knows '{FORMAT}': write it anew with scripts/hf_reference.py")]
    Format {
        /// What the file says, empty without the key.
        found: String,
    },
    /// A metadata key is missing.
    #[error("metadata key '{key}' is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A metadata value cannot be used.
    #[error("metadata key '{key}' is '{value}': {need}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value, shortened.
        value: String,
        /// What is needed.
        need: String,
    },
    /// A tensor is missing.
    #[error("tensor '{name}' is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor that the format does not know.
    #[error("tensor '{name}' is none that the prompts and runs of the file ask for")]
    UnexpectedTensor {
        /// The tensor, shortened.
        name: String,
    },
    /// A tensor has another type or shape.
    #[error("tensor '{name}' is {found}, expected {expected}")]
    Layout {
        /// The tensor.
        name: String,
        /// Type and shape in the file.
        found: String,
        /// Type and shape needed.
        expected: String,
    },
    /// A value in a tensor cannot be.
    #[error("tensor '{name}', element {index}: {value}: {need}")]
    Content {
        /// The tensor.
        name: String,
        /// Element, counted in the tensor's order.
        index: usize,
        /// Its value.
        value: String,
        /// What is needed.
        need: String,
    },
}

/// Shapes and constants of the model that was run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of gguf::Hyperparameters")]
pub struct Arch {
    pub n_layer: u32,
    pub n_embd: u32,
    pub n_head: u32,
    pub n_head_kv: u32,
    pub head_dim: u32,
    pub n_ff: u32,
    pub n_vocab: u32,
    pub n_ctx_train: u32,
    pub rope_theta: f64,
    pub rms_eps: f64,
}

/// Logits of one run (one arithmetic) for one prompt of n tokens. Row i holds the logits after tokens 0..=i.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRun {
    /// Logits kept per row.
    pub k: usize,
    /// `[n]`: ln Σ exp over the whole vocabulary.
    pub logsumexp: Vec<f32>,
    /// `[n][k]`: ids of the largest logits, falling.
    pub top_ids: Vec<i32>,
    /// `[n][k]`: their logits.
    pub top_logits: Vec<f32>,
    /// `[n − 1]`: log-probability of token i + 1 in row i.
    pub next: Vec<f32>,
    /// Rising positions whose whole row is stored.
    pub full_positions: Vec<usize>,
    /// `[full_positions][n_vocab]`.
    pub full_logits: Vec<f32>,
}

impl StoredRun {
    /// Ids and logits of a position's largest logits.
    pub fn top(&self, position: usize) -> Option<(&[i32], &[f32])> {
        let range = position.checked_mul(self.k)?..position.checked_add(1)?.checked_mul(self.k)?;
        Some((self.top_ids.get(range.clone())?, self.top_logits.get(range)?))
    }

    /// A position's whole row, where it is stored.
    pub fn full(&self, position: usize, n_vocab: usize) -> Option<&[f32]> {
        let at = self.full_positions.binary_search(&position).ok()?;
        self.full_logits.chunks_exact(n_vocab).nth(at)
    }
}

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPrompt {
    /// Its name.
    pub id: String,
    /// The text that was tokenized; of a chat prompt after the template.
    pub text: String,
    /// Token ids, BOS included; never empty.
    pub tokens: Vec<i32>,
    /// One per run of the file, in the file's order.
    pub runs: Vec<StoredRun>,
}

/// A checked reference file.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceFile {
    /// Name of the checkpoint.
    pub model_name: String,
    /// Run names; the first is the one to judge by.
    pub runs: Vec<String>,
    /// Shapes and constants.
    pub arch: Arch,
    /// SHA-256 (hex) of the GGUF that belongs to the checkpoint, if the writer knew it.
    pub gguf_sha256: Option<String>,
    /// SHA-256 (hex) of all ternary codes.
    pub ternary_sha256: String,
    /// SHA-256 (hex) of the prompt file.
    pub prompts_sha256: String,
    /// Library versions.
    pub versions: BTreeMap<String, String>,
    /// Command that wrote the file.
    pub command: String,
    /// Magnitude of a one per linear: `[n_layer][7]`, [`LINEARS`] in a layer.
    pub scales: Vec<f32>,
    /// The prompts in the file's order.
    pub prompts: Vec<StoredPrompt>,
}

impl ReferenceFile {
    /// Reads and checks a whole file.
    ///
    /// # Errors
    /// [`ReferenceFileError`] names the key or tensor, the value and what is needed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReferenceFileError> {
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let none = std::collections::HashMap::new();
        let metadata = header.metadata().as_ref().unwrap_or(&none);
        let found = metadata.get("format").map_or("", String::as_str);
        if found != FORMAT {
            return Err(ReferenceFileError::Format { found: shortened(found) });
        }
        for key in KEYS {
            if !metadata.contains_key(key) {
                return Err(ReferenceFileError::MissingKey { key });
            }
        }
        let keys = Keys(metadata);
        keys.is("engine", "hf")?;
        let runs = keys.runs()?;
        let ids = keys.prompts()?;
        let arch: Arch = keys.json("arch", "needs n_layer … rms_eps, all numbers")?;
        let top_k = keys.top_k(&runs, arch.n_vocab)?;
        let versions: BTreeMap<String, String> = keys.json("versions", "a JSON object of strings")?;
        if !["python", "torch", "transformers"].iter().all(|k| versions.contains_key(*k)) {
            return Err(keys.refuse("versions", "needs python, torch and transformers"));
        }
        let files: BTreeMap<String, String> = keys.json("model_files_sha256", "a JSON object of hashes")?;
        if files.is_empty() || !files.values().all(|hash| is_hash(hash)) {
            return Err(keys.refuse("model_files_sha256", "needs a SHA-256 in hex for each file of the checkpoint"));
        }
        if keys.text("threads").parse::<u32>().is_err() {
            return Err(keys.refuse("threads", "needs a decimal number"));
        }
        keys.hash("tokenizer_sha256")?;
        let gguf_sha256 = if metadata.contains_key("gguf_sha256") { Some(keys.hash("gguf_sha256")?) } else { None };

        let mut tensors = Tensors { file: SafeTensors::deserialize(bytes)?, taken: BTreeSet::new() };
        let n_vocab = arch.n_vocab as usize;
        let linears = (arch.n_layer as usize).saturating_mul(LINEARS.len());
        let scales = tensors.f32("scales", &[linears])?;
        let mut prompts = Vec::new();
        for id in ids {
            let n = tensors.length(&format!("{id}.tokens"))?;
            let tokens = tensors.i32(&format!("{id}.tokens"), &[n])?;
            check(
                &format!("{id}.tokens"),
                &tokens,
                |&t| is_id(t, n_vocab),
                &format!("ids go from 0 to {}", n_vocab - 1),
            )?;
            let text = tensors.text(&format!("{id}.text"))?;
            let mut stored = Vec::new();
            for (run, &k) in runs.iter().zip(&top_k) {
                stored.push(tensors.run(&format!("{id}.{run}"), n, k, n_vocab)?);
            }
            prompts.push(StoredPrompt { id, text, tokens, runs: stored });
        }
        if let Some(name) = tensors.file.names().into_iter().find(|name| !tensors.taken.contains(*name)) {
            return Err(ReferenceFileError::UnexpectedTensor { name: shortened(name) });
        }
        Ok(Self {
            model_name: keys.text("model_name").to_owned(),
            gguf_sha256,
            ternary_sha256: keys.hash("ternary_sha256")?,
            prompts_sha256: keys.hash("prompts_sha256")?,
            command: keys.text("command").to_owned(),
            runs,
            arch,
            versions,
            scales,
            prompts,
        })
    }
}

/// The metadata, all required keys present.
struct Keys<'a>(&'a std::collections::HashMap<String, String>);

impl Keys<'_> {
    fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn refuse(&self, key: &'static str, need: impl Into<String>) -> ReferenceFileError {
        ReferenceFileError::Value { key, value: shortened(self.text(key)), need: need.into() }
    }

    fn is(&self, key: &'static str, value: &str) -> Result<(), ReferenceFileError> {
        if self.text(key) == value { Ok(()) } else { Err(self.refuse(key, format!("'{value}' is needed"))) }
    }

    fn json<T: DeserializeOwned>(&self, key: &'static str, need: &str) -> Result<T, ReferenceFileError> {
        serde_json::from_str(self.text(key)).map_err(|e| self.refuse(key, format!("{need} ({e})")))
    }

    fn hash(&self, key: &'static str) -> Result<String, ReferenceFileError> {
        let text = self.text(key);
        if is_hash(text) {
            Ok(text.to_owned())
        } else {
            Err(self.refuse(key, "needs a SHA-256, 64 digits of lower-case hex"))
        }
    }

    fn runs(&self) -> Result<Vec<String>, ReferenceFileError> {
        let runs: Vec<String> = self.text("runs").split(',').map(str::to_owned).collect();
        let known = runs.iter().all(|run| run == "fp32" || run == "bf16");
        if !known || repeats(&runs) {
            return Err(self.refuse("runs", "needs fp32, bf16 or both, comma separated, each once"));
        }
        Ok(runs)
    }

    fn prompts(&self) -> Result<Vec<String>, ReferenceFileError> {
        let ids: Vec<String> = self.json("prompts", "needs a JSON array of prompt ids")?;
        let is_id = |id: &String| {
            (1..=48).contains(&id.len()) && id.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        };
        if ids.is_empty() || !ids.iter().all(is_id) || repeats(&ids) {
            return Err(self.refuse("prompts", "needs ids that match [a-z0-9-]{1,48}, at least one, none twice"));
        }
        Ok(ids)
    }

    /// k per run, in the order of `runs`.
    fn top_k(&self, runs: &[String], n_vocab: u32) -> Result<Vec<usize>, ReferenceFileError> {
        let top_k: BTreeMap<String, u32> = self.json("top_k", "needs a JSON object: run name to k")?;
        let of = |run: &String| top_k.get(run).copied().filter(|k| (1..=n_vocab).contains(k)).map(|k| k as usize);
        let all: Option<Vec<usize>> = runs.iter().map(of).collect();
        match all {
            Some(all) if top_k.len() == runs.len() => Ok(all),
            _ => {
                Err(self
                    .refuse("top_k", format!("needs for each run of '{}' a k from 1 to {n_vocab}", self.text("runs"))))
            }
        }
    }
}

/// The tensors, and which the format asked for.
struct Tensors<'a> {
    file: SafeTensors<'a>,
    taken: BTreeSet<String>,
}

impl Tensors<'_> {
    /// Length of a vector that decides other shapes; at least 1.
    fn length(&self, name: &str) -> Result<usize, ReferenceFileError> {
        let view = self.file.tensor(name).map_err(|_| ReferenceFileError::MissingTensor { name: name.to_owned() })?;
        match view.shape() {
            [n] if *n > 0 => Ok(*n),
            shape => Err(ReferenceFileError::Layout {
                name: name.to_owned(),
                found: format!("{:?} {shape:?}", view.dtype()),
                expected: "a vector of at least one element".into(),
            }),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_ok()
    }

    fn take(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Vec<u8>, ReferenceFileError> {
        let view = self.file.tensor(name).map_err(|_| ReferenceFileError::MissingTensor { name: name.to_owned() })?;
        if view.dtype() != dtype || view.shape() != shape {
            return Err(ReferenceFileError::Layout {
                name: name.to_owned(),
                found: format!("{:?} {:?}", view.dtype(), view.shape()),
                expected: format!("{dtype:?} {shape:?}"),
            });
        }
        self.taken.insert(name.to_owned());
        Ok(view.data().to_vec())
    }

    fn f32(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ReferenceFileError> {
        let bytes = self.take(name, Dtype::F32, shape)?;
        let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        check(name, &values, |v| v.is_finite(), "needs finite numbers")?;
        Ok(values)
    }

    fn i32(&mut self, name: &str, shape: &[usize]) -> Result<Vec<i32>, ReferenceFileError> {
        let bytes = self.take(name, Dtype::I32, shape)?;
        Ok(bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn text(&mut self, name: &str) -> Result<String, ReferenceFileError> {
        let n = self.length(name)?;
        let bytes = self.take(name, Dtype::U8, &[n])?;
        String::from_utf8(bytes).map_err(|e| ReferenceFileError::Content {
            name: name.to_owned(),
            index: e.utf8_error().valid_up_to(),
            value: "bytes".into(),
            need: "needs UTF-8".into(),
        })
    }

    fn run(&mut self, name: &str, n: usize, k: usize, n_vocab: usize) -> Result<StoredRun, ReferenceFileError> {
        let of = |part: &str| format!("{name}.{part}");
        let logsumexp = self.f32(&of("logsumexp"), &[n])?;
        let top_ids = self.i32(&of("top.ids"), &[n, k])?;
        let top_logits = self.f32(&of("top.logits"), &[n, k])?;
        let next = self.f32(&of("next"), &[n - 1])?;
        check(&of("top.ids"), &top_ids, |&t| is_id(t, n_vocab), &format!("ids go from 0 to {}", n_vocab - 1))?;
        let content = |part: &str, index: usize, value: String, need: &str| ReferenceFileError::Content {
            name: of(part),
            index,
            value,
            need: need.to_owned(),
        };
        for (row, (ids, logits)) in top_ids.chunks_exact(k).zip(top_logits.chunks_exact(k)).enumerate() {
            let disorder =
                (1..k).find(|&j| logits[j] > logits[j - 1] || (logits[j] == logits[j - 1] && ids[j] <= ids[j - 1]));
            if let Some(j) = disorder {
                let value = format!("{} of id {} after {} of id {}", logits[j], ids[j], logits[j - 1], ids[j - 1]);
                return Err(content("top.logits", row * k + j, value, "needs falling logits, equal ones by rising id"));
            }
            let mut sorted = ids.to_vec();
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(content(
                    "top.ids",
                    row * k,
                    format!("id {} twice in a row", pair[0]),
                    "needs different ids",
                ));
            }
            if logsumexp[row] < logits[0] {
                let value = format!("{} below the largest logit {}", logsumexp[row], logits[0]);
                return Err(content("logsumexp", row, value, "a log-sum-exp is no smaller than any logit"));
            }
        }

        let (positions_name, logits_name) = (of("full.positions"), of("full.logits"));
        let (mut full_positions, mut full_logits) = (Vec::new(), Vec::new());
        if self.has(&positions_name) || self.has(&logits_name) {
            let m = self.length(&positions_name)?;
            let positions = self.i32(&positions_name, &[m])?;
            full_logits = self.f32(&logits_name, &[m, n_vocab])?;
            for (index, &position) in positions.iter().enumerate() {
                match usize::try_from(position) {
                    Ok(p) if p < n && full_positions.last().is_none_or(|&last| last < p) => full_positions.push(p),
                    _ => {
                        let need = format!("positions rise and go from 0 to {}", n - 1);
                        return Err(content("full.positions", index, position.to_string(), &need));
                    }
                }
            }
            for (row, (&position, logits)) in full_positions.iter().zip(full_logits.chunks_exact(n_vocab)).enumerate() {
                let top = position * k..(position + 1) * k;
                for (j, (&id, &logit)) in top_ids[top.clone()].iter().zip(&top_logits[top.clone()]).enumerate() {
                    // Ids were checked above.
                    let whole = logits[id.unsigned_abs() as usize];
                    if whole != logit {
                        let value = format!("{whole} for id {id}, and {logit} in top.logits [{position}, {j}]");
                        let index = row * n_vocab + id.unsigned_abs() as usize;
                        return Err(content("full.logits", index, value, "both must be equal"));
                    }
                }
                let least = top_logits[top.end - 1];
                let above = logits.iter().filter(|&&l| l > least).count();
                if above >= k {
                    let value = format!("{above} logits above {least}, the last of {k} in top.logits [{position}]");
                    return Err(content("full.logits", row * n_vocab, value, "top.logits holds the largest"));
                }
            }
        }
        Ok(StoredRun { k, logsumexp, top_ids, top_logits, next, full_positions, full_logits })
    }
}

fn check<T: std::fmt::Display>(
    name: &str,
    values: &[T],
    is_right: impl Fn(&T) -> bool,
    need: &str,
) -> Result<(), ReferenceFileError> {
    match values.iter().position(|v| !is_right(v)) {
        None => Ok(()),
        Some(index) => Err(ReferenceFileError::Content {
            name: name.to_owned(),
            index,
            value: values[index].to_string(),
            need: need.to_owned(),
        }),
    }
}

fn is_id(id: i32, n_vocab: usize) -> bool {
    usize::try_from(id).is_ok_and(|id| id < n_vocab)
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn repeats(names: &[String]) -> bool {
    names.iter().collect::<BTreeSet<_>>().len() < names.len()
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;
    use std::collections::HashMap;

    type Tensor = (Dtype, Vec<usize>, Vec<u8>);

    /// A right file with one layer, a vocabulary of 4, one run with k = 2, one prompt of 2 tokens.
    struct Draft {
        metadata: HashMap<String, String>,
        tensors: BTreeMap<String, Tensor>,
    }

    fn floats(v: &[f32]) -> Vec<u8> {
        v.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn ints(v: &[i32]) -> Vec<u8> {
        v.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn draft() -> Draft {
        let hash = "ab".repeat(32);
        let metadata = [
            ("format", FORMAT),
            ("engine", "hf"),
            ("runs", "fp32"),
            ("prompts", r#"["en-a"]"#),
            ("prompts_sha256", &hash),
            ("top_k", r#"{"fp32": 2}"#),
            ("model_name", "m"),
            ("model_files_sha256", &format!(r#"{{"config.json": "{hash}"}}"#)),
            ("tokenizer_sha256", &hash),
            ("ternary_sha256", &hash),
            (
                "arch",
                r#"{"n_layer": 1, "n_embd": 128, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "n_ff": 128, "n_vocab": 4,
                    "n_ctx_train": 64, "rope_theta": 500000.0, "rms_eps": 1e-05}"#,
            ),
            ("versions", r#"{"python": "3", "torch": "2", "transformers": "4"}"#),
            ("threads", "1"),
            ("command", "c"),
        ];
        let tensors: [(&str, Dtype, Vec<usize>, Vec<u8>); 9] = [
            ("scales", Dtype::F32, vec![7], floats(&[0.5; 7])),
            ("en-a.text", Dtype::U8, vec![2], b"hi".to_vec()),
            ("en-a.tokens", Dtype::I32, vec![2], ints(&[0, 3])),
            ("en-a.fp32.logsumexp", Dtype::F32, vec![2], floats(&[2.5, 2.5])),
            ("en-a.fp32.top.ids", Dtype::I32, vec![2, 2], ints(&[3, 1, 0, 1])),
            ("en-a.fp32.top.logits", Dtype::F32, vec![2, 2], floats(&[2.0, 1.0, 1.5, 1.5])),
            ("en-a.fp32.next", Dtype::F32, vec![1], floats(&[-0.5])),
            ("en-a.fp32.full.positions", Dtype::I32, vec![1], ints(&[1])),
            ("en-a.fp32.full.logits", Dtype::F32, vec![1, 4], floats(&[1.5, 1.5, 0.25, -3.0])),
        ];
        Draft {
            metadata: metadata.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            tensors: tensors.into_iter().map(|(name, d, s, b)| (name.to_owned(), (d, s, b))).collect(),
        }
    }

    impl Draft {
        fn bytes(&self) -> Vec<u8> {
            let views: Vec<(&String, TensorView<'_>)> = self
                .tensors
                .iter()
                .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
                .collect();
            safetensors::serialize(views, Some(self.metadata.clone())).unwrap()
        }

        fn refusal(&self) -> String {
            ReferenceFile::parse(&self.bytes()).unwrap_err().to_string()
        }
    }

    fn with_key(key: &str, value: &str) -> String {
        let mut draft = draft();
        draft.metadata.insert(key.into(), value.into());
        draft.refusal()
    }

    fn with_tensor(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> String {
        let mut draft = draft();
        draft.tensors.insert(name.into(), (dtype, shape.to_vec(), bytes));
        draft.refusal()
    }

    fn names(message: &str, parts: &[&str]) {
        for part in parts {
            assert!(message.contains(part), "'{part}' is not in: {message}");
        }
    }

    #[test]
    fn a_right_file_is_read() {
        let file = ReferenceFile::parse(&draft().bytes()).unwrap();
        assert_eq!(file.runs, ["fp32"]);
        assert_eq!((file.arch.n_vocab, file.arch.rope_theta), (4, 500_000.0));
        assert_eq!(file.gguf_sha256, None);
        assert_eq!(file.scales, [0.5; 7]);
        let prompt = &file.prompts[0];
        assert_eq!((prompt.id.as_str(), prompt.text.as_str(), prompt.tokens.as_slice()), ("en-a", "hi", &[0, 3][..]));
        let run = &prompt.runs[0];
        assert_eq!(run.top(1), Some((&[0, 1][..], &[1.5, 1.5][..])));
        assert_eq!(run.top(2), None);
        assert_eq!(run.full(1, 4), Some(&[1.5, 1.5, 0.25, -3.0][..]));
        assert_eq!(run.full(0, 4), None);
    }

    #[test]
    fn whole_rows_are_optional_but_not_by_halves() {
        let mut draft = draft();
        draft.tensors.remove("en-a.fp32.full.logits");
        names(&draft.refusal(), &["en-a.fp32.full.logits", "missing"]);
        draft.tensors.remove("en-a.fp32.full.positions");
        assert!(ReferenceFile::parse(&draft.bytes()).is_ok());
    }

    #[test]
    fn every_key_is_needed() {
        for key in KEYS {
            let mut draft = draft();
            draft.metadata.remove(key);
            names(&draft.refusal(), &[key, "missing"]);
        }
        names(&with_key("format", "bitnet-reference/2"), &["bitnet-reference/2", FORMAT]);
        let mut draft = draft();
        draft.metadata.clear();
        names(&draft.refusal(), &["format is ''"]);
    }

    #[test]
    fn keys_that_cannot_be_are_named() {
        for (key, value) in [
            ("engine", "vllm"),
            ("runs", "fp32,fp32"),
            ("runs", "fp16"),
            ("runs", ""),
            ("prompts", "[]"),
            ("prompts", r#"["en-a","en-a"]"#),
            ("prompts", r#"["En"]"#),
            ("prompts", "7"),
            ("top_k", r#"{"fp32": 5}"#),
            ("top_k", r#"{"fp32": 0}"#),
            ("top_k", r#"{"fp32": 2, "bf16": 2}"#),
            ("top_k", "{}"),
            ("prompts_sha256", "ab"),
            ("ternary_sha256", "AB"),
            ("tokenizer_sha256", ""),
            ("gguf_sha256", "x"),
            ("model_files_sha256", "{}"),
            ("versions", "{}"),
            ("threads", "many"),
            ("arch", r#"{"n_layer": 1}"#),
            ("arch", "[[[["),
        ] {
            names(&with_key(key, value), &[key]);
        }
        // A vocabulary of nothing has no k.
        let none = draft().metadata["arch"].replace("\"n_vocab\": 4", "\"n_vocab\": 0");
        names(&with_key("arch", &none), &["top_k"]);
        let long = with_key("engine", &"x".repeat(1 << 20));
        assert!(long.len() < 500, "{} bytes", long.len());
    }

    #[test]
    fn tensors_are_the_ones_asked_for() {
        for name in draft().tensors.keys() {
            let mut draft = draft();
            draft.tensors.remove(name);
            names(&draft.refusal(), &[name, "missing"]);
        }
        names(&with_tensor("en-a.more", Dtype::U8, &[1], vec![0]), &["en-a.more"]);
        names(&with_tensor("scales", Dtype::F32, &[14], floats(&[0.5; 14])), &["scales", "[14]", "[7]"]);
        names(&with_tensor("scales", Dtype::I32, &[7], ints(&[1; 7])), &["scales", "I32", "F32"]);
        names(&with_tensor("en-a.tokens", Dtype::I32, &[0], vec![]), &["en-a.tokens", "at least one"]);
        names(&with_tensor("en-a.tokens", Dtype::I32, &[1, 2], ints(&[0, 3])), &["en-a.tokens", "[1, 2]"]);
        names(&with_tensor("en-a.fp32.next", Dtype::F32, &[2], floats(&[0.0; 2])), &["en-a.fp32.next", "[1]"]);
    }

    #[test]
    fn values_that_cannot_be_are_named_with_their_place() {
        names(&with_tensor("en-a.text", Dtype::U8, &[2], vec![b'a', 0xFF]), &["en-a.text", "element 1", "UTF-8"]);
        for id in [4, -1, i32::MIN] {
            names(
                &with_tensor("en-a.tokens", Dtype::I32, &[2], ints(&[0, id])),
                &["en-a.tokens", "element 1", "0 to 3"],
            );
        }
        let ids = "en-a.fp32.top.ids";
        names(&with_tensor(ids, Dtype::I32, &[2, 2], ints(&[3, 4, 0, 1])), &[ids, "element 1", "0 to 3"]);
        names(&with_tensor(ids, Dtype::I32, &[2, 2], ints(&[3, 3, 0, 1])), &[ids, "id 3 twice"]);
        // Equal logits by rising id.
        let logits = "en-a.fp32.top.logits";
        names(&with_tensor(ids, Dtype::I32, &[2, 2], ints(&[3, 1, 1, 0])), &[logits, "element 3", "rising id"]);
        let rising = with_tensor(logits, Dtype::F32, &[2, 2], floats(&[1.0, 2.0, 1.5, 1.5]));
        names(&rising, &[logits, "element 1", "falling"]);
        let nan = with_tensor(logits, Dtype::F32, &[2, 2], floats(&[2.0, f32::NAN, 1.5, 1.5]));
        names(&nan, &[logits, "element 1", "finite"]);
        let sum = "en-a.fp32.logsumexp";
        names(&with_tensor(sum, Dtype::F32, &[2], floats(&[1.9, 2.5])), &[sum, "element 0", "2"]);
        let positions = "en-a.fp32.full.positions";
        for position in [2, -1] {
            names(&with_tensor(positions, Dtype::I32, &[1], ints(&[position])), &[positions, "0 to 1"]);
        }
        let full = "en-a.fp32.full.logits";
        let other = with_tensor(full, Dtype::F32, &[1, 4], floats(&[1.5, 1.25, 0.25, -3.0]));
        names(&other, &[full, "1.25", "1.5"]);
        let larger = with_tensor(full, Dtype::F32, &[1, 4], floats(&[1.5, 1.5, 9.0, 9.0]));
        names(&larger, &[full, "holds the largest"]);
    }

    #[test]
    fn positions_rise() {
        let mut draft = draft();
        draft.tensors.insert("en-a.fp32.full.positions".into(), (Dtype::I32, vec![2], ints(&[1, 1])));
        let rows = floats(&[1.5, 1.5, 0.25, -3.0, 1.5, 1.5, 0.25, -3.0]);
        draft.tensors.insert("en-a.fp32.full.logits".into(), (Dtype::F32, vec![2, 4], rows));
        names(&draft.refusal(), &["full.positions", "element 1"]);
    }

    #[test]
    fn damaged_containers_are_refused() {
        let bytes = draft().bytes();
        for len in [0, 7, 8, 100, bytes.len() - 1] {
            assert!(ReferenceFile::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut huge = bytes.clone();
        huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(ReferenceFile::parse(&huge), Err(ReferenceFileError::Container(_))));
    }
}
