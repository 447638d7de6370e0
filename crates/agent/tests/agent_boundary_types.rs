//! What must not be possible with the boundary's types: forging a gated value, or going through the
//! stages in another order.

use std::str::FromStr;

use agent::candidate::Candidate;
use agent::command::NormalizedCommand;
use agent::gate_engine::{Evaluation, GatedCommand};
use agent::guard::GuardedInput;
use agent::permit::{AuthorizedPlan, ExecuteFlag, ExecutePermit, OperatorConfig};
use agent::plan::ExecutionPlan;
use serde::de::DeserializeOwned;
use static_assertions::assert_not_impl_any;

// No text becomes one of them, by parsing, deserializing or converting; none has a default.
assert_not_impl_any!(ExecutePermit: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default, Clone, Copy);
assert_not_impl_any!(AuthorizedPlan: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default, Clone, Copy);
assert_not_impl_any!(OperatorConfig: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default, Clone);
assert_not_impl_any!(ExecuteFlag: DeserializeOwned, FromStr, From<bool>, From<String>, From<&'static str>, Default, Clone);
assert_not_impl_any!(GatedCommand: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default, Clone);
assert_not_impl_any!(ExecutionPlan: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default);
assert_not_impl_any!(Evaluation: DeserializeOwned, FromStr, From<String>, Default);
assert_not_impl_any!(NormalizedCommand: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default);
assert_not_impl_any!(GuardedInput: DeserializeOwned, FromStr, From<String>, From<&'static str>, Default);

// No earlier stage converts into a later one.
assert_not_impl_any!(ExecutePermit: From<Candidate>, From<NormalizedCommand>, From<GatedCommand>, From<ExecutionPlan>, From<ExecuteFlag>, From<OperatorConfig>);
assert_not_impl_any!(AuthorizedPlan: From<Candidate>, From<NormalizedCommand>, From<GatedCommand>, From<ExecutionPlan>);
assert_not_impl_any!(ExecutionPlan: From<Candidate>, From<NormalizedCommand>, From<GatedCommand>);
assert_not_impl_any!(GatedCommand: From<Candidate>, From<NormalizedCommand>);
assert_not_impl_any!(NormalizedCommand: From<Candidate>);

/// Private fields and the order of stages. The expected messages are those of the compiler that the
/// repository was last checked with; after a change of compiler, `TRYBUILD=overwrite cargo test`
/// writes them anew, and the diff must still be the same errors.
#[test]
fn forgeries_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/boundary/*.rs");
}
