//! Runs the generations: adversarial ones on every worker, the model's in batches of several sequences.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use bitnet_rs::{Batch, Context, ContextParams, Model, Pos, SamplingParams, SeqId, Special, TokenId, vocabulary_trie};
use grammar::tools::Tool;
use grammar::{Language, TokenTrie};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::adversary::{Adversary, LogitSource};
use super::judges::Validator;
use crate::gates::thresholds::GrammarGate;
use crate::gates::{GateError, GateInputs};
use session::{ChatTemplate, GenerateError, Message, TemplateSandbox, TokenSelector};

/// One registry or plain schema under test.
pub struct Subject {
    /// Its name in reports.
    pub name: String,
    /// A registry's tools; a plain schema has none.
    pub tools: Vec<Tool>,
    /// Judges calls and answers.
    pub validator: Validator,
    /// Constrains generations; the registry's own unless a fault is planted.
    pub language: Option<Language>,
    /// What the model is asked.
    pub prompts: Vec<String>,
    /// Planted: what the budget cut counts as a call.
    pub cut_counts: bool,
}

/// Where logits came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// No model.
    Adversary(Adversary),
    /// The model at a temperature.
    Model(f32),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adversary(Adversary::Uniform) => f.write_str("uniform"),
            Self::Adversary(Adversary::PeakedOnIllegal) => f.write_str("peaked on illegal"),
            Self::Adversary(Adversary::NearTies) => f.write_str("near ties"),
            Self::Adversary(Adversary::AlwaysEnd) => f.write_str("always end"),
            Self::Adversary(Adversary::NeverEnd) => f.write_str("never end"),
            Self::Model(temperature) => write!(f, "model at {temperature}"),
        }
    }
}

/// How many of what.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Adversarial generations per registry and kind.
    per_adversary: usize,
    /// The same per plain schema.
    per_schema: usize,
    /// Model generations per registry and temperature.
    per_temperature: usize,
    temperatures: Vec<f32>,
    /// Most tokens of one generation.
    pub max_tokens: usize,
    /// Sequences in one batch.
    lanes: u32,
    /// The model computes on all threads; a small one on one, since its threads would wait longer than they work.
    whole_machine: bool,
}

impl Plan {
    /// The suite's plan for a model: on a large one the model says less and the adversaries make up the number.
    pub fn new(t: &GrammarGate, model: &Model, subjects: &[Subject], quick: bool) -> Self {
        let large = model.file().gguf().tensor_bytes() > 64 << 20;
        let total = if quick { t.quick_generations } else { t.generations };
        let from_model = if large { t.from_large_model } else { total * t.from_model / t.generations.max(1) };
        Self::split(t, total, from_model, large, subjects)
    }

    /// A few generations, enough to notice a planted fault.
    pub fn planted(t: &GrammarGate, subjects: &[Subject]) -> Self {
        Self::split(t, 200, 0, false, subjects)
    }

    fn split(t: &GrammarGate, total: usize, from_model: usize, large: bool, subjects: &[Subject]) -> Self {
        let schemas = subjects.iter().filter(|s| s.tools.is_empty()).count();
        let registries = (subjects.len() - schemas).max(1);
        let over_schemas = if schemas == 0 { 0 } else { total * t.over_schemas / t.generations.max(1) };
        let per_schema = over_schemas / (schemas * Adversary::ALL.len()).max(1);
        let total = total.saturating_sub(per_schema * schemas * Adversary::ALL.len());
        let per_temperature = from_model.div_ceil(registries * t.temperatures.len().max(1));
        let rest = total.saturating_sub(per_temperature * registries * t.temperatures.len());
        Self {
            per_adversary: rest.div_ceil(registries * Adversary::ALL.len()),
            per_schema,
            per_temperature,
            temperatures: t.temperatures.clone(),
            max_tokens: t.max_tokens,
            lanes: t.lanes,
            whole_machine: large,
        }
    }

