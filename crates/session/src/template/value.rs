//! Values as Python has them, as far as chat templates use them.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;

use super::syntax::{For, Macro};
use super::text::Text;

/// What a template computes with.
#[derive(Clone)]
pub(super) enum Value {
    /// jinja2's `Undefined`, with what was not defined.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Text),
    List(Rc<Vec<Value>>),
    Tuple(Rc<Vec<Value>>),
    Dict(Rc<Dict>),
    Range(i64, i64, i64),
    /// `dict.keys()`, `.values()` and `.items()`.
    View(&'static str, Rc<Vec<Value>>),
    /// What can be gone through once.
    Once(Rc<RefCell<Option<Vec<Value>>>>),
    Namespace(Rc<RefCell<Dict>>),
    Macro(Rc<MacroValue>),
    /// A function of the environment.
    Function(&'static str),
    Method(Box<Value>, &'static str),
    Loop(Rc<RefCell<LoopState>>),
    Cycler(Rc<RefCell<(Vec<Value>, usize)>>),
    Joiner(Rc<RefCell<(Text, bool)>>),
}

/// A dictionary in the order of insertion.
#[derive(Clone, Default)]
pub(super) struct Dict(Vec<(Value, Value)>);

impl Dict {
    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        self.0.iter().find(|(k, _)| equal(k, key)).map(|(_, v)| v)
    }

    pub(super) fn name(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(k, _)| matches!(k, Value::Str(text) if text.is(key))).map(|(_, v)| v)
    }

    pub(super) fn insert(&mut self, key: Value, value: Value) {
        match self.0.iter_mut().find(|(k, _)| equal(k, &key)) {
            Some(entry) => entry.1 = value,
            None => self.0.push((key, value)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Value, Value)> {
        self.0.iter()
    }

    pub(super) fn keys(&self) -> Vec<Value> {
        self.0.iter().map(|(k, _)| k.clone()).collect()
    }

    pub(super) fn pairs(&self) -> Vec<Value> {
        self.0.iter().map(|(k, v)| Value::Tuple(Rc::new(vec![k.clone(), v.clone()]))).collect()
    }
}

impl Value {
    pub(super) fn str(text: &str) -> Self {
        Self::Str(Text::own(text))
    }

    pub(super) fn undefined(what: impl Into<Rc<str>>) -> Self {
        Self::Undefined(what.into())
    }

    pub(super) fn list(items: Vec<Value>) -> Self {
        Self::List(Rc::new(items))
    }

    pub(super) fn once(items: Vec<Value>) -> Self {
        Self::Once(Rc::new(RefCell::new(Some(items))))
    }

    pub(super) fn int(n: usize) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(..) => "range",
            Self::View(name, _) => name,
            Self::Once(_) => "generator",
            Self::Namespace(_) => "namespace",
            Self::Macro(_) => "macro",
            Self::Function(_) => "function",
            Self::Method(..) => "method",
            Self::Loop(_) => "loop",
            Self::Cycler(_) => "cycler",
            Self::Joiner(_) => "joiner",
        }
    }

    pub(super) fn truth(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(b) => *b,
            Self::Int(n) => *n != 0,
            Self::Float(x) => *x != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => !items.is_empty(),
            Self::Dict(dict) => dict.len() > 0,
            Self::Range(..) => self.length().is_some_and(|n| n > 0),
            _ => true,
        }
    }

    /// Python's `len`.
    pub(super) fn length(&self) -> Option<usize> {
        Some(match self {
            Self::Undefined(_) => 0,
            Self::Str(text) => text.len(),
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => items.len(),
            Self::Dict(dict) => dict.len(),
            Self::Range(start, stop, step) => range_length(*start, *stop, *step),
            Self::Loop(state) => state.borrow().items.len(),
            _ => return None,
        })
    }

