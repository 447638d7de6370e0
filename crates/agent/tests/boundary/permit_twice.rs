//! One permit is one execution.
use agent::permit::ExecutePermit;

fn spent_twice(permit: ExecutePermit) -> (ExecutePermit, ExecutePermit) {
    (permit, permit)
}

fn main() {}
