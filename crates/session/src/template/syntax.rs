//! A template's statements and expressions, parsed as jinja2 parses them.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::lexer::{Spot, Token, tokens};

/// Nesting of parentheses, blocks and operators. Templates in use stay below twenty.
const MAX_DEPTH: usize = 60;
/// Operators, calls and filters in a row within one tag: each nests what stands before it.
const MAX_CHAIN: usize = 400;

pub(super) type Body = Rc<Vec<Statement>>;

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Data(String),
    Emit(Expr),
    For(Rc<For>),
    If {
        branches: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    Set(Target, Expr),
    Capture {
        target: Target,
        filters: Vec<Call>,
        body: Body,
    },
    With(Vec<(Target, Expr)>, Body),
    Macro(Rc<Macro>),
    CallBlock {
        call: Expr,
        caller: Rc<Macro>,
    },
    FilterBlock {
        filters: Vec<Call>,
        body: Body,
    },
    /// A scope of its own, as `{% generation %}` is.
    Scope(Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iter: Expr,
    pub(super) test: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    Attribute(String, String),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) parameters: Vec<(String, Option<Expr>)>,
    pub(super) body: Body,
    /// Names that its body mentions, as far as they change how it may be called.
    pub(super) takes: BTreeSet<&'static str>,
}

/// A filter or test by name, with its arguments.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Arguments,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
    pub(super) splat: Option<Box<Expr>>,
    pub(super) named_splat: Option<Box<Expr>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Op {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Binary(Op, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    If { test: Box<Expr>, then: Box<Expr>, otherwise: Option<Box<Expr>> },
    Filter(Box<Expr>, Call),
    Test(Box<Expr>, Call),
    Attribute(Box<Expr>, String),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Arguments),
}

struct Parser {
    tokens: Vec<Spot>,
    at: usize,
    depth: usize,
    loops: usize,
    /// Links of the chains of this tag.
    chain: usize,
    /// Of each macro that is being read.
    mentioned: Vec<BTreeSet<&'static str>>,
}

/// Parses a template.
///
/// # Errors
/// What is not a template or is not supported, with its line.
pub(super) fn parse(template: &str) -> Result<Body, String> {
    let mut parser = Parser { tokens: tokens(template)?, at: 0, depth: 0, loops: 0, chain: 0, mentioned: Vec::new() };
    let (body, end) = parser.body(&[])?;
    debug_assert!(end.is_none());
    Ok(body)
}

type Parsed<T> = Result<T, String>;