    /// All elements, as a loop goes through them; none of a number or a function.
    pub(super) fn elements(&self) -> Option<Vec<Value>> {
        Some(match self {
            Self::Undefined(_) => Vec::new(),
            Self::Str(text) => text.chars().iter().map(|c| Self::Str(Text::from(vec![*c]))).collect(),
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => items.to_vec(),
            Self::Dict(dict) => dict.keys(),
            Self::Range(start, _, step) => {
                (0..self.length()?).map(|i| Self::Int(start + step * i64::try_from(i).unwrap_or(0))).collect()
            }
            Self::Once(items) => items.borrow_mut().take().unwrap_or_default(),
            _ => return None,
        })
    }

    /// A number, where a boolean is one as well.
    pub(super) fn number(&self) -> Option<Number> {
        Some(match self {
            Self::Bool(b) => Number::Int(i64::from(*b)),
            Self::Int(n) => Number::Int(*n),
            Self::Float(x) => Number::Float(*x),
            _ => return None,
        })
    }
}

pub(super) struct Scope {
    pub(super) names: RefCell<HashMap<String, Value>>,
    pub(super) outer: Option<Rc<Scope>>,
}

impl Scope {
    pub(super) fn inside(outer: &Rc<Scope>) -> Rc<Self> {
        Rc::new(Self { names: RefCell::default(), outer: Some(outer.clone()) })
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.names.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.outer.as_deref()?;
        }
    }

    pub(super) fn set(&self, name: &str, value: Value) {
        self.names.borrow_mut().insert(name.to_owned(), value);
    }
}

/// A macro and where it was defined.
pub(super) struct MacroValue {
    pub(super) definition: Rc<Macro>,
    pub(super) scope: Rc<Scope>,
}

/// `loop`.
pub(super) struct LoopState {
    pub(super) items: Vec<Value>,
    pub(super) index: usize,
    pub(super) depth: usize,
    pub(super) changed: Option<Vec<Value>>,
    /// What a recursive loop runs again, and where.
    pub(super) recursion: Option<(Rc<For>, Rc<Scope>)>,
}

pub(super) fn range_length(start: i64, stop: i64, step: i64) -> usize {
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let length = if step > 0 { (stop - start + step - 1) / step } else { (start - stop - step - 1) / -step };
    usize::try_from(length.max(0)).unwrap_or(usize::MAX)
}

#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(n) => n as f64,
            Self::Float(x) => x,
        }
    }
}

fn numbers(a: Number, b: Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        // Python compares an integer with a float exactly.
        (Number::Int(a), Number::Float(b)) => int_float(a, b),
        (Number::Float(a), Number::Int(b)) => int_float(b, a).map(Ordering::reverse),
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
    }
}

fn int_float(a: i64, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    if b >= 9.3e18 {
        return Some(Ordering::Less);
    }
    if b <= -9.3e18 {
        return Some(Ordering::Greater);
    }
    let whole = i128::from(a).cmp(&(b.trunc() as i128));
    Some(whole.then_with(|| 0.0.partial_cmp(&b.fract()).unwrap_or(Ordering::Equal)))
}

/// Python's `==`.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => a == b,
        (Value::None, Value::None) | (Value::Undefined(_), Value::Undefined(_)) => true,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b))
        }
        (Value::Dict(a), Value::Dict(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| equal(value, other)))
        }
        (Value::Range(..), Value::Range(..)) => {
            let elements = |v: &Value| v.elements().unwrap_or_default();
            let (a, b) = (elements(a), elements(b));
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| equal(a, b))
        }
        (Value::Once(a), Value::Once(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (a.number(), b.number()) {
            (Some(a), Some(b)) => numbers(a, b) == Some(Ordering::Equal),
            _ => false,
        },
    }
}

/// Python's order; `None` where it has none, `Some(None)` beside a NaN.
pub(super) fn compare(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => Some(Some(a.cmp(b))),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.iter().zip(b.iter()) {
                if !equal(a, b) {
                    return compare(a, b);
                }
            }
            Some(Some(a.len().cmp(&b.len())))
        }
        _ => Some(numbers(a.number()?, b.number()?)),
    }
}
