//! One permit is one execution.
use crate::permit::ExecutePermit;

fn spent_twice(permit: ExecutePermit) -> (ExecutePermit, ExecutePermit) {
    (permit, permit)
}

fn main() {}
