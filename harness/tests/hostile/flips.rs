//! Byte flips and truncations by the thousand. The readers are Rust and run in this process; what they accept goes on
//! into the engine in a child process. Everything is an error or a valid result, and the context is usable afterwards.

use std::collections::BTreeMap;

use ::cartridge::{Cartridge, Level};
use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId};
use gguf::fixture::tiny_model;
use gguf::{Architecture, Gguf, Limits, ModelFile, ModelInfo};
use kv::StateBlob;

use crate::attempt::{Attempt, Tally, call};
use crate::calls;
use crate::cartridge;

/// Flips of each kind.
const FLIPS: usize = 10_000;
/// Accepted GGUF files that go on into the engine.
const MODELS: usize = 150;

/// Starts the child's line with how many were refused and how many ran.
const COUNTS: &str = "counts ";

/// SplitMix64 (Steele, Lea, Flood 2014): the same flips on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// One to three bytes of the first `within` changed, never to what they were.
    fn damage(&mut self, bytes: &[u8], within: usize) -> Vec<u8> {
        let mut damaged = bytes.to_vec();
        for _ in 0..1 + self.next() % 3 {
            let at = self.next() as usize % within;
            let flip = match self.next() % 3 {
                0 => 1 << (self.next() % 8),
                1 => 0xff,
                _ => 1 + (self.next() % 255) as u8,
            };
            damaged[at] ^= flip;
        }
        damaged
    }
}

/// Tries every truncation and the flips; what `accepts` takes is valid by its own account.
fn try_all(bytes: &[u8], within: usize, seed: u64, mut accepts: impl FnMut(&[u8]) -> bool) -> Tally {
    let mut tally = Tally::default();
    let mut count = |accepted: bool| {
        tally.tried += 1;
        *(if accepted { &mut tally.accepted } else { &mut tally.refused }) += 1;
    };
    for len in 0..within {
        count(accepts(&bytes[..len]));
    }
    let mut random = Random(seed);
    for _ in 0..FLIPS {
        count(accepts(&random.damage(bytes, within)));
    }
    tally
}

fn model_bytes() -> (Vec<u8>, usize) {
    let file = tiny_model(Architecture::BitNetB158);
    (file.encode(), file.encode_header().len())
}

fn gguf_is_sound(bytes: &[u8]) -> bool {
    let limits = Limits::default();
    Gguf::parse(bytes, &limits).is_ok_and(|gguf| ModelInfo::check(&gguf, &bytes, &limits).is_ok())
}

/// All of them, with the children's answers.
pub(crate) fn all() -> BTreeMap<&'static str, Tally> {
    let mut tallies = BTreeMap::new();
    let (bytes, header) = model_bytes();
    assert!(gguf_is_sound(&bytes));
    tallies.insert("flips: gguf", try_all(&bytes, header, 1, gguf_is_sound));

    let file = cartridge::sound();
    tallies.insert(
        "flips: cartridge",
        try_all(&file, file.len(), 2, |bytes| {
            Cartridge::from_bytes(bytes.to_vec()).is_ok_and(|c| {
                let valid = c.validate(Level::Full).is_ok();
                // What is read from an accepted file must not fail in another way.
                let _ = (c.to_blob().is_ok(), c.tokens().count(), c.holds_blob());
                valid
            })
        }),
    );
    let (blob, geometry) = (cartridge::blob(), cartridge::geometry());
    tallies.insert("flips: blob", try_all(&blob, blob.len(), 3, |bytes| StateBlob::parse(bytes, &geometry).is_ok()));

    let children: [Attempt; 2] = [call("flips:models"), call("flips:blobs")];
    for (name, child) in ["engine: gguf", "engine: blobs"].into_iter().zip(&children) {
        let mut tally = Tally::default();
        match child.run() {
            Ok(said) => {
                let mut counts = said.lines().filter_map(|l| l.strip_prefix(COUNTS)).flat_map(str::split_whitespace);
                let mut count = || counts.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
                (tally.refused, tally.accepted) = (count(), count());
                tally.tried = tally.refused + tally.accepted;
            }
            Err(why) => {
                tally.tried = 1;
                tally.signals = u64::from(why.starts_with("SIGNAL"));
                tally.failures.push(format!("{name}: {why}"));
            }
        }
        tallies.insert(name, tally);
    }
    tallies
}

