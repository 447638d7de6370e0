//! What `/metrics` says (prometheus text format).

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use session::scheduler::{Observer, Stats, Step, Usage};

/// Which requests.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    /// The route's pattern, or `unknown`: never what a client wrote.
    route: String,
    status: u16,
}

/// Counters of a server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    waited: Histogram,
    first_token: Histogram,
    next_token: Histogram,
    step_time: Histogram,
    decode_rows: Histogram,
    prefill_rows: Histogram,
    padding_rows: Counter,
    prompt_tokens: Counter,
    reused_tokens: Counter,
    completion_tokens: Counter,
    answered: Counter,
    cartridge_hits: Counter,
    cartridge_misses: Counter,
    queue: Gauge,
    running: Gauge,
    kept: Gauge,
    mounted: Gauge,
    cells_used: Gauge,
    cells: Gauge,
    decode_seconds: Counter<f64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let times = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let rows = || Histogram::new([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]);
        let mut m = Self {
            registry: Registry::with_prefix("harness"),
            requests: Family::default(),
            waited: times(),
            first_token: times(),
            next_token: times(),
            step_time: times(),
            decode_rows: rows(),
            prefill_rows: rows(),
            padding_rows: Counter::default(),
            prompt_tokens: Counter::default(),
            reused_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            answered: Counter::default(),
            cartridge_hits: Counter::default(),
            cartridge_misses: Counter::default(),
            queue: Gauge::default(),
            running: Gauge::default(),
            kept: Gauge::default(),
            mounted: Gauge::default(),
            cells_used: Gauge::default(),
            cells: Gauge::default(),
            decode_seconds: Counter::default(),
        };
        let r = &mut m.registry;
        r.register("http_requests", "Requests by route and status", m.requests.clone());
        r.register_with_unit("queue_wait", "Time in the queue", Unit::Seconds, m.waited.clone());
        r.register_with_unit(
            "first_token",
            "Time to the first token, queue included",
            Unit::Seconds,
            m.first_token.clone(),
        );
        r.register_with_unit("inter_token", "Time between tokens of an answer", Unit::Seconds, m.next_token.clone());
        r.register_with_unit("step", "Time of a micro-batch", Unit::Seconds, m.step_time.clone());
        r.register("step_decode_rows", "Rows of answers in a micro-batch", m.decode_rows.clone());
        r.register("step_prefill_rows", "Tokens of prompts in a micro-batch", m.prefill_rows.clone());
        r.register("padding_rows", "Rows that only filled up", m.padding_rows.clone());
        r.register("prompt_tokens", "Tokens of prompts, without cartridges", m.prompt_tokens.clone());
        r.register("reused_tokens", "Of those, in the cache already", m.reused_tokens.clone());
        r.register("completion_tokens", "Tokens of answers", m.completion_tokens.clone());
        r.register("answers", "Requests that left the scheduler", m.answered.clone());
        r.register("cartridge_hits", "Requests that found their cartridge mounted", m.cartridge_hits.clone());
        r.register("cartridge_misses", "Requests whose cartridge was mounted for them", m.cartridge_misses.clone());
        r.register("queue_depth", "Requests that wait", m.queue.clone());
        r.register("running", "Answers on their way", m.running.clone());
        r.register("kept", "Sequences that keep a conversation for its next turn", m.kept.clone());
        r.register("mounted", "Mounted cartridges", m.mounted.clone());
        r.register("kv_cells_used", "Cells of the cache that hold something", m.cells_used.clone());
        r.register("kv_cells", "Cells of the cache", m.cells.clone());
        r.register_with_unit("engine", "Time in the engine", Unit::Seconds, m.decode_seconds.clone());
        m
    }

    pub(crate) fn request(&self, route: &str, status: u16) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status }).inc();
    }

    /// The text, with gauges as of now.
    pub(crate) fn text(&self, stats: &Stats) -> String {
        let set = |gauge: &Gauge, n: usize| {
            gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        };
        set(&self.queue, stats.waiting);
        set(&self.running, stats.running);
        set(&self.kept, stats.kept);
        set(&self.mounted, stats.mounted);
        set(&self.cells_used, stats.n_ctx.saturating_sub(stats.free_cells));
        set(&self.cells, stats.n_ctx);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Observer for Metrics {
    fn step(&self, step: &Step) {
        self.step_time.observe(step.time.as_secs_f64());
        self.decode_seconds.inc_by(step.time.as_secs_f64());
        self.decode_rows.observe(step.decode_rows as f64);
        self.prefill_rows.observe(step.prefill_rows as f64);
        self.padding_rows.inc_by(step.padding_rows as u64);
    }

    fn waited(&self, time: Duration) {
        self.waited.observe(time.as_secs_f64());
    }

    fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    fn next_token(&self, time: Duration) {
        self.next_token.observe(time.as_secs_f64());
    }

    fn cartridge(&self, mounted_already: bool) {
        if mounted_already {
            self.cartridge_hits.inc()
        } else {
            self.cartridge_misses.inc()
        };
    }

    fn ended(&self, usage: &Usage) {
        self.answered.inc();
        self.prompt_tokens.inc_by(usage.prompt_tokens as u64);
        self.reused_tokens.inc_by(usage.reused_tokens as u64);
        self.completion_tokens.inc_by(usage.completion_tokens as u64);
    }
}
