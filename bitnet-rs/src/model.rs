//! Models: validated, loaded, shared.

use std::ffi::{CString, c_void};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use bitnet_sys as sys;

use crate::ids::TokenId;
use crate::{Error, backend, engine_log, status};
use gguf::{GgmlType, GgufWarning, Limits, ModelFile, ModelInfo, TokenizerModel};
use kv::LayerGeometry;

/// How to load a model.
#[derive(Default)]
pub struct ModelParams {
    /// Called with the loaded fraction in `0.0..=1.0`; answer `false` to stop loading.
    pub progress: Option<Box<dyn FnMut(f32) -> bool + Send>>,
    /// Refuse what is only warned of otherwise, e.g. a missing `tokenizer.ggml.pre`.
    pub strict: bool,
}

/// A loaded model (`llama_model`). Clones are cheap and share the weights, which are freed with the last
/// clone; contexts and samplers hold one, so freeing under them is impossible.
///
/// `Send + Sync`: the engine only reads a loaded model.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    ptr: NonNull<sys::llama_model>,
    file: ModelFile,
    widest_rows: usize,
    path: PathBuf,
    n_vocab: u32,
    /// Where the file names no end of a text, the control tokens that are one by their text. The engine takes its
    /// default for it, token 11, whatever that is.
    ends: Option<Vec<TokenId>>,
}

/// Texts of control tokens that end a text or a turn in published vocabularies.
const ENDS: [&str; 9] = [
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|eom_id|>",
    "<eos>",
];

// SAFETY: after llama_load_model_from_file returned, the engine reads the model through const pointers only
// (weights, vocabulary tables, hyperparameters); its own tools share one model between contexts on several
// threads. The LoRA functions, which do write, are not bound.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made by bn_model_load, freed once, and nothing refers to it any more: contexts and samplers
        // hold an Arc of this value.
        unsafe { sys::llama_free_model(self.ptr.as_ptr()) };
    }
}

impl Model {
    /// Validates the file with [`ModelFile`] and loads it (`llama_load_model_from_file`, mapped).
    ///
    /// The engine opens the very file that was validated, not whatever the path names by then.
    ///
    /// # Errors
    /// [`Error::Gguf`] when the file is refused, [`Error::ModelLoad`] when the engine refuses it,
    /// [`Error::LoadCancelled`], and the start-up errors of [`backend::start`].
    pub fn load(path: impl AsRef<Path>, params: ModelParams) -> Result<Self, Error> {
        backend::start()?;
        let path = path.as_ref();
        let limits = if params.strict { Limits::strict() } else { Limits::default() };
        let file = ModelFile::open(path, &limits)?;
        let tokenizer = file.info().tokenizer();
        // The engine looks such a byte up and throws; most often the vocabulary is of another kind than the file says.
        if let Some(missing) = file.info().warnings().iter().find(|w| matches!(w, GgufWarning::BytesNotCovered { .. }))
            && tokenizer.model == TokenizerModel::Spm
        {
            let reason =
                format!("tokenizer.ggml.model is 'llama' (SentencePiece), and {missing}: text cannot be tokenized");
            return Err(Error::ModelLoad { path: path.into(), reason });
        }
        let widest_rows = widest_i2s_rows(&file);
        let through_fd = CString::new(format!("/proc/self/fd/{}", file.file().file().as_raw_fd()))
            .map_err(|e| Error::Path { path: path.into(), reason: e.to_string() })?;
        let mut progress = Progress { callback: params.progress, panic: None, cancelled: false };
        // SAFETY: returns a plain struct.
        let mut native = unsafe { sys::llama_model_default_params() };
        native.n_gpu_layers = 0;
        native.use_mmap = true;
        native.progress_callback = Some(on_progress);
        native.progress_callback_user_data = (&raw mut progress).cast();
        let (loaded, log) = engine_log::capture(|| {
            status::checked("llama_load_model_from_file", |st| {
                // SAFETY: the path is NUL-terminated, and the callback's data outlives the call, which is the only
                // time the engine uses it.
                unsafe { sys::bn_model_load(through_fd.as_ptr(), native, st) }
            })
        });
        if let Some(panic) = progress.panic {
            if let Ok(ptr) = loaded {
                // SAFETY: just made, used by nobody.
                unsafe { sys::llama_free_model(ptr) };
            }
            resume_unwind(panic);
        }
        let ptr = match loaded {
            Ok(ptr) => NonNull::new(ptr).ok_or_else(|| load_error(path, &log, "null"))?,
            Err(_) if progress.cancelled => return Err(Error::LoadCancelled { path: path.into() }),
            Err(e) => return Err(load_error(path, &log, &e.to_string())),
        };
        // SAFETY: a valid model.
        let n_vocab = unsafe { sys::llama_n_vocab(ptr.as_ptr()) };
        let n_vocab = u32::try_from(n_vocab).unwrap_or(0);
        let model = Self(Arc::new(Inner { ptr, file, widest_rows, path: path.into(), n_vocab, ends: None }));
        model.with_ends()
    }

