//! Runs a parsed template: scopes, loops, macros, operators.
//!
//! The semantics are jinja2's over Python's values, in the environment that transformers sets up. What is not
//! supported ends the rendering with its name; nothing is rendered otherwise than there.

use std::cell::RefCell;
use std::rc::Rc;

use super::builtins;
use super::machine::{Given, Machine, Run, hashable, namespace_name, undefined};
use super::methods;
use super::python::LocalTime;
use super::syntax::{Arguments, Body, Call, Comparison, Expr, For, Kind, Op, Target};
use super::text::{Ch, Text};
use super::value::{Dict, LoopState, MacroValue, Number, Scope, Value, compare, equal};

/// Depth of expressions, statements and macro calls.
const MAX_DEPTH: usize = 1000;

enum Flow {
    On,
    Break,
    Continue,
}

/// Renders a template with these variables, to at most `limit` characters.
///
/// # Errors
/// The template's own refusal, what is not supported, or what costs too much.
pub(super) fn render(body: &Body, variables: Vec<(&str, Value)>, now: LocalTime, limit: usize) -> Run<Text> {
    let machine = Machine::new(now, limit);
    let scope = Rc::new(Scope { names: RefCell::default(), outer: None });
    for (name, value) in variables {
        scope.set(name, value);
    }
    // What a template sets at its top does not replace what it was given: a scope of its own.
    let scope = Scope::inside(&scope);
    let mut out = Vec::new();
    machine.body(body, &scope, &mut out)?;
    Ok(out.into())
}

impl Machine {
    fn deeper<T>(&self, run: impl FnOnce() -> Run<T>) -> Run<T> {
        self.pay(0)?;
        if self.depth.get() >= MAX_DEPTH {
            return Err(format!("it nests or calls deeper than {MAX_DEPTH}"));
        }
        self.depth.set(self.depth.get() + 1);
        let done = run();
        self.depth.set(self.depth.get() - 1);
        done
    }

    fn emit(&self, out: &mut Vec<Ch>, text: &[Ch]) -> Run<()> {
        self.pay(text.len())?;
        if out.len() + text.len() > self.limit {
            return Err(format!("it renders more than {} bytes", self.limit));
        }
        out.extend_from_slice(text);
        Ok(())
    }

