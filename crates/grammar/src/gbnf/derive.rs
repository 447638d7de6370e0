//! Sentences of a grammar by walking its rules.

use super::compile::{Elem, Rules};

pub(super) fn derive(
    rules: &Rules,
    choose: &mut dyn FnMut(u64) -> u64,
    soft_bytes: usize,
    hard_bytes: usize,
) -> Option<String> {
    let mut pick = |ways: u64| choose(ways) % ways.max(1);
    let mut out = String::new();
    // A long derivation of empty texts is no output either.
    let mut steps = hard_bytes.saturating_mul(64).saturating_add(1 << 16);
    let enter = |rule: u32, length: usize, pick: &mut dyn FnMut(u64) -> u64| {
        if length >= soft_bytes {
            return rules.exit[rule as usize] as usize;
        }
        let alternates = rules.alternates_of(rule);
        let way = usize::try_from(pick(alternates.len() as u64)).unwrap_or(0);
        alternates[way] as usize
    };
    let mut stack = vec![enter(rules.root, 0, &mut pick)];
    while let Some(pos) = stack.pop() {
        steps = steps.checked_sub(1)?;
        match rules.elems[pos] {
            Elem::Alt | Elem::End => {}
            Elem::Ref(rule) => {
                if !rules.elems[pos + 1].is_end() {
                    stack.push(pos + 1);
                }
                // Open rules are text still to come.
                let length = out.len().saturating_add(stack.len());
                stack.push(enter(rule, length, &mut pick));
            }
            Elem::Char(class) => {
                if !rules.elems[pos + 1].is_end() {
                    stack.push(pos + 1);
                }
                let ranges = &rules.scalars[class as usize];
                let index = usize::try_from(pick(ranges.len() as u64)).unwrap_or(0);
                let (low, high) = ranges[index];
                let offset = u32::try_from(pick(u64::from(high - low) + 1)).unwrap_or(0);
                out.push(char::from_u32(low + offset)?);
                if out.len() > hard_bytes {
                    return None;
                }
            }
        }
    }
    Some(out)
}
