//! Shapes as a grammar of the engine.

use std::collections::HashMap;

use llguidance::api::{GrammarInit, SkipSpec};
use llguidance::derivre::{ExprRef, JsonQuoteOptions, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::earley::{Grammar, SymIdx, SymbolProps};

use super::error::{SchemaError, SchemaErrorKind};
use super::json::quote;
use super::limits::SchemaLimits;
use super::options::{Mode, Whitespace};
use super::shape::{Field, Order, Shape, ShapeId, Shapes};

/// Pieces in which long repetitions are counted.
const PIECE: u64 = 4;

pub(crate) fn emit(
    shapes: &Shapes,
    mode: Mode,
    blanks: Whitespace,
    limits: &SchemaLimits,
) -> Result<GrammarInit, SchemaError> {
    let mut lexer = LexerSpec::new().map_err(|e| engine(&e))?;
    let class = lexer.setup_lexeme_class_with_skip(SkipSpec::once(RegexAst::NoMatch)).map_err(|e| engine(&e))?;
    let mut emitter = Emitter {
        shapes,
        grammar: Grammar::new(None),
        lexer,
        class,
        limits,
        escapes: if mode == Mode::Open { "nrbtf\\\"u" } else { "nrbtf\\\"" },
        blanks,
        free_keys: shapes.all.iter().any(|s| matches!(s, Shape::Object { free, .. } if !free.is_empty())),
        terminals: HashMap::new(),
        symbols: HashMap::new(),
        queue: Vec::new(),
        repeats: HashMap::new(),
    };
    let start = emitter.fresh()?;
    emitter.grammar.sym_props_mut(start).is_start = true;
    let root = emitter.symbol(shapes.root)?;
    emitter.rule(start, &[root])?;
    while let Some((shape, symbol)) = emitter.queue.pop() {
        emitter.shape(shape, symbol)?;
    }
    Ok(GrammarInit::Internal(emitter.grammar, emitter.lexer))
}

fn contradiction() -> SchemaError {
    SchemaError::new(
        SchemaErrorKind::Unsatisfiable,
        "",
        "minProperties",
        "no value fits: the numbers of properties contradict each other",
    )
}

fn engine(error: &dyn std::fmt::Display) -> SchemaError {
    SchemaError::new(SchemaErrorKind::Engine, "", "(schema)", format!("is beyond the grammar engine: {error}"))
}

struct Emitter<'s> {
    shapes: &'s Shapes,
    grammar: Grammar,
    lexer: LexerSpec,
    class: LexemeClass,
    limits: &'s SchemaLimits,
    escapes: &'static str,
    blanks: Whitespace,
    /// Some object has keys without a name.
    free_keys: bool,
    terminals: HashMap<ExprRef, SymIdx>,
    symbols: HashMap<ShapeId, SymIdx>,
    queue: Vec<(ShapeId, SymIdx)>,
    repeats: HashMap<(SymIdx, u64, bool), SymIdx>,
}

type Result2<T> = Result<T, SchemaError>;