    /// Generations in all.
    pub fn generations(&self, subjects: &[Subject]) -> u64 {
        let from_model = self.per_temperature * self.temperatures.len();
        let of =
            |s: &Subject| self.adversarial(s) * Adversary::ALL.len() + if s.tools.is_empty() { 0 } else { from_model };
        subjects.iter().map(of).sum::<usize>() as u64
    }

    /// Adversarial generations of one kind.
    fn adversarial(&self, subject: &Subject) -> usize {
        if subject.tools.is_empty() { self.per_schema } else { self.per_adversary }
    }
}

/// One finished generation.
#[derive(Debug)]
pub struct Outcome {
    /// Index of its registry.
    pub subject: usize,
    /// Where its logits came from.
    pub source: Source,
    /// Seed of logits and choice.
    pub seed: u64,
    /// Sampling options.
    pub sampling: SamplingParams,
    /// Tokens chosen.
    pub tokens: usize,
    /// What came out.
    pub text: String,
    /// It was counted as a call; the tool's name where it is one.
    pub call: Option<String>,
    /// Why it is wrong.
    pub failure: Option<String>,
    /// Whether that is what the host lacks.
    pub is_host_shortage: bool,
    /// Time spent on masks, choice and acceptance.
    pub spent: Duration,
}

/// How a text is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// A valid call of this tool.
    Call(String),
    /// Cut, not counted, and no call.
    Incomplete,
    /// Wrong.
    Wrong(String),
}

/// Judges one output by the subject's validator alone.
pub fn judge(validator: &Validator, output: &[u8], counts_as_call: bool) -> Judged {
    let Ok(text) = std::str::from_utf8(output) else {
        return match counts_as_call {
            true => Judged::Wrong("not UTF-8".into()),
            // A budget may cut a character.
            false => Judged::Incomplete,
        };
    };
    match (counts_as_call, validator.read(text)) {
        (true, Ok(name)) => Judged::Call(name),
        (true, Err(e)) => Judged::Wrong(format!("counted as a call: {e}")),
        (false, Err(_)) => Judged::Incomplete,
        (false, Ok(_)) => Judged::Wrong("a whole call was taken for incomplete".into()),
    }
}

/// Counts of one kind of generations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Generations.
    pub generations: u64,
    /// Counted as calls.
    pub complete: u64,
    /// Cut by the budget.
    pub incomplete: u64,
    /// Wrong.
    pub failed: u64,
    /// Tokens of the longest.
    pub longest: usize,
    /// Tokens of all.
    pub tokens: usize,
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.generations += other.generations;
        self.complete += other.complete;
        self.incomplete += other.incomplete;
        self.failed += other.failed;
        self.longest = self.longest.max(other.longest);
        self.tokens += other.tokens;
    }
}

/// What came of all generations.
#[derive(Debug, Default)]
pub struct Tally {
    counts: BTreeMap<(usize, String), Counts>,
    /// Valid calls by tool.
    pub calls: BTreeMap<String, u64>,
    /// Tokens of all generations.
    pub tokens: usize,
    spent: Duration,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        let counts = self.counts.entry((outcome.subject, outcome.source.to_string())).or_default();
        let (complete, failed) = (outcome.call.is_some(), outcome.failure.is_some());
        *counts += &Counts {
            generations: 1,
            complete: u64::from(complete),
            incomplete: u64::from(!complete && !failed),
            failed: u64::from(failed),
            longest: outcome.tokens,
            tokens: outcome.tokens,
        };
        if let Some(tool) = &outcome.call {
            *self.calls.entry(tool.clone()).or_default() += 1;
        }
        self.tokens += outcome.tokens;
        self.spent += outcome.spent;
    }

    fn sum(&self, mut key: impl FnMut(usize, &str) -> String) -> BTreeMap<String, Counts> {
        let mut sums: BTreeMap<String, Counts> = BTreeMap::new();
        for ((subject, source), counts) in &self.counts {
            *sums.entry(key(*subject, source)).or_default() += counts;
        }
        sums
    }

    /// Over everything.
    pub fn total(&self) -> Counts {
        self.sum(|_, _| String::new()).into_values().next().unwrap_or_default()
    }

    /// By where logits came from.
    pub fn by_source(&self) -> BTreeMap<String, Counts> {
        self.sum(|_, source| source.to_owned())
    }

    /// By registry.
    pub fn by_registry(&self, subjects: &[Subject]) -> BTreeMap<String, Counts> {
        self.sum(|subject, _| subjects.get(subject).map_or("?", |s| s.name.as_str()).to_owned())
    }

    /// The model's own.
    pub fn from_model(&self) -> Counts {
        self.by_source().iter().filter(|(k, _)| k.starts_with("model")).fold(Counts::default(), |mut sum, (_, c)| {
            sum += c;
            sum
        })
    }

    /// Masks, choice and acceptance, in microseconds per token.
    pub fn micros_per_token(&self) -> f64 {
        self.spent.as_secs_f64() * 1e6 / self.tokens.max(1) as f64
    }
}

