//! The engine's own grammar (`bitnet-sys/tests/grammar_oracle/oracle.cpp`).

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bitnet_rs::TokenId;
use bitnet_rs::grammar::Grammar;
use bitnet_sys as sys;

/// Name that the engine insists on, whatever root is asked for.
const ENGINE_ROOT: &str = "root";

#[repr(C)]
struct Native {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn oracle_grammar_new(
        model: *const sys::llama_model,
        text: *const c_char,
        root: *const c_char,
        status: *mut sys::bn_status,
    ) -> *mut Native;
    fn oracle_grammar_free(grammar: *mut Native);
    fn oracle_grammar_apply(
        grammar: *mut Native,
        candidates: *mut sys::llama_token_data_array,
        status: *mut sys::bn_status,
    );
    fn oracle_grammar_accept(grammar: *mut Native, token: i32, status: *mut sys::bn_status);
}

fn status() -> sys::bn_status {
    sys::bn_status { code: 0, message: [0; 1020] }
}

/// A model that the engine's grammars read tokens of.
pub(crate) struct Vocabulary {
    model: *mut sys::llama_model,
    n: i32,
}

impl Vocabulary {
    pub(crate) fn load(path: &Path) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut st = status();
        // SAFETY: a NUL-terminated path, default parameters and a status that outlive the call.
        let model = unsafe {
            let mut params = sys::llama_model_default_params();
            params.vocab_only = true;
            sys::bn_model_load(path.as_ptr(), params, &raw mut st)
        };
        assert!(!model.is_null(), "the engine does not load the vocabulary");
        // SAFETY: a valid model.
        let n = unsafe { sys::llama_n_vocab(model) };
        Self { model, n }
    }
}

impl Drop for Vocabulary {
    fn drop(&mut self) {
        // SAFETY: made by bn_model_load, freed once; grammars borrow this value.
        unsafe { sys::llama_free_model(self.model) };
    }
}

/// One text on its way through the engine's grammar.
pub(crate) struct EngineGrammar<'v> {
    ptr: *mut Native,
    vocabulary: &'v Vocabulary,
}

impl Drop for EngineGrammar<'_> {
    fn drop(&mut self) {
        // SAFETY: made by oracle_grammar_new, freed once.
        unsafe { oracle_grammar_free(self.ptr) };
    }
}

impl<'v> EngineGrammar<'v> {
    pub(crate) fn new(vocabulary: &'v Vocabulary, grammar: &Grammar) -> Self {
        // The engine looks for a symbol called "root" even when another one is asked for, and drops the grammar without
        // a word when there is none.
        let text = match grammar.rule_names().iter().any(|name| name == ENGINE_ROOT) {
            true => grammar.text().to_owned(),
            false => format!("{}\n{ENGINE_ROOT} ::= {}\n", grammar.text(), grammar.root()),
        };
        let (text, root) = (CString::new(text).unwrap(), CString::new(grammar.root()).unwrap());
        let mut st = status();
        // SAFETY: NUL-terminated texts; the front has refused what the parser aborts on, a missing root included.
        let ptr = unsafe { oracle_grammar_new(vocabulary.model, text.as_ptr(), root.as_ptr(), &raw mut st) };
        assert!(!ptr.is_null(), "the engine does not read the grammar");
        Self { ptr, vocabulary }
    }

    /// The ids of the tokens that are allowed here (`llama_sampler_apply` over the whole vocabulary).
    pub(crate) fn allowed(&self) -> Vec<u32> {
        let mut candidates: Vec<_> =
            (0..self.vocabulary.n).map(|id| sys::llama_token_data { id, logit: 0.0, p: 0.0 }).collect();
        let mut array = sys::llama_token_data_array {
            data: candidates.as_mut_ptr(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        let mut st = status();
        // SAFETY: a valid grammar, only read; the array points at `size` initialised candidates that outlive the call.
        unsafe { oracle_grammar_apply(self.ptr, &raw mut array, &raw mut st) };
        assert_eq!(st.code, 0);
        candidates.iter().filter(|c| c.logit > f32::NEG_INFINITY).map(|c| c.id.unsigned_abs()).collect()
    }

    /// Takes one token, or says that the grammar forbids it; an end-of-generation token asks whether the text is a
    /// sentence.
    pub(crate) fn accept(&mut self, token: TokenId) -> bool {
        let mut st = status();
        // SAFETY: a valid grammar; the oracle asks first whether the token is allowed, which the engine asserts.
        unsafe { oracle_grammar_accept(self.ptr, token.get(), &raw mut st) };
        st.code == 0
    }
}