impl Emitter<'_> {
    fn fresh(&mut self) -> Result2<SymIdx> {
        let max = self.limits.max_symbols;
        if self.grammar.num_symbols() >= max {
            return Err(SchemaError::too_large("", "(schema)", "symbols of the grammar", max as u64 + 1, max as u64));
        }
        Ok(self.grammar.fresh_symbol_ext("", SymbolProps { grammar_id: self.class, ..SymbolProps::default() }))
    }

    fn rule(&mut self, left: SymIdx, right: &[SymIdx]) -> Result2<()> {
        self.grammar.add_rule(left, right.to_vec()).map_err(|e| engine(&e))
    }

    fn terminal(&mut self, language: RegexAst) -> Result2<SymIdx> {
        let expression = self.lexer.regex_builder.mk(&language).map_err(|e| engine(&e))?;
        if let Some(&known) = self.terminals.get(&expression) {
            return Ok(known);
        }
        let symbol = self.fresh()?;
        let lexeme = self
            .lexer
            .add_greedy_lexeme(String::new(), RegexAst::ExprRef(expression), false, None, usize::MAX)
            .map_err(|e| engine(&e))?;
        self.grammar.make_terminal(symbol, lexeme, &self.lexer).map_err(|e| engine(&e))?;
        self.terminals.insert(expression, symbol);
        Ok(symbol)
    }

    fn either(&mut self, ways: &[SymIdx]) -> Result2<SymIdx> {
        if let &[only] = ways {
            return Ok(only);
        }
        let symbol = self.fresh()?;
        for &way in ways {
            self.rule(symbol, &[way])?;
        }
        Ok(symbol)
    }

    fn optional(&mut self, what: &[SymIdx]) -> Result2<SymIdx> {
        let symbol = self.fresh()?;
        self.rule(symbol, &[])?;
        self.rule(symbol, what)?;
        Ok(symbol)
    }

    fn sequence(&mut self, parts: &[SymIdx]) -> Result2<SymIdx> {
        if let &[only] = parts {
            return Ok(only);
        }
        let symbol = self.fresh()?;
        self.rule(symbol, parts)?;
        Ok(symbol)
    }

    fn empty(&mut self) -> Result2<SymIdx> {
        self.sequence(&[])
    }

    fn star(&mut self, what: SymIdx) -> Result2<SymIdx> {
        if let Some(&known) = self.repeats.get(&(what, u64::MAX, true)) {
            return Ok(known);
        }
        let symbol = self.fresh()?;
        self.rule(symbol, &[])?;
        self.rule(symbol, &[symbol, what])?;
        self.repeats.insert((what, u64::MAX, true), symbol);
        Ok(symbol)
    }

    /// `count` times, in rules of logarithmic number.
    fn exactly(&mut self, what: SymIdx, count: u64) -> Result2<SymIdx> {
        if let Some(&known) = self.repeats.get(&(what, count, false)) {
            return Ok(known);
        }
        let symbol = if count <= 2 * PIECE {
            let parts = vec![what; usize::try_from(count).unwrap_or(0)];
            self.sequence(&parts)?
        } else {
            let piece = self.exactly(what, PIECE)?;
            let pieces = self.exactly(piece, count / PIECE)?;
            let mut parts = vec![what; usize::try_from(count % PIECE).unwrap_or(0)];
            parts.push(pieces);
            self.sequence(&parts)?
        };
        self.repeats.insert((what, count, false), symbol);
        Ok(symbol)
    }

    /// At most `count` times.
    fn at_most(&mut self, what: SymIdx, count: u64) -> Result2<SymIdx> {
        if let Some(&known) = self.repeats.get(&(what, count, true)) {
            return Ok(known);
        }
        let symbol = if count == 0 {
            self.empty()?
        } else if count < 3 * PIECE {
            let symbol = self.fresh()?;
            for n in 0..=count {
                self.rule(symbol, &vec![what; usize::try_from(n).unwrap_or(0)])?;
            }
            symbol
        } else {
            // Full pieces up to one less than fit, and a rest below a piece; or all full pieces and what is left.
            let piece = self.exactly(what, PIECE)?;
            let fewer = self.at_most(piece, count / PIECE - 1)?;
            let below = self.at_most(what, PIECE - 1)?;
            let all = self.exactly(piece, count / PIECE)?;
            let left = self.at_most(what, count % PIECE)?;
            let symbol = self.fresh()?;
            self.rule(symbol, &[fewer, below])?;
            self.rule(symbol, &[all, left])?;
            symbol
        };
        self.repeats.insert((what, count, true), symbol);
        Ok(symbol)
    }

    fn repeat(&mut self, what: SymIdx, min: u64, max: Option<u64>) -> Result2<SymIdx> {
        let more = match max {
            None => self.star(what)?,
            Some(max) => self.at_most(what, max.saturating_sub(min))?,
        };
        if min == 0 {
            return Ok(more);
        }
        let first = self.exactly(what, min)?;
        if max == Some(min) { Ok(first) } else { self.sequence(&[first, more]) }
    }

    // ---- texts ----

    fn quoted(&self, language: RegexAst) -> RegexAst {
        let options = JsonQuoteOptions { allowed_escapes: self.escapes.to_owned(), raw_mode: false };
        RegexAst::JsonQuote(Box::new(language), options)
    }

    /// A mark with the blanks that may stand around it.
    fn mark(&self, before: bool, mark: &str, behind: bool) -> RegexAst {
        let any = "[ \\n\\r\\t]{0,64}";
        let (left, right) = match self.blanks {
            Whitespace::Compact => ("", ""),
            Whitespace::OptionalBlank => ("", if matches!(mark, "," | ":") { " ?" } else { "" }),
            Whitespace::Flexible => (if before { any } else { "" }, if behind { any } else { "" }),
        };
        if left.is_empty() && right.is_empty() {
            return RegexAst::Literal(mark.to_owned());
        }
        RegexAst::Concat(vec![
            RegexAst::Regex(left.to_owned()),
            RegexAst::Literal(mark.to_owned()),
            RegexAst::Regex(right.to_owned()),
        ])
    }

    fn comma(&self) -> RegexAst {
        self.mark(true, ",", true)
    }

    fn open(&mut self, mark: &str) -> Result2<SymIdx> {
        let language = self.mark(false, mark, true);
        self.terminal(language)
    }

    fn close(&mut self, mark: &str) -> Result2<SymIdx> {
        let language = self.mark(true, mark, false);
        self.terminal(language)
    }

    /// A fixed key with its colon, and the comma before it unless it is the first.
    fn key(&mut self, key: RegexAst, first: bool) -> Result2<SymIdx> {
        let colon = self.mark(true, ":", true);
        if first || !self.free_keys {
            let mut parts = if first { vec![] } else { vec![self.comma()] };
            parts.extend([key, colon]);
            return self.terminal(RegexAst::Concat(parts));
        }
        // Where a free key may follow as well, both begin behind the same comma.
        let comma = self.comma();
        let parts = [self.terminal(comma)?, self.terminal(RegexAst::Concat(vec![key, colon]))?];
        self.sequence(&parts)
    }

    /// The same of a key that is one of a language. It stands alone, since the engine masks quickly inside a text whose
    /// rest it knows to be nearly free.
    fn free_key(&mut self, key: RegexAst, first: bool) -> Result2<SymIdx> {
        let (comma, colon) = (self.comma(), self.mark(true, ":", true));
        let mut parts = if first { vec![] } else { vec![self.terminal(comma)?] };
        parts.extend([self.terminal(key)?, self.terminal(colon)?]);
        self.sequence(&parts)
    }

    // ---- shapes ----

    fn symbol(&mut self, id: ShapeId) -> Result2<SymIdx> {
        if let Some(&known) = self.symbols.get(&id) {
            return Ok(known);
        }
        let symbol = match &self.shapes.all[id as usize] {
            Shape::Text(language) => {
                let language = language.clone();
                self.terminal(language)?
            }
            Shape::String(language) => {
                let language = self.quoted(language.clone());
                self.terminal(language)?
            }
            _ => {
                let symbol = self.fresh()?;
                self.queue.push((id, symbol));
                symbol
            }
        };
        self.symbols.insert(id, symbol);
        Ok(symbol)
    }

    fn shape(&mut self, id: ShapeId, symbol: SymIdx) -> Result2<()> {
        let shapes = self.shapes;
        match &shapes.all[id as usize] {
            // Pruned: nothing refers to it.
            Shape::Pending | Shape::Never | Shape::Text(_) | Shape::String(_) => Ok(()),
            Shape::Either(ways) => self.ways(ways, symbol),
            Shape::Array { prefix, rest, min, max } => self.array(prefix, *rest, *min, *max, symbol),
            Shape::Containing { rest, hit } => {
                let (rest, hit) = (self.symbol(*rest)?, self.symbol(*hit)?);
                let comma = self.comma();
                let comma = self.terminal(comma)?;
                let (open, close) = (self.open("[")?, self.close("]")?);
                let before = self.sequence(&[rest, comma])?;
                let before = self.star(before)?;
                let behind = self.sequence(&[comma, rest])?;
                let behind = self.star(behind)?;
                self.rule(symbol, &[open, before, hit, behind, close])
            }
            Shape::Object { fields, free, min, max, order: Order::Written } => {
                self.object(fields, free, *min, *max, symbol)
            }
            Shape::Object { fields, free, min, max, order: Order::Any { tracked } } => {
                self.any_order(fields, *tracked, free, (*min, *max), symbol)
            }
        }
    }

    /// Texts among the alternatives become one.
    fn ways(&mut self, ways: &[ShapeId], symbol: SymIdx) -> Result2<()> {
        let shapes = self.shapes;
        let mut texts = Vec::new();
        for &way in ways {
            match &shapes.all[way as usize] {
                Shape::Text(language) => texts.push(language.clone()),
                Shape::String(language) => {
                    let language = self.quoted(language.clone());
                    texts.push(language);
                }
                _ => {
                    let way = self.symbol(way)?;
                    self.rule(symbol, &[way])?;
                }
            }
        }
        if !texts.is_empty() {
            let text = self.terminal(RegexAst::Or(texts))?;
            self.rule(symbol, &[text])?;
        }
        Ok(())
    }

    fn array(
        &mut self,
        prefix: &[ShapeId],
        rest: Option<ShapeId>,
        min: u64,
        max: Option<u64>,
        symbol: SymIdx,
    ) -> Result2<()> {
        let (open, close) = (self.open("[")?, self.close("]")?);
        let comma = self.comma();
        let comma = self.terminal(comma)?;
        let length = prefix.len() as u64;
        let shown = usize::try_from(max.unwrap_or(u64::MAX).min(length)).unwrap_or(prefix.len());
        // What may come behind the prefix.
        let mut tail = match rest {
            Some(rest) if max.is_none_or(|max| max > length) => {
                let rest = self.symbol(rest)?;
                let (low, high) = (min.saturating_sub(length), max.map(|max| max - length));
                let more = self.sequence(&[comma, rest])?;
                if prefix.is_empty() {
                    let more = self.repeat(more, low.saturating_sub(1), high.map(|high| high - 1))?;
                    if low == 0 { self.optional(&[rest, more])? } else { self.sequence(&[rest, more])? }
                } else {
                    self.repeat(more, low, high)?
                }
            }
            _ => self.empty()?,
        };
        for i in (0..shown).rev() {
            let item = self.symbol(prefix[i])?;
            let parts = if i == 0 { vec![item, tail] } else { vec![comma, item, tail] };
            tail = if (i as u64) < min { self.sequence(&parts)? } else { self.optional(&parts)? };
        }
        self.rule(symbol, &[open, tail, close])
    }

    fn object(
        &mut self,
        fields: &[Field],
        free: &[(RegexAst, ShapeId)],
        min: u64,
        max: Option<u64>,
        symbol: SymIdx,
    ) -> Result2<()> {
        let (open, close) = (self.open("{")?, self.close("}")?);
        // Properties are counted as far as it matters: whether there was one at least, for the comma.
        let top = max.unwrap_or(min).max(1);
        let state = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let mut next: Vec<Option<SymIdx>> = Vec::new();
        for count in 0..=top {
            next.push(self.free(free, count, min, max)?);
        }
        for field in fields.iter().rev() {
            let value = self.symbol(field.value)?;
            let mut name = String::new();
            quote(&field.name, &mut name);
            let mut here = Vec::new();
            for count in 0..=top {
                let full = max.is_some_and(|max| count >= max);
                let after = if full { None } else { next[state((count + 1).min(top))] };
                let taken = match after {
                    Some(after) => {
                        let key = self.key(RegexAst::Literal(name.clone()), count == 0)?;
                        Some([key, value, after])
                    }
                    None => None,
                };
                let skipped = if field.required { None } else { next[state(count)] };
                here.push(match (taken, skipped) {
                    (None, None) => None,
                    (None, Some(skipped)) => Some(skipped),
                    (Some(taken), None) => Some(self.sequence(&taken)?),
                    (Some(taken), Some(skipped)) => {
                        let symbol = self.fresh()?;
                        self.rule(symbol, &taken)?;
                        self.rule(symbol, &[skipped])?;
                        Some(symbol)
                    }
                });
            }
            next = here;
        }
        match next.first() {
            Some(Some(inner)) => self.rule(symbol, &[open, *inner, close]),
            // Pruning counts less finely; such an object never closes and is never begun.
            _ => Err(contradiction()),
        }
    }

    /// Properties in any order. What is not tracked may come twice here, and goes between the tracked ones.
    fn any_order(
        &mut self,
        fields: &[Field],
        tracked: usize,
        free: &[(RegexAst, ShapeId)],
        (min, max): (u64, Option<u64>),
        symbol: SymIdx,
    ) -> Result2<()> {
        let (open, close) = (self.open("{")?, self.close("}")?);
        // Each property as the first and as a later one.
        let mut pairs: Vec<[SymIdx; 2]> = Vec::new();
        for field in fields {
            let value = self.symbol(field.value)?;
            let mut name = String::new();
            quote(&field.name, &mut name);
            let mut pair = |first: bool| {
                let key = self.key(RegexAst::Literal(name.clone()), first)?;
                self.sequence(&[key, value])
            };
            pairs.push([pair(true)?, pair(false)?]);
        }
        let (pairs, mut others) = (pairs[..tracked].to_vec(), pairs[tracked..].to_vec());
        for (language, value) in free {
            let value = self.symbol(*value)?;
            let quoted = self.quoted(language.clone());
            let mut pair = |first: bool| {
                let key = self.free_key(quoted.clone(), first)?;
                self.sequence(&[key, value])
            };
            others.push([pair(true)?, pair(false)?]);
        }
        let column = |i: usize| others.iter().map(|pair| pair[i]).collect::<Vec<_>>();
        let others = match (column(0), column(1)) {
            (first, _) if first.is_empty() => None,
            (first, later) => {
                let (first, later) = (self.either(&first)?, self.either(&later)?);
                Some((first, self.star(later)?))
            }
        };
        let needed = (0..tracked).filter(|&i| fields[i].required).fold(0_usize, |set, i| set | 1 << i);
        let ends = |set: usize| {
            let count = u64::from(set.count_ones());
            set & needed == needed && count >= min && max.is_none_or(|max| count <= max)
        };
        let full = |set: usize| max.is_some_and(|max| u64::from(set.count_ones()) >= max);
        // What may follow when the properties of a set have come, one at least; `None`: nothing leads to an end.
        let mut after: Vec<Option<SymIdx>> = vec![None; 1 << tracked];
        let between: Vec<SymIdx> = others.iter().map(|(_, more)| *more).collect();
        for set in (0..1_usize << tracked).rev() {
            let mut ways: Vec<Vec<SymIdx>> = Vec::new();
            if ends(set) {
                ways.push(between.clone());
            }
            for (i, pair) in pairs.iter().enumerate().filter(|(i, _)| set >> i & 1 == 0 && !full(set)) {
                if let Some(next) = after[set | 1 << i] {
                    ways.push([between.as_slice(), &[pair[1], next]].concat());
                }
            }
            if !ways.is_empty() {
                let state = self.fresh()?;
                ways.iter().try_for_each(|way| self.rule(state, way))?;
                after[set] = Some(state);
            }
        }
        let mut ways: Vec<Vec<SymIdx>> = Vec::new();
        if ends(0) {
            ways.push(Vec::new());
        }
        for (i, pair) in pairs.iter().enumerate().filter(|_| !full(0)) {
            ways.extend(after[1 << i].map(|next| vec![pair[0], next]));
        }
        if let (Some((first, _)), Some(next)) = (others, after[0]) {
            ways.push(vec![first, next]);
        }
        if ways.is_empty() {
            return Err(contradiction());
        }
        let inner = self.fresh()?;
        ways.iter().try_for_each(|way| self.rule(inner, way))?;
        self.rule(symbol, &[open, inner, close])
    }

    /// Free keys behind `count` properties; `None`: too few or too many come together.
    fn free(
        &mut self,
        free: &[(RegexAst, ShapeId)],
        count: u64,
        min: u64,
        max: Option<u64>,
    ) -> Result2<Option<SymIdx>> {
        let low = min.saturating_sub(count);
        let high = max.map(|max| max.saturating_sub(count));
        if free.is_empty() || high == Some(0) {
            return if low == 0 { Ok(Some(self.empty()?)) } else { Ok(None) };
        }
        let mut pairs = [Vec::new(), Vec::new()];
        for (language, value) in free {
            let value = self.symbol(*value)?;
            let key = self.quoted(language.clone());
            for (first, ways) in [(true, 0), (false, 1)] {
                if first && count > 0 {
                    continue;
                }
                let key = self.free_key(key.clone(), first)?;
                pairs[ways].push(self.sequence(&[key, value])?);
            }
        }
        let more = self.either(&pairs[1])?;
        if count > 0 {
            return Ok(Some(self.repeat(more, low, high)?));
        }
        let first = self.either(&pairs[0])?;
        let more = self.repeat(more, low.saturating_sub(1), high.map(|high| high - 1))?;
        Ok(Some(if low == 0 { self.optional(&[first, more])? } else { self.sequence(&[first, more])? }))
    }
}
