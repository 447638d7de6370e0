//! The build script's applier of `vendor/patches/`: build scripts have no tests of their own, so its module is
//! compiled here once more and brings them along.

#[path = "../build/patch.rs"]
mod patch;

#[test]
fn the_patches_of_this_build_are_named_in_their_order() {
    let names = bitnet_sys::engine_info::PATCHES;
    assert!(!names.is_empty() && names.is_sorted());
    for name in names {
        let text = std::fs::read_to_string(format!("{}/vendor/patches/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let parsed = patch::Patch::parse(name, &text).unwrap();
        assert_eq!(parsed.name(), *name);
    }
}
