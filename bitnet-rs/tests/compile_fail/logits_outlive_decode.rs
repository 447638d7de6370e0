//! Rows of logits lie in the engine's buffer, which the next decode overwrites.
use bitnet_rs::{Batch, Context, Error};

fn two(context: &mut Context, batch: &Batch) -> Result<f32, Error> {
    let first = context.decode(batch)?;
    let second = context.decode(batch)?;
    Ok(first.last()?[0] + second.last()?[0])
}

fn main() {}