    fn body(&self, body: &Body, scope: &Rc<Scope>, out: &mut Vec<Ch>) -> Run<Flow> {
        for statement in body.iter() {
            let flow = self.deeper(|| self.statement(&statement.kind, scope, out));
            // The innermost line is the one to name.
            let flow =
                flow.map_err(|e| if e.starts_with("line ") { e } else { format!("line {}: {e}", statement.line) })?;
            if !matches!(flow, Flow::On) {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn captured(&self, body: &Body, scope: &Rc<Scope>) -> Run<Text> {
        let mut out = Vec::new();
        self.body(body, scope, &mut out)?;
        Ok(out.into())
    }

    fn statement(&self, kind: &Kind, scope: &Rc<Scope>, out: &mut Vec<Ch>) -> Run<Flow> {
        match kind {
            Kind::Data(text) => {
                self.pay(text.len())?;
                self.emit(out, Text::own(text).chars())?;
            }
            Kind::Emit(expr) => {
                let text = self.printed(expr, scope)?;
                self.emit(out, text.chars())?;
            }
            Kind::For(what) => {
                let items = self.expr(&what.iter, scope)?;
                return self.run_loop(what, &items, scope, out, 0);
            }
            Kind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.expr(test, scope)?.truth() {
                        return self.body(body, scope, out);
                    }
                }
                return self.body(otherwise, scope, out);
            }
            Kind::Set(target, value) => {
                let value = self.expr(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::Capture { target, filters, body } => {
                let mut value = Value::Str(self.captured(body, &Scope::inside(scope))?);
                for filter in filters {
                    value = self.filter(value, filter, scope)?;
                }
                self.assign(target, value, scope)?;
            }
            Kind::With(values, body) => {
                let inner = Scope::inside(scope);
                for (target, value) in values {
                    let value = self.expr(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            Kind::Macro(definition) => {
                let value = MacroValue { definition: definition.clone(), scope: scope.clone() };
                scope.set(&definition.name, Value::Macro(Rc::new(value)));
            }
            Kind::CallBlock { call, caller } => {
                let caller = Value::Macro(Rc::new(MacroValue { definition: caller.clone(), scope: scope.clone() }));
                let Expr::Call(callee, arguments) = call else { return Err("{% call %} needs a call".into()) };
                let callee = self.expr(callee, scope)?;
                let mut given = self.arguments(arguments, scope)?;
                given.named.push(("caller".into(), caller));
                let value = self.call(&callee, given)?;
                let text = self.print(&value)?;
                self.emit(out, text.chars())?;
            }
            Kind::FilterBlock { filters, body } => {
                let mut value = Value::Str(self.captured(body, &Scope::inside(scope))?);
                for filter in filters {
                    value = self.filter(value, filter, scope)?;
                }
                let text = self.print(&value)?;
                self.emit(out, text.chars())?;
            }
            Kind::Scope(body) => {
                // A function of its own in jinja2: no break or continue leaves it.
                if !matches!(self.body(body, &Scope::inside(scope), out)?, Flow::On) {
                    return Err("a loop cannot be left from inside {% generation %}".into());
                }
            }
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn run_loop(&self, what: &Rc<For>, items: &Value, scope: &Rc<Scope>, out: &mut Vec<Ch>, depth: usize) -> Run<Flow> {
        let For { target, test, recursive, body, otherwise, .. } = &**what;
        self.pay(items.length().unwrap_or(0))?;
        let Some(mut items) = items.elements() else {
            return Err(format!("a {} cannot be gone through", items.type_name()));
        };
        if let Some(test) = test {
            let mut kept = Vec::new();
            for item in items {
                let inner = Scope::inside(scope);
                self.assign(target, item.clone(), &inner)?;
                if self.expr(test, &inner)?.truth() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        let recursion = recursive.then(|| (what.clone(), scope.clone()));
        let state =
            Rc::new(RefCell::new(LoopState { items: items.clone(), index: 0, depth, changed: None, recursion }));
        let mut ran = false;
        for (index, item) in items.into_iter().enumerate() {
            ran = true;
            state.borrow_mut().index = index;
            let inner = Scope::inside(scope);
            inner.set("loop", Value::Loop(state.clone()));
            self.assign(target, item, &inner)?;
            if matches!(self.body(body, &inner, out)?, Flow::Break) {
                break;
            }
        }
        if !ran {
            return self.body(otherwise, &Scope::inside(scope), out);
        }
        Ok(Flow::On)
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Run<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attribute(name, attribute) => match scope.get(name) {
                Some(Value::Namespace(dict)) => {
                    namespace_name(attribute)?;
                    dict.borrow_mut().insert(Value::str(attribute), value);
                }
                _ => return Err(format!("'{name}' is not a namespace, whose attributes alone can be set")),
            },
            Target::Tuple(targets) => {
                let Some(values) = value.elements() else {
                    return Err(format!("a {} cannot be unpacked", value.type_name()));
                };
                if values.len() != targets.len() {
                    return Err(format!("{} values for {} names", values.len(), targets.len()));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    /// What `{{ }}` or `~` prints. `safe` and `escape` make a text of another type, whose operators escape what they
    /// are given; where the result is printed at once they are what they look like.
    fn printed(&self, expr: &Expr, scope: &Rc<Scope>) -> Run<Text> {
        if let Expr::Filter(inner, call) = expr
            && let "safe" | "e" | "escape" | "forceescape" = call.name.as_str()
        {
            let text = self.printed(inner, scope)?;
            return if call.name == "safe" { Ok(text) } else { builtins::escape(&text) };
        }
        self.print(&self.expr(expr, scope)?)
    }

    pub(super) fn print(&self, value: &Value) -> Run<Text> {
        let text = value.print().ok_or_else(|| format!("a {} cannot be printed", value.type_name()))?;
        self.pay(text.len())?;
        Ok(text)
    }

    fn expr(&self, expr: &Expr, scope: &Rc<Scope>) -> Run<Value> {
        self.deeper(|| self.evaluate(expr, scope))
    }

    fn evaluate(&self, expr: &Expr, scope: &Rc<Scope>) -> Run<Value> {
        Ok(match expr {
            Expr::None => Value::None,
            Expr::Bool(b) => Value::Bool(*b),
            Expr::Int(n) => Value::Int(*n),
            Expr::Float(x) => Value::Float(*x),
            Expr::Str(text) => {
                self.pay(text.len())?;
                Value::str(text)
            }
            Expr::Name(name) => self.name(name, scope),
            Expr::List(items) => Value::list(self.all(items, scope)?),
            Expr::Tuple(items) => Value::Tuple(Rc::new(self.all(items, scope)?)),
            Expr::Dict(items) => {
                let mut dict = Dict::default();
                for (key, value) in items {
                    let key = self.expr(key, scope)?;
                    hashable(&key)?;
                    dict.insert(key, self.expr(value, scope)?);
                }
                Value::Dict(Rc::new(dict))
            }
            Expr::Neg(inner) => match self.expr(inner, scope)?.number() {
                Some(Number::Int(n)) => Value::Int(n.checked_neg().ok_or_else(too_large)?),
                Some(Number::Float(x)) => Value::Float(-x),
                None => return Err("'-' needs a number".into()),
            },
            Expr::Pos(inner) => match self.expr(inner, scope)?.number() {
                Some(Number::Int(n)) => Value::Int(n),
                Some(Number::Float(x)) => Value::Float(x),
                None => return Err("'+' needs a number".into()),
            },
            Expr::Not(inner) => Value::Bool(!self.expr(inner, scope)?.truth()),
            Expr::And(left, right) => {
                let left = self.expr(left, scope)?;
                if left.truth() { self.expr(right, scope)? } else { left }
            }
            Expr::Or(left, right) => {
                let left = self.expr(left, scope)?;
                if left.truth() { left } else { self.expr(right, scope)? }
            }
            Expr::Binary(op, left, right) => {
                let (left, right) = (self.expr(left, scope)?, self.expr(right, scope)?);
                self.binary(*op, &left, &right)?
            }
            Expr::Concat(parts) => {
                let mut out = Vec::new();
                for part in parts {
                    let text = self.printed(part, scope)?;
                    self.pay(text.len())?;
                    out.extend_from_slice(text.chars());
                }
                Value::Str(out.into())
            }
            Expr::Compare(first, rest) => {
                let mut left = self.expr(first, scope)?;
                for (comparison, right) in rest {
                    let right = self.expr(right, scope)?;
                    if !self.compared(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::If { test, then, otherwise } => match (self.expr(test, scope)?.truth(), otherwise) {
                (true, _) => self.expr(then, scope)?,
                (false, Some(otherwise)) => self.expr(otherwise, scope)?,
                (false, None) => Value::undefined("an inline if without else that did not hold"),
            },
            Expr::Filter(inner, call) => {
                // Of a name that is not defined, a filter may still make something.
                let value = self.expr(inner, scope)?;
                self.filter(value, call, scope)?
            }
            Expr::Test(inner, call) => {
                let value = self.expr(inner, scope)?;
                let given = self.arguments(&call.arguments, scope)?;
                Value::Bool(builtins::test(self, &call.name, &value, &given)?)
            }
            Expr::Attribute(inner, name) => {
                let value = self.expr(inner, scope)?;
                self.attribute(&value, name)?
            }
            Expr::Item(inner, index) => {
                let (value, index) = (self.expr(inner, scope)?, self.expr(index, scope)?);
                self.item(&value, &index)?
            }
            Expr::Slice(inner, parts) => {
                let value = self.expr(inner, scope)?;
                let mut bounds = [None; 3];
                for (bound, part) in bounds.iter_mut().zip(parts) {
                    *bound = match part {
                        None => None,
                        Some(part) => match self.expr(part, scope)? {
                            Value::None => None,
                            Value::Int(n) => Some(n),
                            Value::Bool(b) => Some(i64::from(b)),
                            other => return Err(format!("a slice from or to a {}", other.type_name())),
                        },
                    };
                }
                self.slice(&value, bounds)?
            }
            Expr::Call(callee, arguments) => {
                // The callee comes first, as in Python.
                let value = self.expr(callee, scope)?;
                self.call(&value, self.arguments(arguments, scope)?)?
            }
        })
    }

    fn all(&self, items: &[Expr], scope: &Rc<Scope>) -> Run<Vec<Value>> {
        items.iter().map(|item| self.expr(item, scope)).collect()
    }

    fn name(&self, name: &str, scope: &Rc<Scope>) -> Value {
        match scope.get(name) {
            Some(value) => value,
            None => match builtins::FUNCTIONS.iter().find(|f| **f == name) {
                Some(function) => Value::Function(function),
                None => Value::undefined(format!("'{name}'")),
            },
        }
    }

    fn arguments(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Run<Given> {
        let mut given = Given { positional: self.all(&arguments.positional, scope)?, named: Vec::new() };
        for (name, value) in &arguments.named {
            given.named.push((name.clone(), self.expr(value, scope)?));
        }
        if let Some(splat) = &arguments.splat {
            let value = self.expr(splat, scope)?;
            given.positional.extend(value.elements().ok_or("'*' needs a list")?);
        }
        if let Some(splat) = &arguments.named_splat {
            match self.expr(splat, scope)? {
                Value::Dict(dict) => {
                    for (name, value) in dict.iter() {
                        let Value::Str(name) = name else { return Err("'**' needs keys that are strings".into()) };
                        given.named.push((name.plain(), value.clone()));
                    }
                }
                other => return Err(format!("'**' needs a dictionary, not a {}", other.type_name())),
            }
        }
        for (at, (name, _)) in given.named.iter().enumerate() {
            if given.named[..at].iter().any(|(other, _)| other == name) {
                return Err(format!("the argument '{name}' is given twice"));
            }
        }
        Ok(given)
    }

    fn filter(&self, value: Value, call: &Call, scope: &Rc<Scope>) -> Run<Value> {
        let given = self.arguments(&call.arguments, scope)?;
        builtins::filter(self, &call.name, value, &given)
    }

    /// Calls what can be called.
    pub(super) fn call(&self, callee: &Value, given: Given) -> Run<Value> {
        self.pay(0)?;
        match callee {
            Value::Macro(value) => self.deeper(|| self.call_macro(value, given)),
            Value::Function(name) => builtins::function(self, name, given),
            Value::Method(object, name) => methods::call(self, object, name, &given),
            Value::Cycler(state) => {
                let _ = state;
                Err("a cycler is used by its methods".into())
            }
            Value::Joiner(state) => {
                given.only("joiner", &[])?;
                let mut state = state.borrow_mut();
                let text = if state.1 { state.0.clone() } else { Text::own("") };
                state.1 = true;
                Ok(Value::Str(text))
            }
            Value::Loop(state) => {
                given.only("loop", &["iterable"])?;
                let Some(items) = given.get(0, "iterable") else {
                    return Err("loop() needs what to go through".into());
                };
                let (recursion, depth) = {
                    let state = state.borrow();
                    (state.recursion.clone(), state.depth)
                };
                let Some((what, scope)) = recursion else {
                    return Err("loop() is only callable in a recursive loop".into());
                };
                let mut out = Vec::new();
                self.deeper(|| self.run_loop(&what, items, &scope, &mut out, depth + 1))?;
                Ok(Value::Str(out.into()))
            }
            Value::Undefined(what) => Err(undefined(what)),
            other => Err(format!("a {} cannot be called", other.type_name())),
        }
    }

    fn call_macro(&self, value: &MacroValue, given: Given) -> Run<Value> {
        let definition = &value.definition;
        let scope = Scope::inside(&value.scope);
        let mut named = given.named;
        let mut positional = given.positional.into_iter();
        let mut missing = Vec::new();
        for (name, default) in &definition.parameters {
            let by_name = named.iter().position(|(n, _)| n == name).map(|at| named.remove(at).1);
            match (positional.next(), by_name) {
                (Some(_), Some(_)) => return Err(format!("{}() got '{name}' twice", definition.name)),
                (Some(value), None) | (None, Some(value)) => scope.set(name, value),
                (None, None) => missing.push((name, default)),
            }
        }
        for (name, default) in missing {
            let value = match default {
                Some(default) => self.expr(default, &scope)?,
                None => Value::undefined(format!("parameter '{name}'")),
            };
            scope.set(name, value);
        }
        let takes = |name| definition.takes.contains(name);
        let caller = named.iter().position(|(n, _)| n == "caller").map(|at| named.remove(at).1);
        let is_parameter = |name| definition.parameters.iter().any(|(n, _)| n == name);
        match (takes("caller") && !is_parameter("caller"), caller) {
            (true, Some(caller)) => scope.set("caller", caller),
            (true, None) => scope.set("caller", Value::undefined("No caller defined")),
            (false, Some(_)) => {
                return Err(format!(
                    "macro '{}' was invoked with two values or does not take a caller",
                    definition.name
                ));
            }
            (false, None) => {}
        }
        let rest: Vec<Value> = positional.collect();
        if takes("varargs") {
            scope.set("varargs", Value::Tuple(Rc::new(rest)));
        } else if !rest.is_empty() {
            return Err(format!(
                "macro '{}' takes not more than {} argument(s)",
                definition.name,
                definition.parameters.len()
            ));
        }
        if takes("kwargs") {
            let mut dict = Dict::default();
            for (name, value) in named {
                dict.insert(Value::str(&name), value);
            }
            scope.set("kwargs", Value::Dict(Rc::new(dict)));
        } else if let Some((name, _)) = named.first() {
            return Err(format!("macro '{}' takes no keyword argument '{name}'", definition.name));
        }
        Ok(Value::Str(self.captured(&definition.body, &scope)?))
    }

    /// `object.name`.
    pub(super) fn attribute(&self, object: &Value, name: &str) -> Run<Value> {
        if let Value::Undefined(what) = object {
            return Err(undefined(what));
        }
        if name.starts_with("__") {
            return Err(format!("the attribute '{name}' is not allowed"));
        }
        if let Some(value) = self.own_attribute(object, name)? {
            return Ok(value);
        }
        if let Value::Dict(dict) = object
            && let Some(value) = dict.name(name)
        {
            return Ok(value.clone());
        }
        Ok(Value::undefined(format!("the attribute '{name}' of a {}", object.type_name())))
    }

    /// What Python's `getattr` finds.
    fn own_attribute(&self, object: &Value, name: &str) -> Run<Option<Value>> {
        Ok(match object {
            Value::Namespace(dict) => dict.borrow().name(name).cloned(),
            Value::Loop(state) => loop_attribute(state, name),
            Value::Cycler(_) if matches!(name, "next" | "reset") => {
                let name = if name == "next" { "next" } else { "reset" };
                Some(Value::Method(Box::new(object.clone()), name))
            }
            Value::Cycler(state) if name == "current" => {
                let state = state.borrow();
                state.0.get(state.1).cloned()
            }
            Value::Macro(value) if name == "name" => Some(Value::str(&value.definition.name)),
            _ => methods::find(object, name)?.map(|name| Value::Method(Box::new(object.clone()), name)),
        })
    }

    /// `object[index]`.
    pub(super) fn item(&self, object: &Value, index: &Value) -> Run<Value> {
        let at = |length: usize| -> Option<usize> {
            let index = match index {
                Value::Int(n) => *n,
                Value::Bool(b) => i64::from(*b),
                _ => return None,
            };
            let place = if index < 0 { index + i64::try_from(length).ok()? } else { index };
            usize::try_from(place).ok().filter(|p| *p < length)
        };
        let found = match object {
            Value::Undefined(what) => return Err(undefined(what)),
            Value::Str(text) => at(text.len()).map(|i| Value::Str(text.slice(i, i + 1))),
            Value::List(items) | Value::Tuple(items) => at(items.len()).map(|i| items[i].clone()),
            Value::Range(start, _, step) => {
                object.length().and_then(at).map(|i| Value::Int(start + step * i64::try_from(i).unwrap_or(0)))
            }
            Value::Dict(dict) => {
                self.pay(dict.len())?;
                dict.get(index).cloned()
            }
            _ => None,
        };
        if let Some(value) = found {
            return Ok(value);
        }
        if let Value::Str(name) = index
            && !name.plain().starts_with("__")
            && let Some(value) = self.own_attribute(object, &name.plain())?
        {
            return Ok(value);
        }
        let shown = match index {
            Value::Str(text) => text.plain().chars().take(60).collect(),
            other => other.print().map_or(String::new(), |t| t.plain()),
        };
        Ok(Value::undefined(format!("the item '{shown}' of a {}", object.type_name())))
    }

    fn slice(&self, object: &Value, bounds: [Option<i64>; 3]) -> Run<Value> {
        let length = match object {
            Value::Str(text) => text.len(),
            Value::List(items) | Value::Tuple(items) => items.len(),
            Value::Undefined(what) => return Err(undefined(what)),
            other => return Err(format!("a {} has no slices", other.type_name())),
        };
        let places = slice_places(length, bounds)?;
        self.pay(places.len())?;
        Ok(match object {
            Value::Str(text) => Value::Str(places.iter().map(|&i| text.chars()[i]).collect()),
            Value::Tuple(items) => Value::Tuple(Rc::new(places.iter().map(|&i| items[i].clone()).collect())),
            Value::List(items) => Value::list(places.iter().map(|&i| items[i].clone()).collect()),
            _ => Value::None,
        })
    }

    fn compared(&self, comparison: Comparison, left: &Value, right: &Value) -> Run<bool> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        self.pay(left.length().unwrap_or(0).min(right.length().unwrap_or(0)))?;
        let holds = match comparison {
            Comparison::Eq => return Ok(equal(left, right)),
            Comparison::Ne => return Ok(!equal(left, right)),
            Comparison::In => return self.contains(right, left),
            Comparison::NotIn => return Ok(!self.contains(right, left)?),
            Comparison::Lt => |o| o == Less,
            Comparison::Le => |o| o == Less || o == Equal,
            Comparison::Gt => |o| o == Greater,
            Comparison::Ge => |o| o == Greater || o == Equal,
        };
        for value in [left, right] {
            if let Value::Undefined(what) = value {
                return Err(undefined(what));
            }
        }
        match compare(left, right) {
            Some(order) => Ok(order.is_some_and(holds)),
            None => Err(format!("a {} and a {} have no order", left.type_name(), right.type_name())),
        }
    }

    /// `needle in hay`.
    pub(super) fn contains(&self, hay: &Value, needle: &Value) -> Run<bool> {
        self.pay(hay.length().unwrap_or(0))?;
        match (hay, needle) {
            (Value::Str(hay), Value::Str(needle)) => Ok(hay.find(needle.chars(), 0).is_some()),
            (Value::Str(_), other) => Err(format!("'in' a string needs a string, not a {}", other.type_name())),
            (Value::Dict(dict), key) => {
                hashable(key)?;
                Ok(dict.get(key).is_some())
            }
            _ => match hay.elements() {
                Some(items) => Ok(items.iter().any(|item| equal(item, needle))),
                None => Err(format!("'in' cannot look into a {}", hay.type_name())),
            },
        }
    }

    fn binary(&self, op: Op, left: &Value, right: &Value) -> Run<Value> {
        for value in [left, right] {
            if let Value::Undefined(what) = value {
                return Err(undefined(what));
            }
        }
        match (op, left, right) {
            (Op::Add, Value::Str(a), Value::Str(b)) => {
                self.pay(a.len() + b.len())?;
                return Ok(Value::Str([a.chars(), b.chars()].concat().into()));
            }
            (Op::Add, Value::List(a), Value::List(b)) => {
                self.pay(a.len() + b.len())?;
                return Ok(Value::list([&a[..], &b[..]].concat()));
            }
            (Op::Add, Value::Tuple(a), Value::Tuple(b)) => {
                self.pay(a.len() + b.len())?;
                return Ok(Value::Tuple(Rc::new([&a[..], &b[..]].concat())));
            }
            (Op::Mul, sequence, times) | (Op::Mul, times, sequence)
                if matches!(sequence, Value::Str(_) | Value::List(_) | Value::Tuple(_))
                    && matches!(times, Value::Int(_) | Value::Bool(_)) =>
            {
                let times = match times {
                    Value::Int(n) => usize::try_from(*n).unwrap_or(0),
                    Value::Bool(b) => usize::from(*b),
                    _ => 0,
                };
                self.pay(sequence.length().unwrap_or(0).saturating_mul(times))?;
                return Ok(match sequence {
                    Value::Str(text) => Value::Str(text.chars().repeat(times).into()),
                    Value::List(items) => Value::list(repeated(items, times)),
                    Value::Tuple(items) => Value::Tuple(Rc::new(repeated(items, times))),
                    _ => Value::None,
                });
            }
            (Op::Rem, Value::Str(_), _) => return Err("formatting with '%' is not supported".into()),
            _ => {}
        }
        let (Some(a), Some(b)) = (left.number(), right.number()) else {
            return Err(format!("{op:?} of a {} and a {}", left.type_name(), right.type_name()));
        };
        arithmetic(op, a, b)
    }
}

fn too_large() -> String {
    "a whole number beyond 64 bits".into()
}

fn arithmetic(op: Op, a: Number, b: Number) -> Run<Value> {
    let by_zero = || Err("division by zero".to_owned());
    if let (Number::Int(a), Number::Int(b)) = (a, b) {
        let whole = match op {
            Op::Add => a.checked_add(b),
            Op::Sub => a.checked_sub(b),
            Op::Mul => a.checked_mul(b),
            Op::FloorDiv | Op::Rem | Op::Div if b == 0 => return by_zero(),
            Op::Div => return Ok(Value::Float(a as f64 / b as f64)),
            // Rounded down and with the divisor's sign, as Python has them.
            Op::FloorDiv => a.checked_div(b).map(|q| q - i64::from(a % b != 0 && (a < 0) != (b < 0))),
            Op::Rem => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            Op::Pow if b < 0 => {
                return if a == 0 { by_zero() } else { Ok(Value::Float((a as f64).powf(b as f64))) };
            }
            Op::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        };
        return whole.map(Value::Int).ok_or_else(too_large);
    }
    let (a, b) = (a.float(), b.float());
    let x = match op {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::Mul => a * b,
        Op::Div | Op::FloorDiv | Op::Rem if b == 0.0 => return by_zero(),
        Op::Div => a / b,
        Op::FloorDiv => (a / b).floor(),
        Op::Rem => {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        Op::Pow => {
            let x = a.powf(b);
            if !x.is_finite() || (a < 0.0 && b.fract() != 0.0) {
                return Err("a power beyond what a float holds".into());
            }
            x
        }
    };
    Ok(Value::Float(x))
}

fn repeated(items: &[Value], times: usize) -> Vec<Value> {
    (0..times).flat_map(|_| items.iter().cloned()).collect()
}

/// The places that a slice takes, as Python's `slice.indices` gives them.
fn slice_places(length: usize, [start, stop, step]: [Option<i64>; 3]) -> Run<Vec<usize>> {
    let step = i128::from(step.unwrap_or(1));
    let length = length as i128;
    if step == 0 {
        return Err("a slice of step 0".into());
    }
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |given: Option<i64>, default: i128| match given.map(i128::from) {
        None => default,
        Some(n) if n < 0 => (n + length).max(low),
        Some(n) => n.min(high),
    };
    let mut at = bound(start, if step > 0 { low } else { high });
    let stop = bound(stop, if step > 0 { high } else { low });
    let mut places = Vec::new();
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        places.extend(usize::try_from(at));
        at += step;
    }
    Ok(places)
}

fn loop_attribute(state: &Rc<RefCell<LoopState>>, name: &str) -> Option<Value> {
    let s = state.borrow();
    let (index, length) = (s.index, s.items.len());
    let neighbour = |at: Option<usize>, what: &str| {
        at.and_then(|at| s.items.get(at).cloned())
            .unwrap_or_else(|| Value::undefined(format!("there is no {what} item")))
    };
    Some(match name {
        "index" => Value::int(index + 1),
        "index0" => Value::int(index),
        "revindex" => Value::int(length - index),
        "revindex0" => Value::int(length - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => Value::int(length),
        "depth" => Value::int(s.depth + 1),
        "depth0" => Value::int(s.depth),
        "previtem" => neighbour(index.checked_sub(1), "previous"),
        "nextitem" => neighbour(Some(index + 1), "next"),
        "cycle" => Value::Method(Box::new(Value::Loop(state.clone())), "cycle"),
        "changed" => Value::Method(Box::new(Value::Loop(state.clone())), "changed"),
        _ => return None,
    })
}