/// Text, tokens and time of one generation under way.
struct Output {
    bytes: Vec<u8>,
    tokens: usize,
    spent: Duration,
}

/// How one step went on.
enum Step {
    Token(TokenId),
    Over,
}

impl Output {
    fn new() -> Self {
        Self { bytes: Vec::new(), tokens: 0, spent: Duration::ZERO }
    }

    /// One token, as [`session::Generator`] takes it.
    fn step(
        &mut self,
        selector: &mut TokenSelector,
        model: &Model,
        logits: &[f32],
        max_tokens: usize,
    ) -> Result<Step, bitnet_rs::Error> {
        let started = Instant::now();
        let selected = selector.select(logits)?;
        self.spent += started.elapsed();
        if selected.end {
            return Ok(Step::Over);
        }
        self.tokens += 1;
        self.bytes.extend(model.token_bytes(selected.id, !selector.is_constrained())?);
        Ok(if selector.is_complete() || self.tokens >= max_tokens { Step::Over } else { Step::Token(selected.id) })
    }
}

/// The one who generates, and what is generated.
struct Job<'a> {
    subject: usize,
    registry: &'a Subject,
    source: Source,
    seed: u64,
    sampling: SamplingParams,
}

impl Job<'_> {
    /// Judges what came out. `cut`: the budget ended it.
    fn outcome(&self, output: Output, selector: &TokenSelector, cut: bool, error: Option<bitnet_rs::Error>) -> Outcome {
        let counts = self.registry.cut_counts || selector.is_answer().unwrap_or(!cut);
        let is_host_shortage = error.as_ref().is_some_and(bitnet_rs::Error::is_host_shortage);
        let (call, failure) = match error {
            Some(e) => (None, Some(e.to_string())),
            None => match judge(&self.registry.validator, &output.bytes, counts) {
                Judged::Call(tool) => (Some(tool), None),
                Judged::Incomplete => (None, None),
                Judged::Wrong(why) => (None, Some(why)),
            },
        };
        Outcome {
            subject: self.subject,
            source: self.source,
            seed: self.seed,
            sampling: self.sampling.clone(),
            tokens: output.tokens,
            text: String::from_utf8_lossy(&output.bytes).into_owned(),
            call,
            failure,
            is_host_shortage,
            spent: output.spent,
        }
    }
}