    fn with_ends(mut self) -> Result<Self, Error> {
        let bpe = self.info().tokenizer().model == TokenizerModel::Bpe;
        if !bpe || self.file().gguf().u32("tokenizer.ggml.eos_token_id")?.is_some() {
            return Ok(self);
        }
        let mut ends = Vec::new();
        for text in ENDS {
            for id in 0..self.n_vocab() {
                let id = self.token(id as i32)?;
                if self.is_control(id) && self.token_bytes(id, true)? == text.as_bytes() {
                    ends.push(id);
                }
            }
        }
        // Nobody else holds it yet.
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.ends = Some(ends);
        }
        Ok(self)
    }

    /// What the file's header says: architecture, shapes, RoPE, tokenizer.
    pub fn info(&self) -> &ModelInfo {
        self.0.file.info()
    }

    /// The validated file, for hashes and tensor data.
    pub fn file(&self) -> &ModelFile {
        &self.0.file
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Number of tokens in the vocabulary.
    pub fn n_vocab(&self) -> u32 {
        self.0.n_vocab
    }

    /// Checks a token id against the vocabulary.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`].
    pub fn token(&self, id: i32) -> Result<TokenId, Error> {
        TokenId::new(id, self.n_vocab())
    }

    /// The beginning-of-sequence token, if the vocabulary has one (`llama_token_bos`).
    pub fn bos(&self) -> Option<TokenId> {
        // SAFETY: a valid model.
        self.token(unsafe { sys::llama_token_bos(self.as_ptr()) }).ok()
    }

    /// The end-of-sequence token (`llama_token_eos`). Where the file names none, the control token that is one by its
    /// text, if there is such a token.
    pub fn eos(&self) -> Option<TokenId> {
        if let Some(ends) = &self.0.ends {
            return ends.first().copied();
        }
        // SAFETY: a valid model.
        self.token(unsafe { sys::llama_token_eos(self.as_ptr()) }).ok()
    }

    /// The end-of-turn token (`llama_token_eot`).
    pub fn eot(&self) -> Option<TokenId> {
        // SAFETY: a valid model.
        self.token(unsafe { sys::llama_token_eot(self.as_ptr()) }).ok()
    }

    /// Does generation end with this token (`llama_token_is_eog`)? True for every end marker the
    /// vocabulary has, not only for `eos`.
    pub fn is_end_of_generation(&self, token: TokenId) -> bool {
        if let Some(ends) = &self.0.ends {
            return ends.contains(&token);
        }
        // SAFETY: a valid model; the id is range-checked by the type and again here for other models' tokens.
        token.index() < self.n_vocab() as usize && unsafe { sys::llama_token_is_eog(self.as_ptr(), token.get()) }
    }

    /// Is this a control token (`llama_token_is_control`)?
    pub fn is_control(&self, token: TokenId) -> bool {
        // SAFETY: as above.
        token.index() < self.n_vocab() as usize && unsafe { sys::llama_token_is_control(self.as_ptr(), token.get()) }
    }

    /// Does tokenizing a text put `bos` first unless told otherwise?
    pub fn adds_bos(&self) -> bool {
        // SAFETY: a valid model.
        unsafe { sys::llama_add_bos_token(self.as_ptr()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::llama_model {
        self.0.ptr.as_ptr()
    }

    /// Shapes of the KV cache, layer by layer.
    pub fn layer_geometry(&self) -> Vec<LayerGeometry> {
        let h = self.info().hyperparameters();
        let layer = LayerGeometry { n_head_kv: h.n_head_kv, head_dim_k: h.head_dim, head_dim_v: h.head_dim };
        vec![layer; h.n_layer as usize]
    }

    /// Rows of the widest I2_S matrix: what decides the stack of a compute thread.
    pub(crate) fn widest_rows(&self) -> usize {
        self.0.widest_rows
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("path", &self.0.path).field("n_vocab", &self.0.n_vocab).finish_non_exhaustive()
    }
}

fn widest_i2s_rows(file: &ModelFile) -> usize {
    let ternary = file.gguf().tensors().iter().filter(|t| t.ggml_type() == GgmlType::I2_S);
    ternary.map(|t| usize::try_from(t.rows()).unwrap_or(usize::MAX)).max().unwrap_or(0)
}

fn load_error(path: &Path, log: &[String], fallback: &str) -> Error {
    // The engine opens the file once more, and says nothing of why it could not.
    if let Err(source) = std::fs::File::open(path)
        && files::shortage::is_shortage(&source)
    {
        return Error::HostShortage { what: "a descriptor for the model".into(), source };
    }
    let reason = if log.is_empty() { fallback.to_owned() } else { engine_log::reason(log) };
    Error::ModelLoad { path: path.into(), reason }
}

struct Progress {
    callback: Option<Box<dyn FnMut(f32) -> bool + Send>>,
    panic: Option<Box<dyn std::any::Any + Send>>,
    cancelled: bool,
}

unsafe extern "C" fn on_progress(fraction: f32, user: *mut c_void) -> bool {
    // SAFETY: Model::load passes a Progress that lives through the native call, and the engine calls back
    // from the loading thread only.
    let progress = unsafe { &mut *user.cast::<Progress>() };
    let Some(callback) = progress.callback.as_mut() else { return true };
    match catch_unwind(AssertUnwindSafe(|| callback(fraction))) {
        Ok(go_on) => {
            progress.cancelled |= !go_on;
            go_on
        }
        Err(panic) => {
            progress.panic = Some(panic);
            false
        }
    }
}