impl Parser {
    fn token(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|s| &s.token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |s| s.line)
    }

    fn fail<T>(&self, what: impl std::fmt::Display) -> Parsed<T> {
        Err(format!("line {}: {what}", self.line()))
    }

    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = match self.token() {
            None => "the end of the template".to_owned(),
            Some(Token::Data(_)) => "text".to_owned(),
            Some(Token::VariableBegin) => "{{".to_owned(),
            Some(Token::VariableEnd) => "}}".to_owned(),
            Some(Token::BlockBegin) => "{%".to_owned(),
            Some(Token::BlockEnd) => "%}".to_owned(),
            Some(Token::Name(name)) => format!("'{name}'"),
            Some(Token::Str(_)) => "a string".to_owned(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
            Some(Token::Op(op)) => format!("'{op}'"),
        };
        self.fail(format!("{wanted} is needed, found {found}"))
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Some(Token::Op(found)) if *found == op)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Some(Token::Name(found)) if found == name)
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn op(&mut self, op: &str) -> Parsed<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("'{op}'")) }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.token() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn block_end(&mut self) -> Parsed<()> {
        if self.token() == Some(&Token::BlockEnd) {
            self.at += 1;
            Ok(())
        } else {
            self.unexpected("'%}'")
        }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(format!("nested deeper than {MAX_DEPTH}"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a block that begins with one of `ends`, whose name is consumed and returned.
    fn body(&mut self, ends: &[&'static str]) -> Parsed<(Body, Option<&'static str>)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            self.chain = 0;
            let kind = match self.token() {
                None if ends.is_empty() => return Ok((Rc::new(body), None)),
                None => return self.fail(format!("the template ends before {{% {} %}}", ends.join(" or "))),
                Some(Token::Data(text)) => {
                    let kind = Kind::Data(text.clone());
                    self.at += 1;
                    kind
                }
                Some(Token::VariableBegin) => {
                    self.at += 1;
                    let expr = self.tuple(true, &[], false)?;
                    if self.token() != Some(&Token::VariableEnd) {
                        return self.unexpected("'}}'");
                    }
                    self.at += 1;
                    Kind::Emit(expr)
                }
                Some(Token::BlockBegin) => {
                    self.at += 1;
                    if let Some(end) = ends.iter().find(|end| self.is_name(end)) {
                        self.at += 1;
                        return Ok((Rc::new(body), Some(end)));
                    }
                    self.deeper(Self::statement)?
                }
                Some(_) => return self.unexpected("text or a tag"),
            };
            body.push(Statement { line, kind });
        }
    }

    fn ended(&mut self, end: &'static str) -> Parsed<Body> {
        let (body, _) = self.body(&[end])?;
        self.block_end()?;
        Ok(body)
    }

    fn statement(&mut self) -> Parsed<Kind> {
        let name = self.name()?;
        match name.as_str() {
            "for" => self.for_loop(),
            "if" => self.condition(),
            "set" => self.set(),
            "with" => {
                let mut values = Vec::new();
                while self.token() != Some(&Token::BlockEnd) {
                    if !values.is_empty() {
                        self.op(",")?;
                    }
                    let target = self.target(false, true)?;
                    self.op("=")?;
                    values.push((target, self.expression()?));
                }
                self.block_end()?;
                Ok(Kind::With(values, self.ended("endwith")?))
            }
            "macro" => {
                let name = self.name()?;
                let parameters = self.parameters()?;
                self.block_end()?;
                Ok(Kind::Macro(self.macro_body(name, parameters, "endmacro")?))
            }
            "call" => {
                let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
                let call = self.expression()?;
                if !matches!(call, Expr::Call(..)) {
                    return self.fail("{% call %} needs a call");
                }
                self.block_end()?;
                Ok(Kind::CallBlock { call, caller: self.macro_body("caller".into(), parameters, "endcall")? })
            }
            "filter" => {
                let filters = self.filters()?;
                self.block_end()?;
                Ok(Kind::FilterBlock { filters, body: self.ended("endfilter")? })
            }
            "generation" => {
                self.block_end()?;
                Ok(Kind::Scope(self.ended("endgeneration")?))
            }
            "print" => {
                let expr = self.tuple(true, &[], false)?;
                self.block_end()?;
                Ok(Kind::Emit(expr))
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.fail(format!("{{% {name} %}} outside a loop"));
                }
                self.block_end()?;
                Ok(if name == "break" { Kind::Break } else { Kind::Continue })
            }
            "block" | "extends" | "include" | "import" | "from" | "autoescape" | "do" | "trans" | "debug" => {
                self.fail(format!("{{% {name} %}} is not supported in a chat template"))
            }
            _ => self.fail(format!("no statement {{% {name} %}}")),
        }
    }

    fn for_loop(&mut self) -> Parsed<Kind> {
        let target = self.target(false, false)?;
        if !self.skip_name("in") {
            return self.unexpected("'in'");
        }
        let iter = self.tuple(false, &["recursive"], false)?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let (body, end) = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        self.block_end()?;
        let otherwise = if end == Some("else") { self.ended("endfor")? } else { Body::default() };
        Ok(Kind::For(Rc::new(For { target, iter, test, recursive, body, otherwise })))
    }

    fn condition(&mut self) -> Parsed<Kind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false, &[], false)?;
            self.block_end()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            let otherwise = match end {
                Some("elif") => continue,
                Some("else") => {
                    self.block_end()?;
                    self.ended("endif")?
                }
                _ => {
                    self.block_end()?;
                    Body::default()
                }
            };
            return Ok(Kind::If { branches, otherwise });
        }
    }

    fn set(&mut self) -> Parsed<Kind> {
        let target = self.target(true, false)?;
        if self.skip_op("=") {
            let value = self.tuple(true, &[], false)?;
            self.block_end()?;
            return Ok(Kind::Set(target, value));
        }
        let filters = if self.skip_op("|") { self.filters()? } else { Vec::new() };
        self.block_end()?;
        Ok(Kind::Capture { target, filters, body: self.ended("endset")? })
    }

    /// A chain of filters without what they are applied to.
    fn filters(&mut self) -> Parsed<Vec<Call>> {
        let mut filters = vec![self.filter()?];
        while self.skip_op("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn filter(&mut self) -> Parsed<Call> {
        let mut name = self.name()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.name()?);
        }
        let arguments = if self.is_op("(") { self.arguments()? } else { Arguments::default() };
        Ok(Call { name, arguments })
    }

    /// What is assigned to.
    fn target(&mut self, namespace: bool, one: bool) -> Parsed<Target> {
        let mut targets = Vec::new();
        let mut tuple = false;
        loop {
            if self.is_name("in") || matches!(self.token(), Some(Token::BlockEnd)) || self.is_op(")") || self.is_op("=")
            {
                break;
            }
            targets.push(if self.skip_op("(") {
                let inner = self.deeper(|p| p.target(false, false))?;
                self.op(")")?;
                inner
            } else {
                let name = self.name()?;
                if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
                    return self.fail(format!("cannot assign to '{name}'"));
                }
                self.mention(&name);
                if namespace && self.skip_op(".") { Target::Attribute(name, self.name()?) } else { Target::Name(name) }
            });
            if one || !self.skip_op(",") {
                break;
            }
            tuple = true;
        }
        match (tuple, targets.len()) {
            (false, 1) => Ok(targets.swap_remove(0)),
            (true, _) => Ok(Target::Tuple(targets)),
            _ => self.unexpected("a name"),
        }
    }

    fn parameters(&mut self) -> Parsed<Vec<(String, Option<Expr>)>> {
        self.op("(")?;
        let mut parameters: Vec<(String, Option<Expr>)> = Vec::new();
        while !self.is_op(")") {
            if !parameters.is_empty() {
                self.op(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|p| p.1.is_some()) {
                return self.fail("a parameter without a default behind one with");
            }
            parameters.push((name, default));
        }
        self.op(")")?;
        Ok(parameters)
    }

    fn macro_body(
        &mut self,
        name: String,
        parameters: Vec<(String, Option<Expr>)>,
        end: &'static str,
    ) -> Parsed<Rc<Macro>> {
        self.mentioned.push(BTreeSet::new());
        let loops = std::mem::take(&mut self.loops);
        let body = self.ended(end)?;
        self.loops = loops;
        let takes = self.mentioned.pop().unwrap_or_default();
        Ok(Rc::new(Macro { name, parameters, body, takes }))
    }

    fn mention(&mut self, name: &str) {
        if let (Some(known), Some(mentioned)) =
            (["varargs", "kwargs", "caller"].into_iter().find(|known| *known == name), self.mentioned.last_mut())
        {
            mentioned.insert(known);
        }
    }

    fn expression(&mut self) -> Parsed<Expr> {
        self.deeper(Self::conditional)
    }

    fn conditional(&mut self) -> Parsed<Expr> {
        let mut expr = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(Box::new(self.deeper(Self::conditional)?)) } else { None };
            expr = Expr::If { test: Box::new(test), then: Box::new(expr), otherwise };
            self.chained()?;
        }
        Ok(expr)
    }

    fn chained(&mut self) -> Parsed<()> {
        self.chain += 1;
        if self.chain > MAX_CHAIN { self.fail(format!("more than {MAX_CHAIN} operators in one tag")) } else { Ok(()) }
    }

    fn or(&mut self) -> Parsed<Expr> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
            self.chained()?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed<Expr> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            left = Expr::And(Box::new(left), Box::new(self.not()?));
            self.chained()?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Parsed<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.deeper(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Parsed<Expr> {
        let left = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = if self.skip_op("==") {
                Comparison::Eq
            } else if self.skip_op("!=") {
                Comparison::Ne
            } else if self.skip_op("<=") {
                Comparison::Le
            } else if self.skip_op(">=") {
                Comparison::Ge
            } else if self.skip_op("<") {
                Comparison::Lt
            } else if self.skip_op(">") {
                Comparison::Gt
            } else if self.skip_name("in") {
                Comparison::In
            } else if self.is_name("not")
                && matches!(self.tokens.get(self.at + 1).map(|s| &s.token), Some(Token::Name(n)) if n == "in")
            {
                self.at += 2;
                Comparison::NotIn
            } else {
                break;
            };
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { left } else { Expr::Compare(Box::new(left), rest) })
    }

    fn binary(&mut self, ops: &[(&str, Op)], next: fn(&mut Self) -> Parsed<Expr>) -> Parsed<Expr> {
        let mut left = next(self)?;
        while let Some((_, op)) = ops.iter().find(|(text, _)| self.is_op(text)) {
            self.at += 1;
            left = Expr::Binary(*op, Box::new(left), Box::new(next(self)?));
            self.chained()?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.binary(&[("+", Op::Add), ("-", Op::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Parsed<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Parsed<Expr> {
        let ops = [("*", Op::Mul), ("/", Op::Div), ("//", Op::FloorDiv), ("%", Op::Rem)];
        self.binary(&ops, Self::power)
    }

    fn power(&mut self) -> Parsed<Expr> {
        self.binary(&[("**", Op::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Parsed<Expr> {
        let expr = if self.skip_op("-") {
            Expr::Neg(Box::new(self.deeper(|p| p.unary(false))?))
        } else if self.skip_op("+") {
            Expr::Pos(Box::new(self.deeper(|p| p.unary(false))?))
        } else {
            self.deeper(Self::primary)?
        };
        let expr = self.postfix(expr)?;
        if filters { self.filtered(expr) } else { Ok(expr) }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let Some(token) = self.token().cloned() else { return self.unexpected("an expression") };
        self.at += 1;
        Ok(match token {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => {
                    self.mention(&name);
                    Expr::Name(name)
                }
            },
            Token::Str(mut text) => {
                while let Some(Token::Str(more)) = self.token() {
                    text.push_str(more);
                    self.at += 1;
                }
                Expr::Str(text)
            }
            Token::Int(n) => Expr::Int(n),
            Token::Float(x) => Expr::Float(x),
            Token::Op("(") => {
                let inner = self.tuple(true, &[], true)?;
                self.op(")")?;
                inner
            }
            Token::Op("[") => {
                let mut items = Vec::new();
                while !self.is_op("]") {
                    if !items.is_empty() {
                        self.op(",")?;
                    }
                    if self.is_op("]") {
                        break;
                    }
                    items.push(self.expression()?);
                }
                self.op("]")?;
                Expr::List(items)
            }
            Token::Op("{") => {
                let mut items = Vec::new();
                while !self.is_op("}") {
                    if !items.is_empty() {
                        self.op(",")?;
                    }
                    if self.is_op("}") {
                        break;
                    }
                    let key = self.expression()?;
                    self.op(":")?;
                    items.push((key, self.expression()?));
                }
                self.op("}")?;
                Expr::Dict(items)
            }
            _ => {
                self.at -= 1;
                return self.unexpected("an expression");
            }
        })
    }

    fn tuple(&mut self, conditional: bool, ends: &[&str], parentheses: bool) -> Parsed<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let end = matches!(self.token(), Some(Token::VariableEnd | Token::BlockEnd))
                || self.is_op(")")
                || ends.iter().any(|end| self.is_name(end));
            if end {
                break;
            }
            items.push(if conditional { self.expression()? } else { self.deeper(Self::or)? });
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match (is_tuple, items.len()) {
            (false, 1) => Ok(items.swap_remove(0)),
            (false, _) if !parentheses => self.unexpected("an expression"),
            _ => Ok(Expr::Tuple(items)),
        }
    }

    fn postfix(&mut self, mut expr: Expr) -> Parsed<Expr> {
        loop {
            expr = if self.skip_op(".") {
                match self.token().cloned() {
                    Some(Token::Name(name)) => {
                        self.at += 1;
                        Expr::Attribute(Box::new(expr), name)
                    }
                    Some(Token::Int(index)) => {
                        self.at += 1;
                        Expr::Item(Box::new(expr), Box::new(Expr::Int(index)))
                    }
                    _ => return self.unexpected("a name or a number"),
                }
            } else if self.skip_op("[") {
                self.subscript(expr)?
            } else if self.is_op("(") {
                Expr::Call(Box::new(expr), self.arguments()?)
            } else {
                return Ok(expr);
            };
            self.chained()?;
        }
    }

    fn subscript(&mut self, expr: Expr) -> Parsed<Expr> {
        let mut parts: [Option<Box<Expr>>; 3] = [None, None, None];
        let mut at = 0;
        loop {
            if self.skip_op(":") {
                at += 1;
                if at > 2 {
                    return self.unexpected("']'");
                }
            } else if self.is_op("]") {
                break;
            } else if parts[at].is_none() {
                parts[at] = Some(Box::new(self.expression()?));
            } else {
                return self.unexpected("']'");
            }
        }
        self.op("]")?;
        match (at, parts) {
            (0, [Some(index), _, _]) => Ok(Expr::Item(Box::new(expr), index)),
            (0, _) => self.unexpected("an index"),
            (_, parts) => Ok(Expr::Slice(Box::new(expr), parts)),
        }
    }

    fn arguments(&mut self) -> Parsed<Arguments> {
        self.op("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            let named = match (self.token(), self.tokens.get(self.at + 1).map(|s| &s.token)) {
                (Some(Token::Name(name)), Some(Token::Op("="))) => Some(name.clone()),
                _ => None,
            };
            if self.skip_op("**") {
                if arguments.named_splat.is_some() {
                    return self.fail("two ** in one call");
                }
                arguments.named_splat = Some(Box::new(self.expression()?));
            } else if self.skip_op("*") {
                if arguments.splat.is_some() || arguments.named_splat.is_some() {
                    return self.fail("* behind another * or ** in one call");
                }
                arguments.splat = Some(Box::new(self.expression()?));
            } else if let Some(name) = named {
                if arguments.named_splat.is_some() {
                    return self.fail("an argument behind **");
                }
                self.at += 2;
                arguments.named.push((name, self.expression()?));
            } else {
                if !arguments.named.is_empty() || arguments.splat.is_some() || arguments.named_splat.is_some() {
                    return self.fail("a positional argument behind a named one");
                }
                arguments.positional.push(self.expression()?);
            }
        }
        self.op(")")?;
        Ok(arguments)
    }

    fn filtered(&mut self, mut expr: Expr) -> Parsed<Expr> {
        loop {
            expr = if self.skip_op("|") {
                let filter = self.filter()?;
                Expr::Filter(Box::new(expr), filter)
            } else if self.skip_name("is") {
                self.test(expr)?
            } else if self.is_op("(") {
                Expr::Call(Box::new(expr), self.arguments()?)
            } else {
                return Ok(expr);
            };
            self.chained()?;
        }
    }

    fn test(&mut self, expr: Expr) -> Parsed<Expr> {
        let negated = self.skip_name("not");
        let mut name = self.name()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.name()?);
        }
        let mut arguments = Arguments::default();
        if self.is_op("(") {
            arguments = self.arguments()?;
        } else if match self.token() {
            Some(Token::Name(name)) => !["else", "or", "and"].contains(&name.as_str()),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_)) => true,
            _ => self.is_op("[") || self.is_op("{"),
        } {
            if self.is_name("is") {
                return self.fail("tests cannot be chained with 'is'");
            }
            let argument = self.deeper(Self::primary)?;
            arguments.positional.push(self.postfix(argument)?);
        }
        let test = Expr::Test(Box::new(expr), Call { name, arguments });
        Ok(if negated { Expr::Not(Box::new(test)) } else { test })
    }
}