/// Runs the plan and hears of each outcome, in no particular order.
///
/// # Errors
/// When the model cannot be decoded at all; a failed generation is an outcome.
pub fn run(
    model: &Model,
    subjects: &[Subject],
    plan: &Plan,
    inputs: &GateInputs,
    hear: &mut dyn FnMut(&Outcome, &Subject),
) -> Result<Tally, GateError> {
    let (threads, sandbox) = (inputs.threads, TemplateSandbox::Child(inputs.children.clone()));
    let trie = vocabulary_trie(model)?;
    let mut jobs = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        for kind in Adversary::ALL {
            jobs.extend((0..plan.adversarial(subject)).map(|n| (index, kind, n)));
        }
    }
    let next = AtomicUsize::new(0);
    let asked: Vec<(usize, usize)> =
        subjects.iter().enumerate().flat_map(|(s, subject)| (0..subject.prompts.len()).map(move |p| (s, p))).collect();
    let next_asked = AtomicUsize::new(0);
    let says = |threads: u32, send: &Sender<Outcome>| {
        let next = &mut || asked.get(next_asked.fetch_add(1, Ordering::Relaxed)).copied();
        by_model(model, subjects, plan, (threads, &sandbox), &trie, next, send)
    };
    let mut tally = Tally::default();
    let mut add = |outcome: &Outcome| {
        tally.add(outcome);
        if let Some(subject) = subjects.get(outcome.subject) {
            hear(outcome, subject);
        }
    };
    if plan.whole_machine {
        // Alone: the engine's threads wait for each other by spinning, and a third one on two cores makes each step
        // many times as long.
        on_workers(1, &|send| says(threads, send), &mut add)?;
    }
    on_workers(
        threads.max(1),
        &|send| {
            if !plan.whole_machine {
                says(1, send)?;
            }
            let next = &mut || jobs.get(next.fetch_add(1, Ordering::Relaxed)).copied();
            adversarial(model, subjects, plan, &trie, next, send)
        },
        &mut add,
    )?;
    Ok(tally)
}

/// Runs `work` on `n` threads and hears of their outcomes on this one.
fn on_workers(
    n: u32,
    work: &(dyn Fn(&Sender<Outcome>) -> Result<(), GateError> + Sync),
    hear: &mut dyn FnMut(&Outcome),
) -> Result<(), GateError> {
    let (send, receive) = channel();
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..n {
            let send = send.clone();
            match std::thread::Builder::new().spawn_scoped(scope, move || work(&send)) {
                Ok(worker) => workers.push(worker),
                // The others do its share.
                Err(_) if !workers.is_empty() => break,
                Err(e) => return Err(e.into()),
            }
        }
        drop(send);
        receive.iter().for_each(|outcome| hear(&outcome));
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| GateError::Other("a worker panicked".into()))?)
    })
}

/// Seeds that say what they are for: the place in the plan.
fn seed(subject: usize, kind: usize, n: usize) -> u64 {
    ((subject as u64) << 40) | ((kind as u64) << 32) | n as u64
}

fn adversarial(
    model: &Model,
    subjects: &[Subject],
    plan: &Plan,
    trie: &TokenTrie,
    next: &mut dyn FnMut() -> Option<(usize, Adversary, usize)>,
    send: &Sender<Outcome>,
) -> Result<(), GateError> {
    let mut source = LogitSource::new(model, trie);
    let mut selectors: Vec<Option<TokenSelector>> = subjects.iter().map(|_| None).collect();
    while let Some((subject, kind, n)) = next() {
        let seed = seed(subject, kind as usize, n);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let sampling = kind.sampling(&mut rng);
        let registry = &subjects[subject];
        let selector = match &mut selectors[subject] {
            Some(known) => {
                known.restart(&sampling)?;
                known
            }
            empty => {
                empty.insert(TokenSelector::new(model, &sampling, registry.language.as_ref(), Some(trie.clone()))?)
            }
        };
        let job = Job { subject, registry, source: Source::Adversary(kind), seed, sampling };
        let (mut output, mut error, mut cut) = (Output::new(), None, false);
        loop {
            let row = source.row(kind, &mut rng, selector);
            let step = row.and_then(|row| output.step(selector, model, row, plan.max_tokens));
            match step {
                Ok(Step::Token(_)) => {}
                Ok(Step::Over) => {
                    cut = output.tokens >= plan.max_tokens;
                    break;
                }
                Err(e) => {
                    error = Some(e);
                    break;
                }
            }
        }
        if send.send(job.outcome(output, selector, cut, error)).is_err() {
            break;
        }
    }
    Ok(())
}