/// In the child: ends the process with 0 if all is well.
pub(crate) fn child(what: &str) -> ! {
    let result = match what {
        "models" => models(),
        "blobs" => blobs(),
        other => Err(format!("no flips of {other}")),
    };
    match result {
        Ok(()) => std::process::exit(0),
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(1);
        }
    }
}

/// Damaged models that the reader accepts, loaded and run. An error of the engine is an answer; a signal is none.
fn models() -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("m.gguf");
    let (bytes, header) = model_bytes();
    let mut random = Random(4);
    let (mut ran, mut accepted, mut number) = (0, 0, 0);
    while ran < MODELS {
        number += 1;
        // Header and data in turn: damage of the data is accepted by nature.
        let damaged = random.damage(&bytes, if number % 4 == 0 { bytes.len() } else { header });
        if !gguf_is_sound(&damaged) {
            continue;
        }
        ran += 1;
        std::fs::write(&path, &damaged).map_err(|e| e.to_string())?;
        std::fs::write(folder.path().join("last"), number.to_string()).map_err(|e| e.to_string())?;
        eprintln!("model {number}");
        let run = || -> Result<(), bitnet_rs::Error> {
            ModelFile::open(&path, &Limits::default())?;
            let model = Model::load(&path, ModelParams::default())?;
            let params = ContextParams { n_ctx: 32, n_threads: 1, ..Default::default() };
            let mut context = Context::new(&model, &params)?;
            let tokens = model.tokenize("hello \0 lamp 灯", bitnet_rs::Special::ContentWithBos)?;
            let batch = Batch::prompt(&tokens[..tokens.len().min(16)], Pos::ZERO, SeqId::ZERO)?;
            let last = bitnet_rs::greedy(context.decode(&batch)?.last()?);
            for id in 0..model.n_vocab() as i32 {
                model.token_bytes(model.token(id)?, true)?;
            }
            if let Some(token) = last {
                model.token_bytes(token, true)?;
            }
            Ok(())
        };
        match run() {
            Ok(()) => accepted += 1,
            Err(e) => eprintln!("  {e}"),
        }
    }
    eprintln!("{COUNTS}{} {accepted}", ran - accepted);
    Ok(())
}

/// Damaged states of the embedded model: refused or restored, and after each the context decodes like a fresh one.
fn blobs() -> Result<(), String> {
    let (model, _path) = calls::load()?;
    let state = calls::saved(&model)?;
    let mut context = calls::small(&model)?;
    let geometry = context.geometry().clone();
    let head = state.blob().layout().head().end + 64;
    let mut random = Random(5);
    let mut accepted = 0;
    for number in 0..FLIPS {
        let within = if number % 2 == 0 { head } else { state.as_bytes().len() };
        let damaged = random.damage(state.as_bytes(), within);
        let restored = match StateBlob::parse(&damaged, &geometry) {
            Ok(blob) => context.restore(SeqId::ZERO, &blob).is_ok(),
            Err(_) => false,
        };
        accepted += usize::from(restored);
        // Comparing is slower than trying; every twentieth, and whatever was restored first.
        if number % 20 == 0 || restored && number < 200 {
            if restored {
                let next = context.next_pos(SeqId::ZERO).map_err(|e| e.to_string())?;
                let more = Batch::prompt(&calls::tokens(&model, 2), next, SeqId::ZERO).map_err(|e| e.to_string())?;
                // NaN and infinity in the cache are numbers to the engine.
                let _ = context.decode(&more);
            }
            calls::same_as_fresh(&model, &mut context).map_err(|e| format!("blob {number}: {e}"))?;
        }
    }
    eprintln!("{COUNTS}{} {accepted}", FLIPS - accepted);
    Ok(())
}
