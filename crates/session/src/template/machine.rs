//! What a rendering has spent and is given, and the refusals that its parts share.

use std::cell::{Cell, RefCell};

use super::python::LocalTime;
use super::value::{LoopState, Value, equal};

/// Steps and characters that a rendering may cost. A template in use takes some thousand.
const FUEL: u64 = 40_000_000;
/// Why a rendering ended.
pub(super) type Run<T> = Result<T, String>;

/// A call's evaluated arguments.
#[derive(Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Given {
    /// The parameter at `index` or of `name`.
    pub(super) fn get(&self, index: usize, name: &str) -> Option<&Value> {
        self.positional.get(index).or_else(|| self.named.iter().find(|(n, _)| n == name).map(|(_, v)| v))
    }

    /// Refuses arguments beyond those that are understood.
    pub(super) fn only(&self, what: &str, names: &[&str]) -> Run<()> {
        if self.positional.len() > names.len() {
            return Err(format!("{what} takes at most {} arguments here", names.len()));
        }
        for (at, (name, _)) in self.named.iter().enumerate() {
            let place = names.iter().position(|n| n == name);
            let twice = place.is_some_and(|p| p < self.positional.len())
                || self.named[..at].iter().any(|(other, _)| other == name);
            if place.is_none() || twice {
                return Err(format!("{what}: the argument '{name}' is not supported"));
            }
        }
        Ok(())
    }
}

/// One rendering.
pub(super) struct Machine {
    pub(super) fuel: Cell<u64>,
    pub(super) depth: Cell<usize>,
    pub(super) limit: usize,
    pub(super) now: LocalTime,
}

impl Machine {
    pub(super) fn new(now: LocalTime, limit: usize) -> Self {
        Self { fuel: Cell::new(FUEL), depth: Cell::new(0), limit, now }
    }

    /// Pays for `n` characters or elements, before they are made.
    pub(super) fn pay(&self, n: usize) -> Run<()> {
        match self.fuel.get().checked_sub(u64::try_from(n).unwrap_or(u64::MAX).saturating_add(1)) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => Err("it takes too many steps or makes too much text (out of fuel)".into()),
        }
    }
}

pub(super) fn undefined(what: &str) -> String {
    format!("{what} is undefined")
}

pub(super) fn namespace_name(name: &str) -> Run<()> {
    if name.starts_with('_') {
        return Err(format!("the attribute '{name}' of a namespace begins with an underscore"));
    }
    Ok(())
}

/// Refuses a key that Python cannot hash.
pub(super) fn hashable(key: &Value) -> Run<()> {
    match key {
        Value::List(_) | Value::Dict(_) | Value::Namespace(_) | Value::View(..) => {
            Err(format!("a {} cannot be a key", key.type_name()))
        }
        Value::Tuple(items) => items.iter().try_for_each(hashable),
        Value::Undefined(what) => Err(format!("{} as a key", undefined(what))),
        _ => Ok(()),
    }
}

/// `loop.cycle` and `loop.changed`.
pub(super) fn loop_method(state: &RefCell<LoopState>, name: &str, given: &Given) -> Run<Value> {
    if !given.named.is_empty() {
        return Err(format!("loop.{name} takes no named arguments"));
    }
    let mut state = state.borrow_mut();
    if name == "cycle" {
        if given.positional.is_empty() {
            return Err("loop.cycle needs something to cycle through".into());
        }
        return Ok(given.positional[state.index % given.positional.len()].clone());
    }
    let same = state.changed.as_ref().is_some_and(|old| {
        old.len() == given.positional.len() && old.iter().zip(&given.positional).all(|(a, b)| equal(a, b))
    });
    if !same {
        state.changed = Some(given.positional.clone());
    }
    Ok(Value::Bool(!same))
}