/// A sequence of the batch that is generating.
struct Lane<'a> {
    seq: SeqId,
    job: Job<'a>,
    selector: TokenSelector,
    output: Output,
    /// The token to decode next.
    token: TokenId,
}

/// The model's generations: each prompt is decoded once and shared by all lanes.
fn by_model(
    model: &Model,
    subjects: &[Subject],
    plan: &Plan,
    (threads, sandbox): (u32, &TemplateSandbox),
    trie: &TokenTrie,
    next: &mut dyn FnMut() -> Option<(usize, usize)>,
    send: &Sender<Outcome>,
) -> Result<(), GateError> {
    if plan.per_temperature == 0 {
        return Ok(());
    }
    let template = match ChatTemplate::of_model(model, sandbox) {
        Ok(template) => Some(template),
        Err(GenerateError::NoTemplate) => None,
        // Transparent: as a cause it would be skipped.
        Err(GenerateError::Engine(e)) => return Err(e.into()),
        Err(e) => return Err(GateError::cause(e)),
    };
    while let Some((index, p)) = next() {
        let registry = &subjects[index];
        let prompts = &registry.prompts;
        let tokens = prompt_tokens(model, template.as_ref(), registry, &prompts[p])?;
        let mut jobs = VecDeque::new();
        for (t, &temperature) in plan.temperatures.iter().enumerate() {
            for n in (0..plan.per_temperature).filter(|n| n % prompts.len() == p) {
                let seed = seed(index, Adversary::ALL.len() + t, n);
                let choice = ChaCha8Rng::seed_from_u64(seed).random();
                let sampling = SamplingParams { temperature, seed: choice, ..Default::default() };
                jobs.push_back(Job { subject: index, registry, source: Source::Model(temperature), seed, sampling });
            }
        }
        if !jobs.is_empty() {
            lanes(model, plan, threads, trie, &tokens, jobs, send)?;
        }
    }
    Ok(())
}

fn prompt_tokens(
    model: &Model,
    template: Option<&ChatTemplate>,
    subject: &Subject,
    prompt: &str,
) -> Result<Vec<TokenId>, GateError> {
    let tools: Vec<String> = subject.tools.iter().map(|t| format!("- {}: {}", t.name, t.description)).collect();
    let system = format!("Tools:\n{}", tools.join("\n"));
    match template {
        None => Ok(model.tokenize(&format!("{system}\n\n{prompt}\n"), Special::Content)?),
        Some(template) => template
            .tokens(model, &[Message::new("system", system), Message::new("user", prompt)], true)
            .map_err(|e| GateError::Unmeasurable { code: "no-prompt", message: e.to_string() }),
    }
}

