//! Ids exist only if they were checked.
use bitnet_rs::{SeqId, TokenId};

fn main() {
    let _ = SeqId(-1);
    let _ = TokenId(7);
}
