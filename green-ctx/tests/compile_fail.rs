//! What the types promise: programs that must not compile.

#[test]
fn ownership_is_checked_by_the_compiler() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