fn lanes<'a>(
    model: &Model,
    plan: &Plan,
    threads: u32,
    trie: &TokenTrie,
    prompt: &[TokenId],
    mut jobs: VecDeque<Job<'a>>,
    send: &Sender<Outcome>,
) -> Result<(), GateError> {
    let cells = prompt.len() + plan.lanes as usize * plan.max_tokens;
    let params = ContextParams {
        n_ctx: u32::try_from(cells.next_multiple_of(256)).unwrap_or(u32::MAX),
        n_seq_max: plan.lanes + 1,
        n_threads: threads,
        ..Default::default()
    };
    let mut context = Context::new(model, &params)?;
    let first = context.decode(&Batch::prompt(prompt, Pos::ZERO, SeqId::ZERO)?)?.last()?.to_vec();
    let mut free: Vec<SeqId> = (1..=plan.lanes).rev().map(|i| SeqId::new(i as i32)).collect::<Result<_, _>>()?;
    let mut spare: Vec<TokenSelector> = Vec::new();
    let mut live: Vec<Lane<'a>> = Vec::new();
    loop {
        while let (Some(&seq), false) = (free.last(), jobs.is_empty()) {
            let Some(job) = jobs.pop_front() else { break };
            let mut selector = match spare.pop() {
                Some(mut selector) => {
                    selector.restart(&job.sampling)?;
                    selector
                }
                None => TokenSelector::new(model, &job.sampling, job.registry.language.as_ref(), Some(trie.clone()))?,
            };
            let mut output = Output::new();
            match output.step(&mut selector, model, &first, plan.max_tokens) {
                Ok(Step::Token(token)) => {
                    free.pop();
                    context.copy(SeqId::ZERO, seq, None)?;
                    live.push(Lane { seq, job, selector, output, token });
                }
                other => {
                    let cut = output.tokens >= plan.max_tokens;
                    let _ = send.send(job.outcome(output, &selector, cut, other.err()));
                    spare.push(selector);
                }
            }
        }
        if live.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for lane in &live {
            batch.push(lane.token, context.next_pos(lane.seq)?, &[lane.seq], true);
        }
        let logits = context.decode(&batch)?;
        let mut ended: Vec<Option<Result<(), bitnet_rs::Error>>> = Vec::with_capacity(live.len());
        for (i, lane) in live.iter_mut().enumerate() {
            ended.push(match lane.output.step(&mut lane.selector, model, logits.row(i)?, plan.max_tokens) {
                Ok(Step::Token(token)) => {
                    lane.token = token;
                    None
                }
                Ok(Step::Over) => Some(Ok(())),
                Err(e) => Some(Err(e)),
            });
        }
        let mut going = Vec::with_capacity(live.len());
        for (lane, end) in live.into_iter().zip(ended) {
            match end {
                None => going.push(lane),
                Some(result) => {
                    context.remove_all(lane.seq)?;
                    free.push(lane.seq);
                    let cut = lane.output.tokens >= plan.max_tokens;
                    let _ = send.send(lane.job.outcome(lane.output, &lane.selector, cut, result.err()));
                    spare.push(lane.selector);
                }
            }
        }
        live = going;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grammar::schema::SchemaOptions;
    use grammar::tools::ToolRegistry;

    fn registry() -> Validator {
        let registry = ToolRegistry::from_json(
            r#"{"tools":[{"name":"on","description":"On.","parameters":{"type":"object","additionalProperties":false,
                "required":["room"],"properties":{"room":{"enum":["hall"]}}}}]}"#,
            &SchemaOptions::default(),
        );
        Validator::of_calls(&registry.unwrap()).unwrap()
    }

    #[test]
    fn a_cut_output_is_no_call_and_a_whole_one_must_be_valid() {
        let registry = registry();
        let whole = br#"{"tool":"on","arguments":{"room":"hall"}}"#;
        assert_eq!(judge(&registry, whole, true), Judged::Call("on".into()));
        assert!(matches!(judge(&registry, whole, false), Judged::Wrong(_)));
        assert_eq!(judge(&registry, &whole[..20], false), Judged::Incomplete);
        assert!(matches!(judge(&registry, &whole[..20], true), Judged::Wrong(_)));
        let more = br#"{"tool":"on","arguments":{"room":"hall"},"execute":true}"#;
        assert!(matches!(judge(&registry, more, true), Judged::Wrong(_)));
        assert_eq!(judge(&registry, b"{\"tool\":\"\xe7\x81", false), Judged::Incomplete);
        assert!(matches!(judge(&registry, b"\xff", true), Judged::Wrong(_)));
    }

    #[test]
    fn the_plan_makes_up_the_promised_number() {
        let t = crate::gates::thresholds::Thresholds::embedded().unwrap().grammar;
        let subjects = super::super::subjects(super::super::Fault::None).unwrap();
        for (total, from_model, large) in [(10_000, 1600, false), (10_000, 64, true), (1_000, 160, false)] {
            let plan = Plan::split(&t, total, from_model, large, &subjects);
            assert!(plan.per_schema > 0);
            let made = plan.generations(&subjects) as usize;
            assert!((total..total + 40).contains(&made), "{made} for {total}");
        }
    }
}
